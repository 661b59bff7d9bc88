"""The last distinct operations in `observe` mode that `enforce` would have refused, with counts (rule Z3)."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

ENTRIES_MAX: Final = 1000


@dataclass(frozen=True, slots=True)
class DeniedOperation:
    """Operation that no ACL allows the principal to execute on a resource."""

    principal: str
    operation: str
    resource: str


class WouldBeDenied:
    """The last `ENTRIES_MAX` distinct operations that would be refused, each with its number of occurrences."""

    __slots__ = ("_counts",)

    def __init__(self) -> None:
        self._counts: OrderedDict[DeniedOperation, int] = OrderedDict()

    def add(self, denied: DeniedOperation) -> None:
        """Count an operation. Above `ENTRIES_MAX` operations, the least recently counted operation is dropped."""
        self._counts[denied] = self._counts.get(denied, 0) + 1
        self._counts.move_to_end(denied)
        if len(self._counts) > ENTRIES_MAX:
            self._counts.popitem(last=False)

    def entries(self) -> list[tuple[DeniedOperation, int]]:
        """Return the operations with their counts, the latest first."""
        return list(reversed(self._counts.items()))
