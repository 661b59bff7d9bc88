"""Searches a range of a topic for records, forward or backward, within a budget of bytes and time.

A scan reads with a consumer of the SDK and filters whole batches. A scan ends when the budget or the time is used up,
when enough records are found, or at the end of the range, and reports the positions from which another scan continues.
A scan keeps nothing between requests, so that a search stops when the user leaves its page.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

import fairlead
from fairlead import TopicPartition, clock
from fairlead_console.access import Connection
from fairlead_console.records import arrow
from fairlead_console.records.filters import RecordFilter

if TYPE_CHECKING:
    import pyarrow as pa

MIB: Final = 1024 * 1024
PREFETCH_BYTES: Final = 16 * MIB
WINDOW_BYTES: Final = 48 * MIB
"""Number of bytes that a backward scan reads at a time."""
WINDOW_GROWTH: Final = 8
"""Maximum factor by which the next window grows, because earlier records may be larger than expected."""
TURN_SECONDS: Final = 0.02
"""Time after which a scan yields to other requests of the console."""

Start: TypeAlias = Literal["newest", "oldest", "offset", "time"]
End: TypeAlias = Literal["found", "budget", "time", "end"]
Positions: TypeAlias = dict[int, int]
"""Offset by partition: forward, the next offset to read; backward, the offset before which to read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanRange:
    """Range of records that a scan reads."""

    topic: str
    partition: int | None = None
    """The only partition to read; None reads all."""
    chosen: frozenset[int] = frozenset()
    """Partitions to read if `partition` is None; without any, the scan reads all partitions."""
    start: Start = "newest"
    offset: int = 0
    time: datetime | None = None
    positions: Positions = field(default_factory=dict)
    """Positions at which an earlier scan stopped; without positions, a scan begins at `start`."""
    is_committed: bool = False
    """Whether records of open and aborted transactions are left out."""

    def without(self, left_out: frozenset[int], partitions: int) -> ScanRange:
        """Return this range without some of all partitions of the topic."""
        return replace(self, chosen=frozenset(range(partitions)) - left_out) if left_out else self

    @property
    def places(self) -> list[TopicPartition]:
        """Partitions to read; empty for all partitions of the topic."""
        chosen = self.chosen if self.partition is None else {self.partition}
        return [TopicPartition(self.topic, each) for each in sorted(chosen)]

    @property
    def is_backward(self) -> bool:
        """Whether the newest records come first."""
        return self.start == "newest"


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanLimits:
    """Limits of a scan."""

    records: int
    """Maximum number of records to find."""
    nbytes: int
    """Maximum number of stored bytes to read."""
    seconds: float
    """Maximum duration of the scan in seconds."""


@dataclass(frozen=True, slots=True)
class Rows:
    """Records of one partition that a scan has found, in the order of the scan."""

    partition: int
    columns: pa.RecordBatch


@dataclass(slots=True)
class Progress:
    """Progress of a scan."""

    positions: Positions = field(default_factory=dict)
    nbytes: int = 0
    records: int = 0
    """Number of offsets that the scan has passed."""
    left: int = 0
    """Number of offsets that the scan has not passed yet."""
    found: int = 0
    end: End = "end"


class Scan:
    """One scan, whose batches are taken with `rows`; `progress` is complete when all batches are taken."""

    def __init__(
        self, connection: Connection, scan_range: ScanRange, wanted: RecordFilter, limits: ScanLimits
    ) -> None:
        self._range = scan_range
        self._limits = limits
        self._is_unfiltered = wanted.accepts_all
        self._chosen: Callable[[pa.RecordBatch], pa.RecordBatch] = wanted.compiled()
        self._ends_at = clock.monotonic() + limits.seconds
        self._consumer = fairlead.Consumer(
            **connection,
            isolation="read_committed" if scan_range.is_committed else "read_uncommitted",
            offset_policy="earliest",
            prefetch_bytes=PREFETCH_BYTES,
            request_timeout="10s",
            retry_timeout="5s",
        )
        self.progress = Progress()

    async def rows(self) -> AsyncGenerator[Rows, None]:
        """Yield the records that the scan finds, batch by batch. Raises the errors of the SDK."""
        async with self._consumer as consumer:
            first, ends = await self._bounds(consumer)
            reading = self._backward(first, ends) if self._range.is_backward else self._forward(first, ends)
            async with aclosing(reading):
                async for rows in reading:
                    self.progress.found += rows.columns.num_rows
                    yield rows

    async def _bounds(self, consumer: fairlead.Consumer) -> tuple[Positions, Positions]:
        """Assign the partitions; return the first offset and the end offset of each."""
        places = self._range.places
        await consumer.assign(places, topic=None if places else self._range.topic)
        first = {place.partition: consumer.position(place) for place in sorted(consumer.assignment)}
        ends = {place.partition: end for place, end in (await consumer.end_offsets()).items()}
        return first, ends

    # -- forward

    async def _forward(self, first: Positions, ends: Positions) -> AsyncGenerator[Rows, None]:
        consumer, progress = self._consumer, self.progress
        positions = await self._starts(first, ends)
        most = self._limits.records if self._is_unfiltered else None
        stops = {
            partition: end if most is None else min(end, positions[partition] + most)
            for partition, end in ends.items()
        }
        progress.positions = positions
        async for rows in self._window(positions, stops):
            yield rows
            if most is None and progress.found >= self._limits.records:
                progress.end = "found"
                break
            if self._is_over():
                break
        for place in consumer.assignment:
            positions[place.partition] = max(consumer.position(place), positions[place.partition])
        progress.left = sum(max(0, ends[partition] - at) for partition, at in positions.items())
        if progress.end == "end" and progress.left:
            progress.end = "found"

    async def _starts(self, first: Positions, ends: Positions) -> Positions:
        given = self._range
        if given.positions:
            return {
                partition: min(max(given.positions.get(partition, at), at), ends[partition])
                for partition, at in first.items()
            }
        if given.start == "offset":
            return {partition: min(max(given.offset, at), ends[partition]) for partition, at in first.items()}
        if given.start == "time" and given.time is not None:
            times = {TopicPartition(given.topic, partition): given.time for partition in first}
            found = await self._consumer.offsets_for_times(times)
            return {
                place.partition: ends[place.partition] if at is None else at.offset
                for place, at in found.items()
            }
        return dict(first)

    # -- backward

    async def _backward(self, first: Positions, ends: Positions) -> AsyncGenerator[Rows, None]:
        progress, given = self.progress, self._range.positions
        positions = {partition: min(given.get(partition, end), end) for partition, end in ends.items()}
        progress.positions = positions
        size, seen = 1, 0
        while any(at > first[partition] for partition, at in positions.items()):
            starts = {partition: max(first[partition], at - size) for partition, at in positions.items()}
            before = progress.nbytes, progress.records
            window = [rows async for rows in self._window(starts, positions)]
            for rows in reversed(window):
                if rows.columns.num_rows:
                    yield Rows(rows.partition, _reversed(rows.columns))
            positions.update(starts)
            seen += size
            if (seen if self._is_unfiltered else progress.found) >= self._limits.records:
                progress.end = "found"
                break
            if self._is_over():
                break
            size = self._next_size(size, progress.nbytes - before[0], len(starts))
        progress.left = sum(max(0, at - first[partition]) for partition, at in positions.items())
        if not progress.left:
            progress.end = "end"

    def _next_size(self, size: int, nbytes: int, partitions: int) -> int:
        """Return the number of offsets in the next window of each partition, computed from the last window."""
        room = min(WINDOW_BYTES, self._limits.nbytes - self.progress.nbytes)
        by_size = max(1, size * room // max(1, nbytes))
        most = self._limits.records if self._is_unfiltered else WINDOW_BYTES // partitions
        return max(1, min(size * WINDOW_GROWTH, by_size, most))

    # -- both

    async def _window(
        self, starts: Mapping[int, int], stops: Mapping[int, int]
    ) -> AsyncGenerator[Rows, None]:
        """Read the window's offsets from each partition, and yield the matching rows, including empty batches."""
        consumer, topic, progress = self._consumer, self._range.topic, self.progress
        until = {}
        for partition, stop in stops.items():
            if starts[partition] < stop:
                place = TopicPartition(topic, partition)
                await consumer.seek(place, starts[partition])
                until[place] = stop
        if not until:
            return
        turn_ends = clock.monotonic() + TURN_SECONDS
        async for batch in consumer.batches(until):
            progress.nbytes += batch.nbytes
            progress.records += batch.next_offset - batch.base_offset
            yield Rows(batch.partition, self._chosen(batch.to_arrow()))
            if clock.monotonic() > turn_ends:
                await asyncio.sleep(0)  # noqa: TID251 - lets other requests work, without a delay
                turn_ends = clock.monotonic() + TURN_SECONDS

    def _is_over(self) -> bool:
        """Return whether the budget of bytes or the time is used up, and record which."""
        if self.progress.nbytes >= self._limits.nbytes:
            self.progress.end = "budget"
        elif clock.monotonic() >= self._ends_at:
            self.progress.end = "time"
        else:
            return False
        return True


def _reversed(columns: pa.RecordBatch) -> pa.RecordBatch:
    return columns.take(arrow.np.arange(columns.num_rows - 1, -1, -1))
