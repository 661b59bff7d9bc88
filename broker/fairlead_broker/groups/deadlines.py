"""Times at which something ends, one a member, moved on very often and reached seldom.

Moving one costs a dictionary entry: the heap below learns of it when the old time comes up.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush, heapreplace


class Deadlines:
    """The ends by member id, in monotonic seconds."""

    __slots__ = ("_ends", "_heap")

    def __init__(self) -> None:
        self._ends: dict[str, float] = {}
        self._heap: list[tuple[float, str]] = []

    def set(self, member_id: str, ends_at: float) -> None:
        """Set or move the end of a member."""
        before = self._ends.get(member_id)
        self._ends[member_id] = ends_at
        if before is None or ends_at < before:
            heappush(self._heap, (ends_at, member_id))

    def drop(self, member_id: str) -> None:
        """Forget a member."""
        self._ends.pop(member_id, None)

    def end_of(self, member_id: str) -> float:
        """Say when the end of a member is that has one."""
        return self._ends[member_id]

    def next(self) -> tuple[float, str] | None:
        """Say what ends first, and when."""
        while self._heap:
            ends_at, member_id = self._heap[0]
            current = self._ends.get(member_id)
            if current == ends_at:
                return ends_at, member_id
            if current is None or current < ends_at:
                heappop(self._heap)
            else:
                heapreplace(self._heap, (current, member_id))
        return None

    def over(self, is_over: Callable[[float], bool]) -> list[str]:
        """List the members whose time is over."""
        following = self.next()
        if following is None or not is_over(following[0]):
            return []
        return [member_id for member_id, ends_at in self._ends.items() if is_over(ends_at)]
