"""Times at which something ends, one a member, moved on very often and reached seldom.

Moving one costs a dictionary entry: the heap below learns of it when the old time comes up.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush, heapreplace


class Deadlines:
    """The ends by member id, in monotonic seconds."""

    __slots__ = ("_ends", "_heap", "_queued")

    def __init__(self) -> None:
        self._ends: dict[str, float] = {}
        self._heap: list[tuple[float, str]] = []
        self._queued: dict[str, float] = {}
        """The entry of the heap that counts for a member: never later than its end, and kept while it is gone, so that
        one that leaves and comes again and again does not fill the heap."""

    def set(self, member_id: str, ends_at: float) -> None:
        """Set or move the end of a member."""
        self._ends[member_id] = ends_at
        queued = self._queued.get(member_id)
        if queued is None or ends_at < queued:
            self._queued[member_id] = ends_at
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
            if ends_at != self._queued.get(member_id):
                heappop(self._heap)
            elif current is None:
                heappop(self._heap)
                del self._queued[member_id]
            elif current == ends_at:
                return ends_at, member_id
            else:
                self._queued[member_id] = current
                heapreplace(self._heap, (current, member_id))
        return None

    def over(self, is_over: Callable[[float], bool]) -> list[str]:
        """List the members whose time is over."""
        following = self.next()
        if following is None or not is_over(following[0]):
            return []
        return [member_id for member_id, ends_at in self._ends.items() if is_over(ends_at)]
