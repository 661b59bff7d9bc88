"""The partitions that one follower broker fetches from this leader, and which of them have news (KIP-227).

A request names only the partitions whose report changed since the previous request, so an idle partition costs nothing,
and a request over a thousand partitions touches only the few with news: partitions notify their cursors, and cursors
ask to be considered. Belongs to `replica_serving`. Everything runs on the event loop.
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
"""Time for which a moved high watermark waits for records to travel with: under load the next records come sooner, and
an acknowledged batch does not cost a round trip of its own."""
UNTOLD: Final = Offset(-1)


class ReplicaCursor:
    """A follower's cursor in one partition.

    It rests from an answer with records until the follower names it again: only then is it known that the records
    arrived.
    """

    __slots__ = ("_session", "_told_high_watermark", "_told_log_start", "partition", "resting", "spec")

    def __init__(
        self, session: FollowerSession, partition: LeaderReplica, spec: ReplicaFetchPartition
    ) -> None:
        self.partition = partition
        self.spec = spec
        self._session = session
        self.resting = False
        """Whether it was answered with records that the follower has not confirmed yet."""
        self._told_high_watermark: Offset | None = UNTOLD
        self._told_log_start = UNTOLD

    @property
    def has_records(self) -> bool:
        """Whether the log has more records than the follower."""
        return self.partition.log_end_offset > self.spec.fetch_offset

    def named(self, spec: ReplicaFetchPartition) -> None:
        """Move the cursor to the follower's reported offset."""
        self.spec = spec
        self.resting = False
        self._session.look_at(self)

    def grown(self) -> None:
        """Ask to be considered: the partition has new records."""
        if not self.resting:
            self._session.look_at(self)
            self._session.wake()

    def offsets_moved(self) -> None:
        """Ask to be considered soon: the high watermark or the log start moved."""
        if not self.resting:
            self._session.look_at(self)
            self._session.wake_soon()

    def ended(self) -> None:
        """Ask to be considered: this broker no longer leads the partition."""
        self._session.look_at(self)
        self._session.wake()

    def offsets_if_new(self) -> ReplicaFetchResult | None:
        """Return high watermark and log start if the follower lacks one of them; None if it has both."""
        partition = self.partition
        high_watermark, log_start = partition.known_high_watermark, partition.log_start_offset
        if high_watermark == self._told_high_watermark and log_start == self._told_log_start:
            return None
        return self._result(())

    def records(self, data: memoryview) -> ReplicaFetchResult:
        """Return an answer with records; the cursor rests until the follower names it."""
        self.resting = True
        return self._result((data,))

    def skipped(self, next_offset: Offset) -> ReplicaFetchResult:
        """Return an answer that makes the follower skip records accepted as lost.

        Followers of older releases keep waiting.
        """
        return self._result((), next_offset)

    def _result(self, data: tuple[memoryview, ...], next_offset: Offset | None = None) -> ReplicaFetchResult:
        partition = self.partition
        lost: Sequence[EpochStart] = ()
        if next_offset is not None:
            lost = epochs_between(partition.log.leader_epochs, self.spec.fetch_offset, next_offset)
        self._told_high_watermark = partition.known_high_watermark
        self._told_log_start = partition.log_start_offset
        return ReplicaFetchResult(
            topic_id=partition.topic_id,
            partition=partition.index,
            leader_epoch=partition.leader_epoch,
            high_watermark=self._told_high_watermark,
            log_start=self._told_log_start,
            end_offset=partition.log_end_offset,
            next_offset=next_offset,
            lost_epochs=tuple(epoch_begin(each) for each in lost),
            data=data,
        )


def epoch_begin(begin: EpochStart) -> EpochBegin:
    """Convert the start of an epoch for an answer."""
    return EpochBegin(epoch=begin.epoch, start_offset=begin.start_offset)


class FollowerSession:
    """The cursors of one incarnation of a follower broker."""

    __slots__ = ("_hurry", "_parked", "_places", "_ready", "ended", "number", "peer", "turn", "used_at")

    def __init__(self, number: int, peer: PeerIncarnation, now: float) -> None:
        self.number = number
        self.peer = peer
        self.used_at = now
        """Time of the last request, monotonic."""
        self.ended = False
        self.turn = 0
        """Sequence that the next request must have."""
        self._places: dict[TopicIdPartition, ReplicaCursor] = {}
        self._ready: dict[ReplicaCursor, None] = {}
        self._parked: asyncio.Future[None] | None = None
        self._hurry: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._places)

    def goes_on(self, peer: PeerIncarnation, sequence: int) -> bool:
        """Return whether a request is the next one of this session, not an earlier one."""
        if self.ended or peer != self.peer or sequence != self.turn:
            return False
        self.turn += 1
        return True

    # -- places

    def name(self, partition: LeaderReplica, spec: ReplicaFetchPartition) -> None:
        """Move the cursor of a partition to the follower's report."""
        key = spec.key
        place = self._places.get(key)
        if place is None or place.partition is not partition:
            self.drop(key)
            place = self._places[key] = ReplicaCursor(self, partition, spec)
            partition.leadership.add_place(place)
        place.named(spec)

    def drop(self, key: TopicIdPartition) -> None:
        """Drop a partition until it is named again."""
        place = self._places.pop(key, None)
        if place is not None:
            self._ready.pop(place, None)
            place.partition.leadership.remove_place(place)

    def end(self) -> None:
        """Drop all partitions; a waiting fetch is answered."""
        self.ended = True
        for key in tuple(self._places):
            self.drop(key)
        self.wake()

    def look_at(self, place: ReplicaCursor) -> None:
        """Consider a cursor for the next answer."""
        self._ready[place] = None

    def ready(self) -> list[ReplicaCursor]:
        """Return the cursors to consider, the longest waiting first."""
        return list(self._ready)

    def considered(self, place: ReplicaCursor) -> None:
        """Drop a cursor from those to consider until it asks again."""
        self._ready.pop(place, None)

    # -- waiting

    def wake(self) -> None:
        """Answer the waiting fetch, if there is one."""
        if self._parked is not None and not self._parked.done():
            self._parked.set_result(None)

    def wake_soon(self) -> None:
        """Answer the waiting fetch shortly, with the records until then."""
        if self._parked is not None and self._hurry is None:
            self._hurry = asyncio.get_running_loop().call_later(OFFSETS_DELAY_SECONDS, self.wake)

    async def wait(self, seconds: float) -> None:
        """Wait until there is a cursor to consider, at most for this long."""
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
