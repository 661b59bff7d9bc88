"""What one follower broker takes from this leader: its partitions, and which of them have something new (KIP-227).

A request names only the partitions whose place changed since the one before, so an idle partition costs nothing, and
a request over a thousand partitions touches those few where something happened: partitions tell their places, places
get themselves looked at. Belongs to `replica_serving`. Everything runs on the event loop.
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
"""How long a moved high watermark waits for records to travel with: under load the next ones are there sooner, and
each acknowledged batch does not cost a round trip of its own."""
UNTOLD: Final = Offset(-1)


class ReplicaCursor:
    """A follower's cursor in one partition.

    It rests from an answer with records until the follower names it again: only then is it known that they arrived.
    """

    __slots__ = ("_session", "_told_high_watermark", "_told_log_start", "partition", "resting", "spec")

    def __init__(
        self, session: FollowerSession, partition: LeaderReplica, spec: ReplicaFetchPartition
    ) -> None:
        self.partition = partition
        self.spec = spec
        self._session = session
        self.resting = False
        """Whether it was answered with records that the follower has not spoken of since."""
        self._told_high_watermark: Offset | None = UNTOLD
        self._told_log_start = UNTOLD

    @property
    def has_records(self) -> bool:
        """Whether there is more than the follower has."""
        return self.partition.log_end_offset > self.spec.fetch_offset

    def named(self, spec: ReplicaFetchPartition) -> None:
        """The follower stands there now."""
        self.spec = spec
        self.resting = False
        self._session.look_at(self)

    def grown(self) -> None:
        """The partition has more."""
        if not self.resting:
            self._session.look_at(self)
            self._session.wake()

    def offsets_moved(self) -> None:
        """The high watermark or the log start moved."""
        if not self.resting:
            self._session.look_at(self)
            self._session.wake_soon()

    def ended(self) -> None:
        """This broker leads the partition no more."""
        self._session.look_at(self)
        self._session.wake()

    def offsets_if_new(self) -> ReplicaFetchResult | None:
        """What the follower was not told yet of high watermark and log start; None if it knows."""
        partition = self.partition
        high_watermark, log_start = partition.known_high_watermark, partition.log_start_offset
        if high_watermark == self._told_high_watermark and log_start == self._told_log_start:
            return None
        return self._result(())

    def records(self, data: memoryview) -> ReplicaFetchResult:
        """Records for the follower, which is looked at again when it names the partition."""
        self.resting = True
        return self._result((data,))

    def skipped(self, next_offset: Offset) -> ReplicaFetchResult:
        """A loss that was accepted, for the follower to pass. One of a release before does not, and waits for more."""
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
    """Say when and where an epoch of the own log began."""
    return EpochBegin(epoch=begin.epoch, start_offset=begin.start_offset)


class FollowerSession:
    """The places of one life of a follower broker."""

    __slots__ = ("_hurry", "_parked", "_places", "_ready", "ended", "number", "peer", "turn", "used_at")

    def __init__(self, number: int, peer: PeerIncarnation, now: float) -> None:
        self.number = number
        self.peer = peer
        self.used_at = now
        """When it was asked last, monotonic."""
        self.ended = False
        self.turn = 0
        """Sequence that the next request has to have."""
        self._places: dict[TopicIdPartition, ReplicaCursor] = {}
        self._ready: dict[ReplicaCursor, None] = {}
        self._parked: asyncio.Future[None] | None = None
        self._hurry: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._places)

    def goes_on(self, peer: PeerIncarnation, sequence: int) -> bool:
        """Whether a request is the next of this session; one that was sent before is not."""
        if self.ended or peer != self.peer or sequence != self.turn:
            return False
        self.turn += 1
        return True

    # -- places

    def name(self, partition: LeaderReplica, spec: ReplicaFetchPartition) -> None:
        """Take over where the follower stands in a partition."""
        key = spec.key
        place = self._places.get(key)
        if place is None or place.partition is not partition:
            self.drop(key)
            place = self._places[key] = ReplicaCursor(self, partition, spec)
            partition.leadership.add_place(place)
        place.named(spec)

    def drop(self, key: TopicIdPartition) -> None:
        """Forget a partition until it is named again."""
        place = self._places.pop(key, None)
        if place is not None:
            self._ready.pop(place, None)
            place.partition.leadership.remove_place(place)

    def end(self) -> None:
        """Forget everything; a fetch that waits is answered."""
        self.ended = True
        for key in tuple(self._places):
            self.drop(key)
        self.wake()

    def look_at(self, place: ReplicaCursor) -> None:
        """Consider a cursor for the next answer."""
        self._ready[place] = None

    def ready(self) -> list[ReplicaCursor]:
        """Cursors to consider, the longest waiting first."""
        return list(self._ready)

    def considered(self, place: ReplicaCursor) -> None:
        """Consider a place no more until something happens to it."""
        self._ready.pop(place, None)

    # -- waiting

    def wake(self) -> None:
        """Answer the fetch that waits, if one does."""
        if self._parked is not None and not self._parked.done():
            self._parked.set_result(None)

    def wake_soon(self) -> None:
        """Answer the waiting fetch shortly, with the records until then."""
        if self._parked is not None and self._hurry is None:
            self._hurry = asyncio.get_running_loop().call_later(OFFSETS_DELAY_SECONDS, self.wake)

    async def wait(self, seconds: float) -> None:
        """Wait until there is something to consider, or for at most so long."""
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
