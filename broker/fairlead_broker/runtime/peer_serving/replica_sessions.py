"""Fetch sessions (KIP-227): partitions that one follower fetches from this leader, and their pending changes.

A request names only the partitions whose report changed since the previous request. Idle partitions cost nothing:
partitions notify their cursors of changes, cursors enter the session's queue, and a request processes only the queued
cursors. The module belongs to `replica_serving`. All code of the module runs on the event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from fairlead_api.identifiers import Offset, TopicIdPartition
from fairlead_broker.peers.messages import (
    EpochBegin,
    PeerIncarnation,
    ReplicaFetchPartition,
    ReplicaFetchResult,
)
from fairlead_broker.replication import EpochStart, epochs_between
from fairlead_broker.runtime.leading.leader_replica import LeaderReplica

OFFSETS_DELAY_SECONDS: Final = 0.01
"""Number of seconds for which an advanced high watermark waits for further records, to be sent with them in one answer.
Under load the next records arrive sooner, so an acknowledged batch needs no round trip of its own."""
UNSENT: Final = Offset(-1)


class ReplicaCursor:
    """Cursor of a follower in one partition.

    After an answer with records, the cursor rests until the follower names the partition again and thereby confirms
    that the records arrived.
    """

    __slots__ = (
        "_sent_high_watermark",
        "_sent_log_start",
        "_sent_removed",
        "_session",
        "partition",
        "resting",
        "spec",
    )

    def __init__(
        self, session: FollowerSession, partition: LeaderReplica, spec: ReplicaFetchPartition
    ) -> None:
        self.partition = partition
        self.spec = spec
        self._session = session
        self.resting = False
        """Whether the last answer contained records that the follower has not confirmed yet."""
        self._sent_high_watermark: Offset | None = UNSENT
        self._sent_log_start = UNSENT
        self._sent_removed = UNSENT

    @property
    def has_records(self) -> bool:
        """Whether the log has records that the follower does not have yet."""
        return self.partition.log_end_offset > self.spec.fetch_offset

    def named(self, spec: ReplicaFetchPartition) -> None:
        """Move the cursor to the offset that the follower reports."""
        self.spec = spec
        self.resting = False
        self._session.look_at(self)

    def grown(self) -> None:
        """Queue the cursor for the next answer, because the partition has new records."""
        if not self.resting:
            self._session.look_at(self)
            self._session.wake()

    def offsets_moved(self) -> None:
        """Queue the cursor for an answer after a short delay, because an offset in `offsets_if_new` has moved."""
        if not self.resting:
            self._session.look_at(self)
            self._session.wake_soon()

    def ended(self) -> None:
        """Queue the cursor for the next answer, because this broker no longer leads the partition."""
        self._session.look_at(self)
        self._session.wake()

    def offsets_if_new(self) -> ReplicaFetchResult | None:
        """Return high watermark, log start and `removed` if the follower lacks the current values; None otherwise."""
        partition = self.partition
        sent = self._sent_high_watermark, self._sent_log_start, self._sent_removed
        if sent == (
            partition.known_high_watermark,
            partition.log_start_offset,
            partition.log.cleaning.lacks_below,
        ):
            return None
        return self._result(())

    def records(self, data: memoryview) -> ReplicaFetchResult:
        """Return an answer with records; the cursor rests until the follower names the partition again."""
        self.resting = True
        return self._result((data,))

    def skipped(self, next_offset: Offset) -> ReplicaFetchResult:
        """Return an answer that makes the follower skip records accepted as lost.

        Followers of an older release do not support accepted losses: they ignore the answer and stay at the lost
        records.
        """
        return self._result((), next_offset)

    def _result(self, data: tuple[memoryview, ...], next_offset: Offset | None = None) -> ReplicaFetchResult:
        partition = self.partition
        lost: Sequence[EpochStart] = ()
        if next_offset is not None:
            lost = epochs_between(partition.log.leader_epochs, self.spec.fetch_offset, next_offset)
        self._sent_high_watermark = partition.known_high_watermark
        self._sent_log_start = partition.log_start_offset
        self._sent_removed = Offset(partition.log.cleaning.lacks_below)
        return ReplicaFetchResult(
            topic_id=partition.topic_id,
            partition=partition.index,
            leader_epoch=partition.leader_epoch,
            high_watermark=self._sent_high_watermark,
            log_start=self._sent_log_start,
            end_offset=partition.log_end_offset,
            next_offset=next_offset,
            lost_epochs=tuple(epoch_begin(each) for each in lost),
            removed=self._sent_removed,
            deleted_to=partition.log.deleted_to,
            data=data,
        )


def epoch_begin(begin: EpochStart) -> EpochBegin:
    """Convert the start of an epoch to the type used in answers."""
    return EpochBegin(epoch=begin.epoch, start_offset=begin.start_offset)


class FollowerSession:
    """Cursors for one incarnation of a follower broker."""

    __slots__ = ("_hurry", "_parked", "_places", "_ready", "ended", "number", "peer", "turn", "used_at")

    def __init__(self, number: int, peer: PeerIncarnation, now: float) -> None:
        self.number = number
        self.peer = peer
        self.used_at = now
        """Monotonic time of the last request."""
        self.ended = False
        self.turn = 0
        """Sequence number that the next request must have."""
        self._places: dict[TopicIdPartition, ReplicaCursor] = {}
        self._ready: dict[ReplicaCursor, None] = {}
        self._parked: asyncio.Future[None] | None = None
        self._hurry: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._places)

    def goes_on(self, peer: PeerIncarnation, sequence: int) -> bool:
        """Return whether a request is the next request of this session, and advance the sequence."""
        if self.ended or peer != self.peer or sequence != self.turn:
            return False
        self.turn += 1
        return True

    # -- places

    def name(self, partition: LeaderReplica, spec: ReplicaFetchPartition) -> None:
        """Move the cursor of a partition to the position that the follower reports."""
        key = spec.key
        place = self._places.get(key)
        if place is None or place.partition is not partition:
            self.drop(key)
            place = self._places[key] = ReplicaCursor(self, partition, spec)
            partition.leadership.add_place(place)
        place.named(spec)

    def drop(self, key: TopicIdPartition) -> None:
        """Drop the cursor of a partition until the follower names the partition again."""
        place = self._places.pop(key, None)
        if place is not None:
            self._ready.pop(place, None)
            place.partition.leadership.remove_place(place)

    def end(self) -> None:
        """Drop all cursors of the session, and answer a waiting fetch."""
        self.ended = True
        for key in tuple(self._places):
            self.drop(key)
        self.wake()

    def look_at(self, place: ReplicaCursor) -> None:
        """Queue a cursor for the next answer."""
        self._ready[place] = None

    def ready(self) -> list[ReplicaCursor]:
        """Return the queued cursors in queue order."""
        return list(self._ready)

    def considered(self, place: ReplicaCursor) -> None:
        """Remove a cursor from the queue."""
        self._ready.pop(place, None)

    # -- waiting

    def wake(self) -> None:
        """Answer the waiting fetch of the session, if any."""
        if self._parked is not None and not self._parked.done():
            self._parked.set_result(None)

    def wake_soon(self) -> None:
        """Answer the waiting fetch after a short delay, in which further records may arrive."""
        if self._parked is not None and self._hurry is None:
            self._hurry = asyncio.get_running_loop().call_later(OFFSETS_DELAY_SECONDS, self.wake)

    async def wait(self, seconds: float) -> None:
        """Wait until the session is woken, or for at most this many seconds."""
        loop = asyncio.get_running_loop()
        parked = self._parked = loop.create_future()
        timer = loop.call_later(seconds, self.wake)
        try:
            await parked
        finally:
            timer.cancel()
            if self._parked is parked:
                self._parked = None
            if self._hurry is not None:
                self._hurry.cancel()
                self._hurry = None
