"""Compute the latest time at which a replica had every record of the leader.

The leader keeps a ring of pairs (time, end of the leader's log at that time). The result is the latest time at which
the log end was not above the replica's counted offset, below which the replica's records count as replicated. A replica
whose counted offset is the current end of the leader's log is caught up now, so the replicas of an idle partition stay
in sync.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from fairlead_api.identifiers import Offset

ENTRIES_PER_LAG: Final = 100
"""Maximum number of ring entries per lag time. Entries closer together than this are left out, which can only make a
replica appear further behind than it is.
"""


class EndOffsets:
    """Ring of the ends of the leader's log during the most recent lag time."""

    __slots__ = ("_end", "_entries", "_lag_seconds", "_next_at", "_step_seconds")

    def __init__(self, end: Offset, now: float, lag_seconds: float) -> None:
        self._end = end
        self._lag_seconds = lag_seconds
        self._step_seconds = lag_seconds / ENTRIES_PER_LAG
        self._entries: deque[tuple[float, Offset]] = deque([(now, end)])
        self._next_at = now + self._step_seconds

    def appended(self, end: Offset, now: float) -> None:
        """Record that the leader's log grew to `end`. The previous end of the log was valid until `now`."""
        if now >= self._next_at:
            self.note(now)
        self._end = end

    def note(self, now: float) -> None:
        """Add the current log end, and drop entries older than the lag time."""
        entries = self._entries
        entries.append((now, self._end))
        self._next_at = now + self._step_seconds
        oldest = now - self._lag_seconds
        while entries[0][0] < oldest:
            entries.popleft()

    def caught_up_at(self, counted: Offset, now: float) -> float | None:
        """Return the time at which a replica last had every record, or None if that was more than the lag time ago."""
        if counted >= self._end:
            return now
        if counted < self._entries[0][1]:
            return None
        # Log ends only grow, and the log end of the first entry is not above the offset.
        return next(time for time, end in reversed(self._entries) if end <= counted)
