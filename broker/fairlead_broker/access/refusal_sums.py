"""Sums of equal refusals, so that a caller in a loop does not fill the audit log (rule U2). The time is an argument.

The first refusal of a kind is reported at once. Equal refusals are counted, and reported as one sum every
`SUM_SECONDS`. No refusal is lost: while the table is full, refusals of any other kind are reported at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Generic, TypeVar

SUM_SECONDS: Final = 10.0
KINDS_MAX: Final = 10_000
"""Maximum number of kinds of refusals that are summed at the same time."""

RecordT = TypeVar("RecordT")


@dataclass(frozen=True, slots=True)
class RefusalKind:
    """What equal refusals have in common."""

    event: str
    caller: str
    """Principal, or the address of a caller without an accepted token."""
    operation: str
    resource: str


class RefusalSums(Generic[RecordT]):
    """Refusals since the last sums, with the last record of each kind."""

    __slots__ = ("_sums",)

    def __init__(self) -> None:
        self._sums: dict[RefusalKind, tuple[RecordT, int]] = {}

    def add(self, kind: RefusalKind, record: RecordT) -> bool:
        """Return whether a refusal is reported at once; otherwise it is part of the next sum."""
        known = self._sums.get(kind)
        if known is not None:
            self._sums[kind] = record, known[1] + 1
            return False
        if len(self._sums) < KINDS_MAX:
            self._sums[kind] = record, 0
        return True

    def take(self) -> list[tuple[RecordT, int]]:
        """Return the last record and the number of the refusals of each kind that are not reported yet.

        Kinds without a refusal since the last sums are removed.
        """
        found = [(record, count) for record, count in self._sums.values() if count]
        self._sums = {kind: (record, 0) for kind, (record, count) in self._sums.items() if count}
        return found
