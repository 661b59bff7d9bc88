"""Fetch calls: whole committed batches of many partitions, and a long poll when too few bytes are available.

Reads try the page cache on the event loop and use the disk pool only for bytes outside the page cache. A call reads
once on arrival, and a second time after it has waited.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial

from fairlead_api.identifiers import Offset, PartitionIndex, TopicId
from fairlead_api.problems import ProblemError
from fairlead_broker.log import LogRead
from fairlead_broker.runtime import refusals
from fairlead_broker.runtime.engine.budget import HeldAnswer
from fairlead_broker.runtime.engine.disk_pool import DiskPool
from fairlead_broker.runtime.leading.leader_replica import LeaderReplica
from fairlead_broker.runtime.leading.long_poll import LongPoll
from fairlead_broker.runtime.meters import BrokerMeters
from fairlead_broker.runtime.requests import FetchResult, FetchSpec, PartitionFetch

CACHED_READ_BYTES = 1 << 20
"""Maximum number of bytes of one read on the event loop. A read of this size takes about 60 us and is sent as one piece
of an answer."""
ON_LOOP_BYTES_MAX = 4 << 20
"""Maximum number of bytes that one call reads on the event loop. Reading them takes about a quarter of a millisecond;
larger reads use the disk pool."""

EPOCH_WAIT_SECONDS_MAX = 1.0
"""Maximum number of seconds for which a fetch that names a later leader epoch waits until this broker's mirror shows
the epoch."""
NEVER_ENOUGH_BYTES = 1 << 62
SKIPPED_BYTES_MAX = 16 << 20
"""Maximum number of bytes of aborted transactions that one call reads in a partition without finding a batch."""

FindPartition = Callable[[TopicId, PartitionIndex], LeaderReplica]


class _Reading:
    """State of reading one partition in a fetch call.

    The first batch of the first partition with records is always returned. A later partition returns nothing in this
    call if its first batch is larger than the remaining bytes of the call.
    """

    __slots__ = (
        "_committed",
        "_data",
        "_future",
        "_high_watermark",
        "_nbytes",
        "_next_offset",
        "_pool",
        "_room",
        "_skipped",
        "_wanted",
        "limit",
        "partition",
    )

    def __init__(
        self,
        partition: LeaderReplica,
        offset: Offset,
        wanted: int,
        room: float,
        pool: DiskPool,
        *,
        committed: bool,
    ) -> None:
        """`wanted`: number of bytes to read; `room`: maximum size of the first batch."""
        self.partition = partition
        self.limit = partition.stable_limit if committed else partition.readable_limit
        self._high_watermark = partition.readable_limit if committed else self.limit
        self._committed = committed
        self._pool = pool
        self._skipped = 0
        self._next_offset = offset
        self._wanted = wanted
        self._room = room
        self._data: list[memoryview] = []
        self._nbytes = 0
        self._future: asyncio.Future[LogRead] | None = None

    @property
    def wants_more(self) -> bool:
        """Whether another read is worthwhile; a read smaller than a full read usually is not."""
        if self._next_offset >= self.limit:
            return False
        if self._data:
            return self._wanted - self._nbytes >= CACHED_READ_BYTES
        return self._room > 0 and self._skipped < SKIPPED_BYTES_MAX

    @property
    def claimed_bytes(self) -> int:
        """Number of this partition's bytes that count towards the call's limit.

        The bytes are already read, or reserved for a read in the disk pool.
        """
        return self._nbytes if self._future is None else max(self._wanted, 1)

    def read_cached(self, on_loop: int) -> int:
        """Read the next batches as long as they are in the page cache; return the number of bytes read."""
        while self._nbytes + self._skipped < on_loop and self.wants_more:
            left = max(min(self._wanted - self._nbytes, CACHED_READ_BYTES), 1)
            read = self.partition.read_cached(self._next_offset, left, self.limit)
            if read is None or not self._take(read):
                break
        return self._nbytes + self._skipped

    def submit(self) -> None:
        """Start a read in the disk pool for the bytes that are not in the page cache."""
        left = max(self._wanted - self._nbytes, 1)
        read = self.partition.read
        if self._committed:
            read = partial(read, committed=True)
        self._future = self._pool.submit(read, self._next_offset, left, self.limit)

    async def finish(self) -> FetchResult | ProblemError:
        """Wait for the read in the disk pool, if one was started, and return the partition's result."""
        while self._future is not None:
            future, self._future = self._future, None
            try:
                self._take(await future)
            except ProblemError as problem:
                if not self._data:
                    return problem
                break
            if self._skipped and not self._data and self.wants_more:
                self.submit()
        return FetchResult(
            data=self._data,
            next_offset=self._next_offset,
            high_watermark=self._high_watermark,
            log_start_offset=self.partition.log_start_offset,
            deleted_to=self.partition.log.deleted_to,
            removed_to=Offset(self.partition.log.cleaning.lacks_below),
            last_stable_offset=self.limit if self._committed else self.partition.stable_limit,
            leader_epoch=self.partition.leader_epoch,
        )

    def _take(self, read: LogRead) -> bool:
        nbytes = len(read.data)
        if not nbytes:
            # An accepted loss at the end of the log leaves no records to read. The next fetch continues after the loss.
            self._next_offset = max(self._next_offset, read.next_offset)
        if not nbytes or nbytes > (self._wanted - self._nbytes if self._data else self._room):
            self._room = self._wanted = 0
            return False
        if self._committed:
            parts = self.partition.without_aborted(read)
            if parts is None:
                return False
            kept = sum(map(len, parts))
            self._data += parts
            self._nbytes += kept
            self._skipped += nbytes - kept
        else:
            self._data.append(read.data)
            self._nbytes += nbytes
        self._next_offset = read.next_offset
        return True


class Fetching:
    """Executes fetch calls on partitions, and keeps the calls that wait in long polls."""

    __slots__ = (
        "_bytes_max",
        "_find",
        "_meters",
        "_polls_max",
        "_pool",
        "_stopping",
        "_wait_seconds_max",
        "_waiting",
    )

    def __init__(
        self,
        find: FindPartition,
        pool: DiskPool,
        meters: BrokerMeters,
        *,
        bytes_max: int,
        wait_seconds_max: float,
        polls_max: int,
    ) -> None:
        """`find` raises a ProblemError for a partition that this broker cannot serve."""
        self._find = find
        self._pool = pool
        self._meters = meters
        self._bytes_max = bytes_max
        self._wait_seconds_max = wait_seconds_max
        self._polls_max = polls_max
        self._waiting: dict[LongPoll, None] = {}
        """Waiting calls in order of arrival; a stop answers the calls in this order."""
        self._stopping = False

    @property
    def waiting(self) -> int:
        """Number of long polls that are waiting."""
        return len(self._waiting)

    async def fetch(
        self, spec: FetchSpec, held: HeldAnswer, *, disconnected: asyncio.Future[None] | None = None
    ) -> list[FetchResult | ProblemError]:
        """Return one result or problem for each partition, in the order of the request; `held` counts the bytes read.

        Raises `shutting_down`, or `overloaded` when too many fetches wait or too many read bytes are not yet sent.
        """
        if self._stopping:
            raise refusals.shutting_down()
        answers = await self._read(spec, held)
        if spec.max_wait_seconds > 0 and (behind := self._behind(spec, answers)):
            held.resize(0)
            poll = LongPoll(NEVER_ENOUGH_BYTES)
            await poll.wait(behind, min(spec.max_wait_seconds, EPOCH_WAIT_SECONDS_MAX), disconnected)
            answers = await self._read(spec, held)
        missing = self._missing_bytes(spec, answers)
        if missing > 0 and spec.max_wait_seconds > 0:
            marks = [_limit(spec, answer) for answer in answers]
            # A waiting poll keeps no bytes in memory. The result with too few bytes is dropped and read again after the
            # wait.
            del answers
            held.resize(0)
            await self._wait(spec, marks, missing, disconnected)
            answers = await self._read(spec, held)
        self._count(spec, answers)
        return [
            self._without_doubt(fetch, answer) for fetch, answer in zip(spec.partitions, answers, strict=True)
        ]

    def answer_all(self) -> None:
        """End every long poll now and accept no further long polls, because the broker is stopping."""
        self._stopping = True
        for poll in tuple(self._waiting):
            poll.wake()

    def _without_doubt(
        self, fetch: PartitionFetch, answer: FetchResult | ProblemError
    ) -> FetchResult | ProblemError:
        """Return the result, unless its end offset may be lower than an offset that the caller has already read.

        A leader that does not know its high watermark yet has only an older value, and the client may have seen a newer
        value (rule 4.9). The client may also have seen a newer value while the lease is in doubt, because another
        leader may have been elected (rule 3.7).
        """
        if isinstance(answer, FetchResult) and answer.high_watermark < fetch.offset:
            try:
                partition = self._find(fetch.topic_id, fetch.partition)
                high_watermark = partition.high_watermark
            except ProblemError as problem:
                # The high watermark is unknown, or the leadership has ended.
                return problem
            # The high watermark has changed since the read. The result may have been read while the high watermark was
            # unknown.
            if high_watermark != answer.high_watermark:
                return refusals.offset_not_available(partition.topic, partition.index)
        return answer

    def _behind(self, spec: FetchSpec, answers: list[FetchResult | ProblemError]) -> list[LeaderReplica]:
        """Return the partitions for which the caller has seen a later leader epoch than this broker.

        This broker's mirror will show the later epoch soon. When the mirror shows the later epoch, the current
        leadership ends and wakes its waiting calls (rule 4.9).
        """
        behind = []
        for fetch, answer in zip(spec.partitions, answers, strict=True):
            if isinstance(answer, ProblemError) and answer.code == "unknown_leader_epoch":
                with suppress(
                    ProblemError
                ):  # The leadership has already ended: the next read returns the problem.
                    behind.append(self._find(fetch.topic_id, fetch.partition))
        return behind

    def _count(self, spec: FetchSpec, answers: list[FetchResult | ProblemError]) -> None:
        self._meters.fetched(answers)
        for fetch, answer in zip(spec.partitions, answers, strict=True):
            if isinstance(answer, FetchResult) and answer.data:
                # The first batch may begin below the requested offset. Records below the requested offset are not
                # counted.
                with suppress(ProblemError):  # The partition was deleted during the read in the pool.
                    topic = self._find(fetch.topic_id, fetch.partition).meters
                    topic.read(answer.next_offset - fetch.offset, answer.nbytes)

    def _missing_bytes(self, spec: FetchSpec, answers: list[FetchResult | ProblemError]) -> int:
        """Return the number of bytes still missing before the call can be answered.

        The result is 0 if a partition has a problem.
        """
        if self._stopping:
            return 0
        missing = min(spec.min_bytes, spec.max_bytes, self._bytes_max)
        for fetch, answer in zip(spec.partitions, answers, strict=True):
            if isinstance(answer, ProblemError):
                return 0
            missing -= answer.nbytes
            if answer.nbytes >= fetch.bytes_max or _lags(spec, answer):
                return 0  # A limit was reached, so waiting longer would not allow more bytes.
            if spec.committed and not answer.data and answer.next_offset > fetch.offset:
                return 0  # The reader continues after the batches of aborted transactions.
        return missing

    async def _wait(
        self,
        spec: FetchSpec,
        limits: list[Offset | None],
        missing: int,
        disconnected: asyncio.Future[None] | None,
    ) -> None:
        if len(self._waiting) >= self._polls_max:
            waiting = f"{len(self._waiting)} fetches wait for records"
            raise refusals.overloaded(waiting)
        partitions = []
        for fetch, limit in zip(spec.partitions, limits, strict=True):
            try:
                partition = self._find(fetch.topic_id, fetch.partition)
            except ProblemError:
                return  # The leadership ended during the read in the pool; the next read returns the problem.
            present = partition.stable_limit if spec.committed else partition.readable_limit
            if limit is not None and present > limit:
                return  # The limit or the log start moved during the read in the pool.
            partitions.append(partition)
        poll = LongPoll(missing, committed=spec.committed)
        self._waiting[poll] = None
        try:
            await poll.wait(partitions, min(spec.max_wait_seconds, self._wait_seconds_max), disconnected)
        finally:
            self._waiting.pop(poll, None)

    async def _read(self, spec: FetchSpec, held: HeldAnswer) -> list[FetchResult | ProblemError]:
        """Read every partition and record the duration."""
        now = asyncio.get_running_loop().time
        began = now()
        answers = await self._read_all(spec, held)
        self._meters.fetch_read(now() - began)
        return answers

    async def _read_all(self, spec: FetchSpec, held: HeldAnswer) -> list[FetchResult | ProblemError]:
        """Read every partition: cached batches on the loop, all others in parallel in the pool."""
        budget = bytes_max = min(spec.max_bytes, self._bytes_max, held.room())
        crowded = held.crowded
        on_loop = ON_LOOP_BYTES_MAX
        first, pooled = True, False
        readings: list[_Reading | ProblemError] = []
        for fetch in spec.partitions:
            try:
                room = math.inf if first and not crowded else budget
                reading = self._begin(fetch, budget, room, spec)
                on_loop -= reading.read_cached(on_loop)
            except ProblemError as problem:
                readings.append(problem)
                continue
            if reading.wants_more:
                reading.submit()
                pooled = True
            budget -= reading.claimed_bytes
            first = first and not reading.claimed_bytes
            readings.append(reading)
        held.resize(bytes_max - budget)
        answers = [
            reading if isinstance(reading, ProblemError) else await reading.finish() for reading in readings
        ]
        if pooled:
            _hold_back(spec, answers, bytes_max)
        nbytes = sum(answer.nbytes for answer in answers if isinstance(answer, FetchResult))
        held.resize(nbytes)
        if crowded and not nbytes and any(_lags(spec, answer) for answer in answers):
            waiting = f"answers not yet received by clients leave no room for a batch above {bytes_max} bytes"
            raise refusals.overloaded(waiting)
        return answers

    def _begin(self, fetch: PartitionFetch, budget: int, room: float, spec: FetchSpec) -> _Reading:
        partition = self._find(fetch.topic_id, fetch.partition)
        if spec.raw:
            partition.check_copy(fetch.offset, fetch.last_epoch)
        partition.check_fetch(fetch.offset, fetch.leader_epoch, fetch.last_epoch)
        wanted = min(fetch.bytes_max, budget)
        return _Reading(partition, fetch.offset, wanted, room, self._pool, committed=spec.committed)


def _limit(spec: FetchSpec, answer: FetchResult | ProblemError) -> Offset | None:
    """Return the offset below which the read could return records."""
    if isinstance(answer, ProblemError):
        return None
    return answer.last_stable_offset if spec.committed else answer.high_watermark


def _lags(spec: FetchSpec, answer: FetchResult | ProblemError) -> bool:
    """Return whether the partition has more records for the reader than the answer contains."""
    limit = _limit(spec, answer)
    return limit is not None and isinstance(answer, FetchResult) and answer.next_offset < limit


def _hold_back(spec: FetchSpec, answers: list[FetchResult | ProblemError], left: int) -> None:
    """Leave out results beyond the limit, because a first batch read by the pool may be larger than its reservation."""
    first = True
    for at, answer in enumerate(answers):
        if isinstance(answer, ProblemError) or not answer.data:
            continue
        if answer.nbytes > left and not first:
            answers[at] = replace(answer, data=[], next_offset=spec.partitions[at].offset)
        else:
            left -= answer.nbytes
            first = False
