"""Read of one task's ranges from the leaders, with prefetching.

The read uses the SDK's fetcher on the connection of the process. While the task passes records to Spark, the fetcher
prefetches a bounded number of bytes and follows leader changes. `arrow_rows` consumes the batches. The module must not
depend on Spark.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Final

from fairlead import clock
from fairlead.errors import (
    ClusterError,
    FairleadError,
    LogTruncatedError,
    OffsetExpiredError,
    OffsetOutOfRangeError,
    PartitionNotFoundError,
    TopicNotFoundError,
    TopicRecreatedError,
    UnreachableError,
)
from fairlead.reading.cursors import Cursor, Fetched, Prefetch
from fairlead.reading.fetcher import Fetcher
from fairlead.reading.reader import batches_in
from fairlead.records import ConsumerBatch
from fairlead.settings import MIB, ConsumerSettings
from fairlead.topic_partition import TopicPartition
from fairlead_spark.clients import Connection
from fairlead_spark.planning.losses import DataLoss, Loss, LossKind
from fairlead_spark.planning.offsets import NO_EPOCH
from fairlead_spark.planning.ranges import OffsetRange

_LOG: Final = logging.getLogger("fairlead.spark")

SETTINGS: Final = ConsumerSettings(
    fetch_bytes_max=4 * MIB, partition_fetch_bytes_max=4 * MIB, prefetch_bytes=16 * MIB
)
"""Settings of the fetcher: one answer is in flight while another answer is passed to Spark. A larger prefetch would
only cost memory in every worker."""


ABSENT_SECONDS: Final = 10.0
"""Time for which a topic that the driver has seen may be unknown to brokers before the topic counts as deleted."""
ABSENT_PAUSE_SECONDS: Final = 0.5
END_SECONDS: Final = 5.0
"""Deadline for looking up the ends of logs after a read without progress."""


class RangeRead:
    """The read of one task. All methods are called from the task's thread; the fetcher stops when `batches` ends."""

    def __init__(
        self, connection: Connection, ranges: Sequence[OffsetRange], *, fail_on_data_loss: bool
    ) -> None:
        self._connection = connection
        self._stops = {_place(part): part.stop for part in ranges}
        self._stop_epochs = {_place(part): part.stop_epoch for part in ranges}
        self._settings = replace(SETTINGS, isolation=connection.reads.isolation)
        self._prefetch = Prefetch(self._settings, self._stops)
        self._prefetch.assign(map(_cursor, ranges))
        self._fail_on_data_loss = fail_on_data_loss
        self._absent_since: dict[TopicPartition, float] = {}
        self._topic_ids = {part.topic: part.topic_id for part in ranges}

    def batches(self) -> Iterator[ConsumerBatch]:
        """Yield the records of all ranges, in order within a partition. Raises `DataLoss` and the SDK's errors."""
        self._connection.run(self._begin())
        try:
            while taken := self._connection.run(self._take()):
                for fetched in taken:
                    stop = self._stops[fetched.cursor.topic_partition]
                    for batch in batches_in(fetched):
                        if batch.base_offset >= stop:
                            break
                        yield batch if batch.next_offset <= stop else batch.before(stop)
        finally:
            self._connection.run(self._end())

    def newer(self, places: Iterable[TopicPartition]) -> int:
        """Return the number of records after the ranges in these partitions, as the last fetch reported."""
        marks = {place: self._prefetch.cursors[place].high_watermark for place in places}
        return sum(max(0, mark - self._stops[place]) for place, mark in marks.items() if mark is not None)

    async def _begin(self) -> None:
        connection = self._connection.reads
        connection.metadata.want(self._topic_ids)
        await connection.metadata.refresh()
        self._arrival = asyncio.Event()
        self._fetcher = Fetcher(
            self._prefetch,
            connection.metadata,
            connection.transport,
            self._settings,
            connection.lookup,
            on_arrival=self._arrival.set,
            on_picture=self._arrival.set,
        )
        self._task = asyncio.get_running_loop().create_task(self._fetcher.run(), name="fairlead spark read")
        self._task.add_done_callback(lambda _: self._arrival.set())

    async def _end(self) -> None:
        self._task.cancel()
        await asyncio.wait([self._task])

    async def _take(self) -> list[Fetched]:
        """Wait for fetched records and return them; the result is empty when all ranges are read."""
        # One deadline covers all waits, since refusals and empty answers end a wait without progress.
        deadline = clock.monotonic() + self._connection.reads.transport.settings.retry_timeout_seconds
        while True:
            self._arrival.clear()
            taken: list[Fetched] = []
            while (fetched := self._prefetch.take(lambda _: True)) is not None:
                fetched.cursor.position = fetched.next_offset
                self._prefetch.release(fetched)
                taken.append(fetched)
            if taken:
                self._fetcher.wake()
                return taken
            for cursor in list(self._prefetch.failures()):
                await self._failed(cursor)
            if not self._unread():
                return []
            if self._task.done():
                self._task.result()
            await self._wait(deadline)

    async def _wait(self, deadline: float) -> None:
        try:
            async with asyncio.timeout(deadline - clock.monotonic()):
                await self._arrival.wait()
        except TimeoutError:
            await self._give_up()

    async def _give_up(self) -> None:
        """Report logs that end before their ranges as a loss, or raise `UnreachableError` if there is no such log."""
        ends = await self._ends()
        cut = [cursor for cursor in self._unread() if cursor.topic_partition in ends]
        for cursor in cut:
            stop, end = self._stops[cursor.topic_partition], ends[cursor.topic_partition]
            detail = f"requested up to offset {stop}, but the log ends at {end}"
            self._report(Loss(LossKind.LOG_TRUNCATED, cursor.topic, cursor.partition, detail), None)
            self._go_on(cursor, stop)
        if not cut:
            seconds = self._connection.reads.transport.settings.retry_timeout_seconds
            unread = ", ".join(f"{cursor} from {cursor.position}" for cursor in self._unread())
            why = self._fetcher.trouble or "none"
            message = (
                f"no records of {unread} arrived for {seconds:g} s (option retryTimeout); last refusal: {why}"
            )
            raise UnreachableError(message, {}, sent=False) from self._fetcher.trouble

    async def _ends(self) -> dict[TopicPartition, int]:
        """Return the log ends that are before the ends of the ranges; leaders older than the plan refuse to answer."""
        wanted = [cursor.topic_partition for cursor in self._unread()]
        try:
            async with asyncio.timeout(END_SECONDS):
                found = await self._connection.reads.lookup.lookup(
                    dict.fromkeys(wanted, "latest"), self._stop_epochs
                )
        except (TimeoutError, FairleadError):
            return {}
        return {
            place: answer.offset
            for place, answer in found.items()
            if answer is not None and answer.offset < self._stops[place]
        }

    async def _failed(self, cursor: Cursor) -> None:
        """Raise the error of a partition, or continue after a loss if `failOnDataLoss` is false."""
        error = cursor.error
        assert error is not None, "the cursor has failed"
        loss = loss_of(cursor, error)
        if loss is None:
            raise error
        if loss.kind is LossKind.TOPIC_GONE and self._may_come(cursor):
            await asyncio.sleep(ABSENT_PAUSE_SECONDS)  # noqa: TID251 - the pause before the next fetch
            self._go_on(cursor, cursor.position)
            return
        self._report(loss, error)
        stop = self._stops[cursor.topic_partition]
        resume = stop
        if isinstance(error, OffsetExpiredError):
            resume = min(_number(error, "log_start_offset", stop), stop)
        elif isinstance(error, LogTruncatedError) and self._is_end_newer(cursor):
            # The current log diverged below the cursor's position from the log that was read. The current log contains
            # new records after the point of divergence.
            resume = min(error.safe_offset, cursor.position)
        self._go_on(cursor, resume)

    def _unread(self) -> list[Cursor]:
        """Return the cursors of the partitions that have not been read to the end of their range yet."""
        cursors = self._prefetch.cursors
        return [cursor for place, cursor in cursors.items() if cursor.position < self._stops[place]]

    def _is_end_newer(self, cursor: Cursor) -> bool:
        """Return whether the end of a range may belong to the current log.

        If the epoch of the end is not newer than the epoch of the last record read, the end belongs to the lost log.
        The next trigger starts at this end and moves back to the point of divergence itself.
        """
        assert cursor.last_epoch is not None, "only a fetch with a last epoch can report a divergence"
        return self._stop_epochs[cursor.topic_partition] > cursor.last_epoch

    def _report(self, loss: Loss, error: FairleadError | None) -> None:
        """Raise `DataLoss` for a loss, or log a warning if `failOnDataLoss` is false."""
        if self._fail_on_data_loss:
            raise DataLoss([loss]) from error
        _LOG.warning("%s; %s", loss, loss.kind.otherwise)

    def _may_come(self, cursor: Cursor) -> bool:
        """Return whether an unknown topic may be missing only from the broker's outdated metadata."""
        since = self._absent_since.setdefault(cursor.topic_partition, clock.monotonic())
        return clock.monotonic() - since < ABSENT_SECONDS

    def _go_on(self, cursor: Cursor, offset: int) -> None:
        self._prefetch.seek(cursor, offset)
        self._fetcher.wake()


def parting_of(connection: Connection, part: OffsetRange) -> int | None:
    """Return the offset at which a log diverges from the log read before the start of a range; None if unknown.

    The offset comes from a fetch at the start of the range, which a leader whose log has diverged refuses. Raises an
    error if no leader answers, since a query that continued at the end of the log would skip new records before this
    end.
    """
    try:
        next(RangeRead(connection, [part], fail_on_data_loss=True).batches(), None)
    except DataLoss as lost:
        if isinstance(lost.__cause__, LogTruncatedError):
            return min(lost.__cause__.safe_offset, part.start)
    return None


def loss_of(cursor: Cursor, error: FairleadError) -> Loss | None:
    """Return the loss that an error of a partition indicates; None if the error is not a loss."""
    if not isinstance(error, ClusterError):
        return None
    kinds: dict[type[ClusterError], LossKind] = {
        OffsetExpiredError: LossKind.LOG_START,
        OffsetOutOfRangeError: LossKind.LOG_TRUNCATED,
        LogTruncatedError: LossKind.LOG_TRUNCATED,
        TopicRecreatedError: LossKind.TOPIC_RECREATED,
        TopicNotFoundError: LossKind.TOPIC_GONE,
        PartitionNotFoundError: LossKind.TOPIC_GONE,
    }
    kind = kinds.get(type(error))
    if kind is None:
        return None
    detail = f"requested from offset {cursor.position}: {error.detail}"
    return Loss(kind, cursor.topic, cursor.partition, detail)


def _number(error: ClusterError, name: str, default: int) -> int:
    value = error.data.get(name)
    return value if isinstance(value, int) else default


def _cursor(part: OffsetRange) -> Cursor:
    last_epoch = None if part.last_epoch == NO_EPOCH else part.last_epoch
    return Cursor(part.topic, part.topic_id, part.partition, part.start, last_epoch)


def _place(part: OffsetRange) -> TopicPartition:
    return TopicPartition(part.topic, part.partition)
