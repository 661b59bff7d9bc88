"""The decision about a transaction, as commits, aborts and produce calls that also commit answer it."""

from __future__ import annotations

from typing import Literal, TypeAlias

from fairlead_api.bodies.metadata import Answer

OutcomeName: TypeAlias = Literal["committed", "aborted"]


class DecidedTransaction(Answer, frozen=True, kw_only=True):
    """Answer to a commit or abort. `next` is the next transaction of the producer, null after the last epoch.

    `duplicate` is true if an earlier request made the decision.
    """

    transaction: str
    state: OutcomeName
    next: str | None
    duplicate: bool
