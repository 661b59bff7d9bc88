"""What a problem is: its kind, its side effect and its definition.

The types of which the problem catalogue is made. Read by `problem_catalogue` (the data) and `problems` (the
exception). Must not know any single problem, nor HTTP beyond the status number.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

JSON: TypeAlias = "bool | int | float | str | Sequence[JSON] | Mapping[str, JSON] | None"
"""A value that JSON can hold."""


class ProblemKind(StrEnum):
    """The caller's next move, whatever the code. Clients decide by kind and only name the code."""

    RETRY = "retry"
    """Send the same request again later, with back-off."""
    REFRESH = "refresh"
    """Learn the metadata again (leader, coordinator, topic id), then send the request again."""
    FIX = "fix"
    """The request is wrong and stays wrong: change it."""
    FENCED = "fenced"
    """A newer process took this identity over: stop."""
    DATA_LOSS = "data_loss"
    """Records that the caller counted on are gone or cannot be proven: a person or a policy decides."""
    BUG = "bug"
    """The server failed in a way that it should not: report it."""

    @property
    def retryable(self) -> bool:
        """Whether the same request may succeed when it is sent again."""
        return self in (ProblemKind.RETRY, ProblemKind.REFRESH)


class SideEffect(StrEnum):
    """Whether the refused request may have changed something all the same."""

    NONE = "none"
    MAYBE = "maybe"


@dataclass(frozen=True, slots=True)
class DataMember:
    """One member that a problem document of a code carries beside the standard ones."""

    name: str
    explanation: str


@dataclass(frozen=True, slots=True)
class ProblemDefinition:
    """One entry of the catalogue: everything about a problem that does not depend on the occurrence.

    `explanation` says what happened and `next_step` what the caller should do; both are the text of the page
    `/problems/<code>`.
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
        """Whether the same request may succeed when it is sent again; follows from the kind."""
        return self.kind.retryable

    @property
    def type_uri(self) -> str:
        """The RFC 9457 `type`: a page that every broker serves."""
        return f"/problems/{self.code}"
