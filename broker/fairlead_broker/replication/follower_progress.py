"""Progress of followers as known to their leader: the reported offsets, and the time of the last complete copy.

The leader's state machine keeps one `KnownFollower` for each follower that has reported in the current leader epoch.
The leader also keeps a ring of pairs (time, end of the leader's log at that time), from which it computes the latest
time at which a replica had every record: the latest time at which the log end was not above the offset below which the
replica's records count as replicated. If this offset of a replica is the current end of the leader's log, the replica
is caught up now, so the replicas of an idle partition stay in sync.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Final

from fairlead_api.identifiers import BrokerEpoch, Offset
from fairlead_broker.registry.records import DurabilityState
from fairlead_broker.replication.leader_messages import FollowerReport

ENTRIES_PER_LAG: Final = 100
"""Maximum number of ring entries per lag time. Entries closer together than this are left out, which can only make a
replica appear further behind than it is.
"""

PRESENT_SECONDS: Final = 3600.0
"""Seconds since its last fetch for which a follower counts as present when tombstones are removed."""


class KnownFollower:
    """State that a follower's replica has reported in one incarnation and generation.

    Only the leader's state machine changes this state. Within one incarnation, generation and leader epoch, a
    reconciled follower only appends, so a late or repeated report never lowers an offset.
    """

    __slots__ = (
        "broker_epoch",
        "end_offset",
        "fetched_at",
        "generation",
        "left",
        "log_start",
        "synced_offset",
    )

    def __init__(self, report: FollowerReport) -> None:
        self.broker_epoch: BrokerEpoch = report.broker_epoch
        """Incarnation of the reporting broker."""
        self.generation: int = report.generation
        self.end_offset: Offset = report.fetch_offset
        self.synced_offset: Offset = min(report.synced_offset, report.fetch_offset)
        self.log_start: Offset = report.log_start
        self.fetched_at: float = 0.0
        """Monotonic time of the last fetch, in seconds."""
        self.left: bool = False
        """Whether the follower was removed from the isr and has not reported since. Reports from before the removal do
        not prove that the follower is alive.
        """

    def fetched(self, report: FollowerReport) -> None:
        """Apply a later fetch of the same incarnation and generation."""
        self.left = False
        self.end_offset = max(self.end_offset, report.fetch_offset)
        self.log_start = max(self.log_start, report.log_start)
        self.synced(min(report.synced_offset, report.fetch_offset))

    def synced(self, offset: Offset) -> None:
        """Apply a report of the synced offset, which may be above the offset of the last fetch."""
        self.left = False
        if offset > self.synced_offset:
            self.synced_offset = offset
            self.end_offset = max(self.end_offset, offset)

    def counted(self, durability: DurabilityState) -> Offset:
        """Return the offset below which the follower's records count as replicated (rule 4.2)."""
        return self.end_offset if durability is DurabilityState.REPLICATED else self.synced_offset


class EndOffsets:
    """Ring of log ends that the leader had during the most recent lag time."""

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


def removal_limit(high_watermark: Offset | None, followers: Iterable[KnownFollower], now: float) -> Offset:
    """Return the offset below which a leader may remove expired tombstones: all present followers have them."""
    ends = (each.end_offset for each in followers if now - each.fetched_at < PRESENT_SECONDS)
    return min((high_watermark or Offset(0), *ends))
