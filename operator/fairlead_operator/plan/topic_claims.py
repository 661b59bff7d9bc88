"""Which of several Topics for one topic of a cluster has it.

Called by `reconcile` with what was last seen of all Topics. Who has it is read from the objects themselves, so that it
survives the operator: a Topic that reported the topic's id in its status goes before those that never had it, then
the oldest, then the lowest uid. When the one that has it goes, the next in this order takes the topic over.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Claim:
    """A Topic that asks for a topic."""

    namespace: str
    name: str
    uid: str
    created: str
    """`metadata.creationTimestamp`: RFC 3339 in UTC, which sorts as text."""
    held_id: str | None
    """The topic id in its status: it has, or had, the topic."""
    deleting: bool = False

    def __str__(self) -> str:
        """Read as `namespace/name`."""
        return f"{self.namespace}/{self.name}"


def winner(claims: Iterable[Claim]) -> Claim | None:
    """Return who has the topic; None without claims.

    Who is being deleted has it no longer: what it leaves is for the next.
    """
    staying = [claim for claim in claims if not claim.deleting]
    return min(staying, key=lambda each: (each.held_id is None, each.created, each.uid), default=None)
