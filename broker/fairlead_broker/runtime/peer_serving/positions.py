"""Positions of partitions: log start, high watermark, age of a record, offset at a time.

The positions are used by group coordinators and by calls about offsets, for partitions that any broker leads. Each
leader receives one request for all of its partitions; positions of partitions that this broker leads need no call. If a
leader does not answer, only its partitions get a problem; other partitions are not delayed.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple, TypeAlias

from fairlead_api.batch.header import read_header
from fairlead_api.identifiers import (
    BrokerId,
    LeaderEpoch,
    Offset,
    PartitionIndex,
    TimestampUs,
    TopicId,
    TopicIdPartition,
)
from fairlead_api.problems import ProblemError
from fairlead_broker.log import PartitionLog
from fairlead_broker.peers.peers import POSITIONS_SECONDS_MAX, Peers, PeerUnavailable
from fairlead_broker.peers.positions import (
    MirrorProgress,
    PositionAsked,
    PositionFound,
    PositionsRequest,
)
from fairlead_broker.registry.metadata import ClusterMetadata
from fairlead_broker.runtime import refusals
from fairlead_broker.runtime.engine.disk_pool import DiskPool
from fairlead_broker.runtime.leading.leader_replica import LeaderReplica

REMEMBERED_SECONDS: Final = 60.0
"""Number of seconds for which an append time is cached. If compaction removes the batch, the next batch is younger, and
the reported lag may be too high until the cached time expires."""
REMEMBERED_MAX: Final = 50_000
"""Maximum number of cached append times, about 10 MiB."""


class AppendTime(NamedTuple):
    """Key of a cached append time: an offset in one leader's log.

    Another leader may have a different batch at this offset.
    """

    topic_id: TopicId
    partition: PartitionIndex
    leader_epoch: LeaderEpoch
    offset: Offset


class AppendTimes:
    """Cache of append times. The whole cache is cleared when its first entry is too old or when it is full."""

    __slots__ = ("_began", "_times")

    def __init__(self) -> None:
        self._times: dict[AppendTime, TimestampUs] = {}
        self._began = 0.0

    def get(self, place: AppendTime, now: float) -> TimestampUs | None:
        """Return a cached append time; None if the append time is not cached. `now` is in monotonic seconds."""
        if now - self._began >= REMEMBERED_SECONDS:
            self._times.clear()
        return self._times.get(place)

    def put(self, place: AppendTime, append_time_us: TimestampUs, now: float) -> None:
        """Cache an append time that was just read."""
        if len(self._times) >= REMEMBERED_MAX:
            self._times.clear()
        if not self._times:
            self._began = now
        self._times[place] = append_time_us


ASKED_AT_ONCE: Final = 1_000
"""Maximum number of partitions in one request to a leader."""
BEYOND_SECONDS_MAX: Final = 1.0
"""Maximum number of seconds for which a commit waits for the check that its offsets exist."""


class Positions:
    """Returns positions of partitions that this broker leads, and requests other positions from their leaders."""

    def __init__(
        self,
        find: Callable[[TopicId, PartitionIndex], LeaderReplica],
        copy_of: Callable[[TopicIdPartition], PartitionLog | None],
        metadata: ClusterMetadata,
        peers: Peers,
        pool: DiskPool,
        spawn: Callable[[Coroutine[Any, Any, None], str], asyncio.Task[None]],
    ) -> None:
        """`find` raises the problem that explains why this broker does not lead a partition.

        `copy_of` returns this broker's log of a partition, if any.
        """
        self._find = find
        self._copy_of = copy_of
        self._metadata = metadata
        self._peers = peers
        self._pool = pool
        self._spawn = spawn
        self._append_times = AppendTimes()
        self._gathered: list[
            tuple[Sequence[TopicIdPartition], asyncio.Future[Mapping[TopicIdPartition, PositionFound]]]
        ] = []
        self._asking = False

    async def answer(self, asked: Sequence[PositionAsked]) -> list[PositionFound]:
        """Return the positions of partitions that this broker leads, in the order of the requests."""
        return [await self._answer(each) for each in asked]

    async def ask(
        self, asked: Sequence[PositionAsked], seconds_max: float = POSITIONS_SECONDS_MAX
    ) -> list[PositionFound]:
        """Request positions from the partitions' leaders; return one entry for each request, in order."""
        found: list[PositionFound | None] = [None] * len(asked)
        by_leader: dict[BrokerId, list[int]] = defaultdict(list)
        for at, each in enumerate(asked):
            leader = self._leader(each.key)
            if leader is None:
                found[at] = _refused(each, refusals.no_leader(self._name(each), each.partition))
            else:
                by_leader[leader].append(at)

        async def ask(leader: BrokerId, places: Sequence[int]) -> None:
            answers = await self._ask(leader, [asked[at] for at in places], seconds_max)
            for at, answer in zip(places, answers, strict=True):
                found[at] = answer

        await asyncio.gather(
            *(
                ask(leader, places[at : at + ASKED_AT_ONCE])
                for leader, places in by_leader.items()
                for at in range(0, len(places), ASKED_AT_ONCE)
            )
        )
        return [each for each in found if each is not None]

    async def beyond(
        self, offsets: Mapping[TopicIdPartition, Offset]
    ) -> dict[TopicIdPartition, PositionFound]:
        """Return the partitions in which an offset lies above the high watermark, with their positions.

        No call to the leader is needed if this broker's copy contains the offset. If the leader does not answer, the
        offset passes the check, because a group must be able to commit without the leader.
        """
        doubtful = [key for key, offset in offsets.items() if offset > self._known_end(key)]
        if not doubtful:
            return {}
        try:
            async with asyncio.timeout(BEYOND_SECONDS_MAX):
                found = await self._ask_with_others(doubtful)
        except TimeoutError:
            return {}
        return {
            key: each
            for key in doubtful
            if (each := found[key]).problem is None and offsets[key] > each.high_watermark
        }

    async def _ask_with_others(
        self, keys: Sequence[TopicIdPartition]
    ) -> Mapping[TopicIdPartition, PositionFound]:
        """Request positions in one request together with other waiting callers, because commits are many and small."""
        own = self._peers.own.broker
        if all(self._leader(key) == own for key in keys):
            return dict(zip(keys, await self.answer(_where(keys)), strict=True))
        found: asyncio.Future[Mapping[TopicIdPartition, PositionFound]]
        found = asyncio.get_running_loop().create_future()
        self._gathered.append((keys, found))
        if not self._asking:
            self._asking = True
            self._spawn(self._ask_gathered(), "positions")
        return await found

    async def _ask_gathered(self) -> None:
        try:
            while self._gathered:
                gathered, self._gathered = self._gathered, []
                keys = list(dict.fromkeys(key for keys, _ in gathered for key in keys))
                answers = await self.ask(_where(keys), seconds_max=BEYOND_SECONDS_MAX)
                found = dict(zip(keys, answers, strict=True))
                for _, waiting in gathered:
                    # The calling task may have been cancelled.
                    if not waiting.done():
                        waiting.set_result(found)
        finally:
            self._asking = False

    def _known_end(self, key: TopicIdPartition) -> Offset:
        """Return the end of this broker's copy if the broker follows the partition; 0 otherwise."""
        if self._leader(key) == self._peers.own.broker:
            return Offset(0)
        log = self._copy_of(key)
        return Offset(0) if log is None else log.end_offset

    async def _ask(
        self, leader: BrokerId, asked: Sequence[PositionAsked], seconds_max: float
    ) -> Sequence[PositionFound]:
        if leader == self._peers.own.broker:
            return await self.answer(asked)
        try:
            return await self._peers.positions(leader, PositionsRequest(partitions=list(asked)), seconds_max)
        except PeerUnavailable as unavailable:
            problem = ProblemError("no_leader", f"the leader does not answer: {unavailable}")
        except ProblemError as refused:
            problem = refused
        return [_refused(each, problem) for each in asked]

    def _leader(self, key: TopicIdPartition) -> BrokerId | None:
        record = self._metadata.partitions(key.topic_id).get(key.partition)
        leader = None if record is None else record.value.leader
        return None if leader is None else leader.broker

    async def _answer(self, asked: PositionAsked) -> PositionFound:
        try:
            partition = self._find(asked.topic_id, asked.partition)
            high_watermark, log_start = partition.high_watermark, partition.log_start_offset
            stable = partition.last_stable_offset
            found_offset = None
            if asked.timestamp_us is not None:
                found_offset = await self._since(partition, asked.timestamp_us, high_watermark)
            offset = log_start if asked.from_start else asked.offset
            append_time_us = None
            if offset is not None:
                append_time_us = await self._append_time(partition, max(offset, log_start), high_watermark)
        except ProblemError as problem:
            return _refused(asked, problem)
        begun = partition.log.epoch_before(high_watermark) if asked.with_end else None
        return PositionFound(
            topic_id=asked.topic_id,
            partition=asked.partition,
            log_start=log_start,
            high_watermark=high_watermark,
            last_stable_offset=stable if stable < high_watermark else None,
            append_time_us=append_time_us,
            found_offset=found_offset,
            last_epoch=None if begun is None else begun.epoch,
            is_drained=asked.with_end and partition.is_drained,
            mirror=_mirrored(partition) if asked.with_end else None,
        )

    async def _since(
        self, partition: LeaderReplica, timestamp_us: TimestampUs, limit: Offset
    ) -> Offset | None:
        found = await self._pool.submit(partition.offset_for_time, timestamp_us)
        return None if found is None or found[0] >= limit else found[0]

    async def _append_time(
        self, partition: LeaderReplica, offset: Offset, high_watermark: Offset
    ) -> TimestampUs | None:
        """Return the append time of the batch that contains an offset. Only the batch's header is read."""
        if offset >= high_watermark:
            return None
        now = asyncio.get_running_loop().time
        place = AppendTime(partition.topic_id, partition.index, partition.leader_epoch, offset)
        if (remembered := self._append_times.get(place, now())) is not None:
            return remembered
        read = partition.read_cached(offset, 1)
        if read is None:
            read = await self._pool.submit(partition.read, offset, 1, high_watermark)
        if not read.data:
            return None
        append_time_us = TimestampUs(read_header(read.data).append_time_us)
        self._append_times.put(place, append_time_us, now())
        return append_time_us

    def _name(self, asked: PositionAsked) -> str:
        return self._metadata.topic_name(asked.topic_id) or asked.topic_id


def _where(keys: Sequence[TopicIdPartition]) -> list[PositionAsked]:
    """Return requests for the log start and high watermark of each partition."""
    return [PositionAsked(topic_id=key.topic_id, partition=key.partition) for key in keys]


def _refused(asked: PositionAsked, problem: ProblemError) -> PositionFound:
    return PositionFound(
        topic_id=asked.topic_id, partition=asked.partition, problem=dict(problem.to_document())
    )


Position: TypeAlias = Literal["earliest", "latest", "newest"] | int
"""Position in a log: the log start, the high watermark, or the first record at or after a time in microseconds."""


async def look_up(
    partition: LeaderReplica, position: Position, pool: DiskPool, *, committed: bool = False
) -> tuple[Offset | None, TimestampUs | None]:
    """Return the offset at a position, with the record's time if the position is a time.

    `committed`: whether the log is read up to the last stable offset instead of the high watermark. `newest` stands for
    the latest time of a record. The result is (None, None) when no record below the end is at or after the time. Raises
    `offset_not_available` for `latest` while the high watermark is unknown.
    """
    if position == "earliest":
        return partition.log_start_offset, None
    if position == "latest":
        return partition.last_stable_offset if committed else partition.high_watermark, None
    limit = partition.last_stable_offset if committed else partition.high_watermark
    if position == "newest":
        found = await pool.submit(partition.newest_record)
    else:
        found = await pool.submit(partition.offset_for_time, TimestampUs(position))
    if found is None or found[0] >= limit:
        return None, None
    return found


def _mirrored(partition: LeaderReplica) -> MirrorProgress | None:
    if partition.mirror is None:
        return None
    return partition.copying.progress(asyncio.get_running_loop().time())
