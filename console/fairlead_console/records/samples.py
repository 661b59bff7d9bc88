"""Follows the end of a topic, and reads only as many records as a person can see.

Each second, a tail reads the newest records of the partitions that have grown, and skips the records before them. The
cost of a tail for the brokers therefore depends on the rate of the tail, not on the rate of the topic.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import Final

import fairlead
from fairlead import TopicPartition
from fairlead_console.access import Connection
from fairlead_console.records.filters import RecordFilter
from fairlead_console.records.found import FoundRecord, found_records
from fairlead_console.records.scan import MIB, Rows, ScanRange

SAMPLE_SECONDS: Final = 1.0
SAMPLE_BYTES: Final = 4 * MIB
"""Number of stored bytes that a sample with a filter reads."""
PREFETCH_BYTES: Final = MIB
SHOWN_BYTES: Final = MIB
"""Number of stored bytes that a sample without a filter should read. A partition returns at least one batch, which may
be much larger than the records that are shown."""
RECORD_BYTES: Final = 1024
"""Assumed size of a record until the first record has been read."""


@dataclass(frozen=True, slots=True)
class Sample:
    """Records that a tail shows for one second, and the number of records that the topic received."""

    records: list[FoundRecord]
    """Records in order of time."""
    arrived: int
    """Number of offsets since the previous sample."""
    read: int
    """Number of offsets that this sample has read."""


class Tail:
    """The newest records of a topic, second by second."""

    def __init__(
        self, connection: Connection, scan_range: ScanRange, wanted: RecordFilter, records_max: int
    ) -> None:
        self._topic, self._places = scan_range.topic, scan_range.places
        self._records_max = records_max
        self._is_unfiltered = wanted.accepts_all
        self._chosen = wanted.compiled()
        self._record_bytes = float(RECORD_BYTES)
        self._partition_bytes = float(RECORD_BYTES)
        """Stored bytes that the previous sample has read from a partition, on average."""
        self._turn = 0
        self._consumer = fairlead.Consumer(
            **connection,
            isolation="read_committed" if scan_range.is_committed else "read_uncommitted",
            offset_policy="earliest",
            prefetch_bytes=PREFETCH_BYTES,
            fetch_bytes_max=PREFETCH_BYTES,
            partition_fetch_bytes_max=PREFETCH_BYTES // 4,
            request_timeout="10s",
            retry_timeout="5s",
        )

    async def samples(self) -> AsyncGenerator[Sample, None]:
        """Yield one sample per second until the generator is closed. Raises the errors of the SDK."""
        async with self._consumer as consumer:
            await consumer.assign(self._places, topic=None if self._places else self._topic)
            consumer.pause()
            positions = await consumer.end_offsets()
            yield Sample([], 0, 0)
            while True:
                await asyncio.sleep(SAMPLE_SECONDS)  # noqa: TID251 - samples have a fixed distance
                ends = await consumer.end_offsets()
                yield await self._sample(positions, ends)
                positions = ends

    async def _sample(
        self, positions: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]
    ) -> Sample:
        grown = sorted(place for place, end in ends.items() if end > positions[place])
        arrived = sum(ends[place] - positions[place] for place in grown)
        if not grown:
            return Sample([], 0, 0)
        chosen = self._next_places(grown)
        most = self._offsets_max // len(chosen)
        starts = {place: max(positions[place], ends[place] - max(1, most)) for place in chosen}
        records = await self._read(starts, {place: ends[place] for place in chosen})
        return Sample(records, arrived, sum(ends[place] - at for place, at in starts.items()))

    @property
    def _offsets_max(self) -> int:
        """Number of offsets that a sample reads: the records shown or, with a filter, as many as its bytes allow."""
        return self._records_max if self._is_unfiltered else max(1, int(SAMPLE_BYTES / self._record_bytes))

    def _next_places(self, grown: list[TopicPartition]) -> list[TopicPartition]:
        """Return the partitions to read: all of them, or as many as the sample may read, in rotation."""
        most = self._records_max
        if self._is_unfiltered:
            most = min(most, max(1, int(SHOWN_BYTES / self._partition_bytes)))
        if len(grown) <= most:
            return grown
        self._turn = (self._turn + most) % len(grown)
        return (grown[self._turn :] + grown[: self._turn])[:most]

    async def _read(
        self, starts: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]
    ) -> list[FoundRecord]:
        consumer, found = self._consumer, list[FoundRecord]()
        nbytes, offsets = 0, 0
        for place, start in starts.items():
            await consumer.seek(place, start)
        consumer.resume(*starts)
        async for batch in consumer.batches(ends):
            nbytes += batch.nbytes
            offsets += batch.next_offset - batch.base_offset
            rows = self._chosen(batch.to_arrow())
            newest = rows.slice(max(0, rows.num_rows - self._records_max))
            found += found_records(Rows(batch.partition, newest), self._records_max)
        consumer.pause()
        self._record_bytes = max(1.0, nbytes / max(1, offsets))
        self._partition_bytes = max(1.0, nbytes / len(starts))
        found.sort(key=attrgetter("timestamp_us"))
        return found[-self._records_max :]
