"""Types of the problem catalogue: kind, side effect and definition of a problem.

The modules that define problems and `problems` (the catalogue and the exception) use this module. This module must not
depend on any particular problem, nor on HTTP except for the status.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

JSON: TypeAlias = "bool | int | float | str | Sequence[JSON] | Mapping[str, JSON] | None"
"""Value that can be written as JSON."""


class ProblemKind(StrEnum):
    """Required reaction of the caller; clients act on the kind and only display the code."""

    RETRY = "retry"
    """Send the same request again later, with back-off."""
    REFRESH = "refresh"
    """Fetch the metadata again (leader, coordinator, topic id), then send the request again."""
    FIX = "fix"
    """Change the request, which is invalid and would fail again."""
    FENCED = "fenced"
    """Stop, because a newer process has taken over this identity."""
    DATA_LOSS = "data_loss"
    """Let a person or a policy decide, because expected records are lost or the state of the records cannot be
    determined."""
    BUG = "bug"
    """Report the failure, which is an error in the broker or its storage."""

    @property
    def retryable(self) -> bool:
        """Whether the same request may succeed when retried."""
        return self in (ProblemKind.RETRY, ProblemKind.REFRESH)


class SideEffect(StrEnum):
    """Whether the refused request may nevertheless have changed data or state."""

    NONE = "none"
    MAYBE = "maybe"


@dataclass(frozen=True, slots=True)
class DataMember:
    """Additional member, beyond the standard members, of the documents of one problem."""

    name: str
    explanation: str


@dataclass(frozen=True, slots=True)
class ProblemDefinition:
    """Entry of the catalogue, with all properties of a problem that do not depend on the occurrence.

    `explanation` describes what happened, and `next_step` describes what the caller should do; both texts appear on the
    page `/problems/<code>`.
    """

    code: str
    status: int
    title: str
    kind: ProblemKind
    explanation: str
    next_step: str
    side_effect: SideEffect = SideEffect.NONE
    data_members: tuple[DataMember, ...] = ()

    @property
    def retryable(self) -> bool:
        """Whether the same request may succeed when retried, as determined by the kind of the problem."""
        return self.kind.retryable

    @property
    def type_uri(self) -> str:
        """RFC 9457 `type`: path of the problem's page, which every broker serves."""
        return f"/problems/{self.code}"
