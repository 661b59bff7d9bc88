"""Sums of equal refusals, so that a caller in a loop does not fill the audit log (rule U2).

The module reads no clock: the time is an argument.

The first refusal of a kind is reported at once. Equal refusals are counted, and reported as one sum every
`SUM_SECONDS`. A caller may vary the names in its calls, so the kinds of each caller are limited: further refusals are
counted as one kind without a name. No refusal is lost.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

SUM_SECONDS: Final = 10.0
KINDS_MAX: Final = 10_000
"""Maximum number of kinds of refusals for which sums are kept at the same time. While the table is full, all refusals
of further kinds are counted together.
"""
CALLER_KINDS_MAX: Final = 100
"""Maximum number of kinds of one caller. Refusals of further kinds are counted together."""

RecordT = TypeVar("RecordT")


@dataclass(frozen=True, slots=True)
class RefusalKind:
    """Values that are the same in all refusals of one kind."""

    event: str
    caller: str = ""
    """Principal, or the address of a caller without an accepted token; empty for refusals of several callers."""
    operation: str = ""
    resource: str = ""
    is_rest: bool = False
    """Whether the refusals may have different operations and resources."""


class RefusalSums(Generic[RecordT]):
    """Number of refusals of each kind since the last sums, with the last record of each kind."""

    __slots__ = ("_kinds", "_sums")

    def __init__(self) -> None:
        self._sums: dict[RefusalKind, tuple[RecordT, int]] = {}
        self._kinds: Counter[str] = Counter()
        """Number of kinds of each caller."""

    def add(self, kind: RefusalKind, record: RecordT) -> bool:
        """Add a refusal, and return whether it must be reported at once instead of as part of the next sum."""
        counted = self._counted(kind)
        known = self._sums.get(counted)
        if known is not None:
            self._sums[counted] = record, known[1] + 1
            return False
        self._sums[counted] = record, 0
        self._kinds[counted.caller] += 1
        return True

    def take(self) -> list[tuple[RefusalKind, RecordT, int]]:
        """Return the last record and the number of unreported refusals of each kind.

        Kinds that had no refusal since the last sums are removed.
        """
        found = [(kind, record, count) for kind, (record, count) in self._sums.items() if count]
        self._sums = {kind: (record, 0) for kind, record, _ in found}
        self._kinds = Counter(kind.caller for kind in self._sums)
        return found

    def _counted(self, kind: RefusalKind) -> RefusalKind:
        """Return the kind under which a refusal is counted."""
        if kind not in self._sums and self._kinds[kind.caller] >= CALLER_KINDS_MAX:
            kind = RefusalKind(kind.event, kind.caller, is_rest=True)
        if kind in self._sums or len(self._sums) < KINDS_MAX:
            return kind
        return RefusalKind(kind.event, is_rest=True)
