"""Deadlines of a group's members: sessions, rebalance timeouts, and the time of the next heartbeat.

Deadlines are not stored: a coordinator that takes over a group restarts every timeout at its full length. A heartbeat
moves the session deadline immediately, without a write to the store.

Every heartbeat reply contains the time until the next heartbeat. With a fixed interval of five seconds, the heartbeats
of 10,000 members would use a third of a core on each broker. With a longer interval, a revoked partition would not be
assigned to its next member within a second.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from heapq import heappop, heappush, heapreplace
from math import inf
from typing import Final
from zlib import crc32

from fairlead_broker.groups import rules
from fairlead_broker.groups.holdings import Holding, as_partitions, is_exactly
from fairlead_broker.groups.messages import JOIN_EPOCH, Heartbeat, HeartbeatReply
from fairlead_broker.registry.group_records import MemberRecord

HEARTBEAT_INTERVAL_MS: Final = 5_000
"""Milliseconds between two heartbeats of a settled member, unless a third of its session timeout is shorter."""
HEARTBEATS_PER_SECOND_MAX: Final = 200
"""Maximum number of heartbeats per second from all settled members that one broker coordinates. Each heartbeat
takes about 0.85 ms at this rate, so all heartbeats together use less than a fifth of a core. With more members, the
interval of each member grows.
"""
HASTY_INTERVAL_MS: Final = 500
"""Milliseconds between two heartbeats of a member that is releasing or receiving partitions."""


class KnownAssignments:
    """Members that have confirmed their last written assignment."""

    __slots__ = ("_members",)

    def __init__(self) -> None:
        self._members: set[str] = set()

    def note(self, heartbeat: Heartbeat, written: MemberRecord | None) -> None:
        """Record whether a heartbeat confirms the member's written assignment. A joining member has no assignment."""
        if heartbeat.member_epoch == JOIN_EPOCH:
            self._members.discard(heartbeat.member_id)
        elif (
            heartbeat.owned is not None
            and written is not None
            and heartbeat.member_epoch == written.epoch
            and is_exactly(heartbeat.owned, written.assigned)
        ):
            self._members.add(heartbeat.member_id)

    def forget(self, member_id: str) -> None:
        """Record that the written assignment of a member has changed."""
        self._members.discard(member_id)

    def needs_assignment(self, heartbeat: Heartbeat, record: MemberRecord) -> bool:
        """Return whether the reply must include the assignment in the record, even without a change."""
        if heartbeat.owned is None:
            return heartbeat.member_id not in self._members
        is_full = heartbeat.subscription is not None or heartbeat.member_epoch == JOIN_EPOCH
        return is_full or not is_exactly(heartbeat.owned, record.assigned)


class Deadlines:
    """End times by member id, in monotonic seconds.

    An end time is moved often and reached rarely, so moving it changes only a dictionary entry. The heap is corrected
    when the old end time is reached.
    """

    __slots__ = ("_ends", "_heap", "_queued")

    def __init__(self) -> None:
        self._ends: dict[str, float] = {}
        self._heap: list[tuple[float, str]] = []
        self._queued: dict[str, float] = {}
        """Time of the valid heap entry of each member, never later than the member's end time. The heap entry of a
        member is kept after the member has left, so that repeated leaving and joining does not fill the heap.
        """

    def set(self, member_id: str, ends_at: float) -> None:
        """Set or move the end time of a member."""
        self._ends[member_id] = ends_at
        queued = self._queued.get(member_id)
        if queued is None or ends_at < queued:
            self._queued[member_id] = ends_at
            heappush(self._heap, (ends_at, member_id))

    def drop(self, member_id: str) -> None:
        """Drop the end time of a member."""
        self._ends.pop(member_id, None)

    def end_of(self, member_id: str) -> float:
        """Return the end time of a member. The member must have an end time."""
        return self._ends[member_id]

    def next(self) -> tuple[float, str] | None:
        """Return the earliest end time and its member, or None."""
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
        """Return the members whose end time has passed."""
        following = self.next()
        if following is None or not is_over(following[0]):
            return []
        return [member_id for member_id, ends_at in self._ends.items() if is_over(ends_at)]


_AFTER_SESSION_END_MS: Final = 50
"""Time in milliseconds that is allowed for writing the turn in which a silent member is removed."""
_SPREAD_MS: Final = 400
"""Milliseconds over which the members' heartbeats are spread after a silent member's session has ended."""


class Pacing:
    """Deadlines of sessions and rebalance timeouts. `written` maps member ids to stored records."""

    __slots__ = ("_revocations", "_sessions", "_written", "rest_ms")

    def __init__(self, written: Mapping[str, MemberRecord], now: float) -> None:
        self._written = written
        self.rest_ms = HEARTBEAT_INTERVAL_MS
        """Milliseconds between two heartbeats of a settled member. The interval grows with the number of members that
        the broker coordinates."""
        self._sessions = Deadlines()
        self._revocations = Deadlines()
        for member_id, record in written.items():
            self.on_heartbeat(member_id, record, now)
            self.note(member_id, record, None, now)

    def on_heartbeat(self, member_id: str, record: MemberRecord, now: float) -> None:
        """Restart the session timeout of a member."""
        self._sessions.set(member_id, now + record.session_timeout_ms / 1000)

    def note(
        self, member_id: str, record: MemberRecord | None, revoking_before: Holding | None, now: float
    ) -> None:
        """Apply a member's written record. The rebalance timeout starts when the member has partitions to release."""
        if record is None:
            self.forget(member_id)
        elif not record.revoking:
            self._revocations.drop(member_id)
        elif record.revoking != revoking_before:
            self._revocations.set(member_id, now + record.rebalance_timeout_ms / 1000)

    def forget(self, member_id: str) -> None:
        """Drop the deadlines of a removed member."""
        self._sessions.drop(member_id)
        self._revocations.drop(member_id)

    def silent(self, now: float) -> list[str]:
        """Return the members whose sessions have ended."""
        return self._sessions.over(lambda ends_at: rules.session_is_over(ends_at, now))

    def overdue(self, now: float) -> list[str]:
        """Return the members that did not release their partitions within the rebalance timeout."""
        return self._revocations.over(lambda ends_at: rules.revocation_is_overdue(ends_at, now))

    def next_end(self) -> float:
        """Return the time at which the next session or rebalance timeout ends, or infinity if there is none."""
        session, revocation = self._sessions.next(), self._revocations.next()
        return min(inf if session is None else session[0], inf if revocation is None else revocation[0])

    def heartbeats_missed(self, member_id: str, record: MemberRecord, now: float) -> float:
        """Return the number of heartbeats that a member has missed since this coordinator took over the group."""
        silent_ms = (now - self._sessions.end_of(member_id)) * 1000 + record.session_timeout_ms
        return silent_ms / heartbeat_interval_ms(record, self.rest_ms)

    def interval_ms(self, member_id: str, record: MemberRecord, now: float, *, hasty: bool) -> int:
        """Return the milliseconds until a member's next heartbeat. If `hasty` is set, a shorter interval is used.

        If another member has missed heartbeats, the next heartbeat is due just after the end of that member's
        session, so that the member of this reply can take over the partitions.
        """
        interval = heartbeat_interval_ms(record, self.rest_ms)
        if hasty:
            return min(interval, HASTY_INTERVAL_MS)
        nearest = self._sessions.next()
        assert nearest is not None, "this member has just sent a heartbeat"
        ends_at, silent_id = nearest
        silent, left_ms = self._written.get(silent_id), (ends_at - now) * 1000
        if silent is None or left_ms > silent.session_timeout_ms / 2:
            return interval
        # The session may have ended in a turn that has not yet been decided or written.
        after_end_ms = max(0, int(left_ms)) + _AFTER_SESSION_END_MS
        return min(interval, after_end_ms + crc32(member_id.encode()) % _SPREAD_MS)


def rest_interval_ms(members: int) -> int:
    """Return the milliseconds between heartbeats of a settled member on a broker that coordinates `members` members."""
    return max(HEARTBEAT_INTERVAL_MS, members * 1000 // HEARTBEATS_PER_SECOND_MAX)


def heartbeat_interval_ms(record: MemberRecord, rest_ms: int) -> int:
    """Return the heartbeat interval of a settled member, which is at most a third of the session timeout."""
    return min(rest_ms, record.session_timeout_ms // 3)


def answered(record: MemberRecord, interval_ms: int, *, full: bool) -> HeartbeatReply:
    """Return the reply to a heartbeat of a member with this record, with the assignment if `full` is set."""
    assert record.epoch > JOIN_EPOCH, "a member is at the epoch of a target"
    assignment = as_partitions(record.assigned) if full else None
    return HeartbeatReply(record.epoch, assignment, interval_ms, record.session_timeout_ms)
