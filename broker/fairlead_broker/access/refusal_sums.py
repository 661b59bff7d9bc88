"""Sums of equal refusals, so that a caller in a loop does not fill the audit log (rule U2).

The module reads no clock: the time is an argument.

The first refusal of a kind is reported at once. Equal refusals are counted, and reported as one sum every
`SUM_SECONDS`. No refusal is lost: while the table is full, refusals of any other kind are reported at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Generic, TypeVar

SUM_SECONDS: Final = 10.0
KINDS_MAX: Final = 10_000
"""Maximum number of kinds of refusals for which sums are kept at the same time."""

RecordT = TypeVar("RecordT")


@dataclass(frozen=True, slots=True)
class RefusalKind:
    """Values that are the same in all refusals of one kind."""

    event: str
    caller: str
    """Principal, or the address of a caller without an accepted token."""
    operation: str
    resource: str


class RefusalSums(Generic[RecordT]):
    """Number of refusals of each kind since the last sums, with the last record of each kind."""

    __slots__ = ("_sums",)

    def __init__(self) -> None:
        self._sums: dict[RefusalKind, tuple[RecordT, int]] = {}

    def add(self, kind: RefusalKind, record: RecordT) -> bool:
        """Add a refusal, and return whether it must be reported at once instead of as part of the next sum."""
        known = self._sums.get(kind)
        if known is not None:
            self._sums[kind] = record, known[1] + 1
            return False
        if len(self._sums) < KINDS_MAX:
            self._sums[kind] = record, 0
        return True

    def take(self) -> list[tuple[RecordT, int]]:
        """Return the last record and the number of unreported refusals of each kind.

        Kinds that had no refusal since the last sums are removed.
        """
        found = [(record, count) for record, count in self._sums.values() if count]
        self._sums = {kind: (record, 0) for kind, (record, count) in self._sums.items() if count}
        return found
