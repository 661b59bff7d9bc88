"""Batches and records that a consumer returns: batches are backed by Arrow, and their records are cheap objects.

The consumer creates batches from stored bytes whose checksums are already verified. Columns are decoded and validated
on first use and then cached. No data is copied: a batch keeps the fetch answer in memory.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from datetime import datetime
from itertools import repeat
from typing import TypeAlias, cast

import msgspec
import pyarrow as pa

from fairlead.errors import error_of
from fairlead.timestamps import datetime_of
from fairlead.topic_partition import TopicPartition
from fairlead_api.batch.batches import decode, offsets_of
from fairlead_api.batch.header import BatchHeader
from fairlead_api.problems import ProblemError

Headers: TypeAlias = Sequence[tuple[str, bytes | None]]
"""Headers of a record in order; names may repeat."""


class Record(msgspec.Struct, frozen=True, eq=False, gc=False):
    """One record of a batch; the record keeps the batch in memory. Records are equal only if they are the same object.

    For speed, the garbage collector does not track this struct: a consumer creates millions of records.
    """

    _batch: ConsumerBatch
    offset: int
    """Offset of the record in its partition."""
    key: bytes | None
    """Key of the record; None and b"" differ."""
    value: bytes | None
    """Value of the record; None (a tombstone) and b"" differ."""

    @property
    def topic(self) -> str:
        """Name of the topic."""
        return self._batch.topic

    @property
    def partition(self) -> int:
        """Index of the partition."""
        return self._batch.partition

    @property
    def timestamp_us(self) -> int:
        """Create time of the record, or append time if the topic is so configured, in microseconds since 1970, UTC."""
        return self._batch.timestamps_us[self._row]

    @property
    def timestamp(self) -> datetime:
        """Timestamp of the record as an aware datetime in UTC."""
        return datetime_of(self.timestamp_us)

    @property
    def headers(self) -> Headers:
        """Headers of the record in order; names may repeat."""
        return self._batch.headers[self._row]

    @property
    def _row(self) -> int:
        """Index of the record in its batch, which is rarely needed and therefore computed instead of stored."""
        offsets = self._batch.offsets
        return (
            self.offset - offsets.start if isinstance(offsets, range) else bisect_left(offsets, self.offset)
        )

    def __repr__(self) -> str:
        return (
            f"Record({self.topic}-{self.partition}@{self.offset}, key={self.key!r}, value={self.value!r}, "
            f"timestamp={self.timestamp.isoformat()})"
        )


class ConsumerBatch:
    """Records of one partition that were stored together, except the records below the requested offset."""

    __slots__ = (
        "_buffer", "_columns", "_header", "_headers", "_keys", "_offsets", "_rows", "_stored", "_timestamps_us",
        "_values", "base_offset", "next_offset", "partition", "topic",
    )  # fmt: skip

    def __init__(
        self, topic: str, partition: int, buffer: memoryview, header: BatchHeader, start: int, stop: int
    ) -> None:
        """Create a view of the records with `start` <= offset < `stop` of the batch in `buffer`."""
        self.topic = topic
        self.partition = partition
        self.base_offset = max(start, header.base_offset)
        """Lowest offset of the view; after compaction, the first record may have a higher offset."""
        self.next_offset = min(stop, header.next_offset)
        """Smallest possible base offset of the next batch: the offset from which to continue."""
        self._buffer = buffer
        self._header = header
        self._stored: pa.RecordBatch | None = None
        """Decoded columns of the whole batch, without offsets."""
        self._columns: pa.RecordBatch | None = None
        self._rows: int | None = None
        self._offsets: Sequence[int] | None = None
        self._keys: list[bytes | None] | None = None
        self._values: list[bytes | None] | None = None
        self._timestamps_us: list[int] | None = None
        self._headers: list[Headers] | None = None

    def before(self, stop: int) -> ConsumerBatch:
        """Return the records of the batch below an offset."""
        return ConsumerBatch(
            self.topic,
            self.partition,
            self._buffer,
            self._header,
            self.base_offset,
            min(stop, self.next_offset),
        )

    @property
    def topic_partition(self) -> TopicPartition:
        """Topic name and index of the partition."""
        return TopicPartition(self.topic, self.partition)

    @property
    def record_count(self) -> int:
        """Number of records in the batch from the requested offset on."""
        if self._rows is None:
            self._rows = self._header.record_count if self._is_whole else self.to_arrow().num_rows
        return self._rows

    def __len__(self) -> int:
        return self.record_count

    @property
    def nbytes(self) -> int:
        """Stored size of the whole batch in bytes."""
        return self._header.total_bytes

    @property
    def leader_epoch(self) -> int:
        """Epoch of the leader that stored the batch."""
        return self._header.leader_epoch

    @property
    def has_append_time(self) -> bool:
        """Whether the records' timestamps are append times of the leader, not create times."""
        return self._header.has_append_time

    def to_arrow(self) -> pa.RecordBatch:
        """Return the records as columns: offset, key, value, timestamp, headers.

        Key, value and headers are not copied if the batch is not compressed. Raises `MalformedBatchError` if the stored
        bytes are not valid Arrow.
        """
        if self._columns is None:
            self._columns = self._decode()
        return self._columns

    @property
    def _is_whole(self) -> bool:
        header = self._header
        return self.base_offset == header.base_offset and self.next_offset == header.next_offset

    def _decode_stored(self) -> pa.RecordBatch:
        if self._stored is None:
            header = self._header
            try:
                self._stored = decode(self._buffer, header, verify_checksum=False)
            except ProblemError as problem:
                subject = f"read {self.topic}-{self.partition} at offset {header.base_offset}"
                raise error_of(problem, subject=subject) from problem
        return self._stored

    def _decode(self) -> pa.RecordBatch:
        header, decoded = self._header, self._decode_stored()
        offsets = offsets_of(header, decoded)
        columns = [offsets, *(decoded.column(name) for name in ("key", "value", "timestamp", "headers"))]
        batch = pa.RecordBatch.from_arrays(columns, names=["offset", "key", "value", "timestamp", "headers"])
        first = _rows_below(offsets, self.base_offset, header.base_offset)
        last = _rows_below(offsets, self.next_offset, header.base_offset)
        return batch if (first, last) == (0, batch.num_rows) else batch.slice(first, last - first)

    @property
    def offsets(self) -> Sequence[int]:
        """Offset of each record."""
        if self._offsets is None:
            dense = self.next_offset - self.base_offset == self.record_count
            self._offsets = (
                range(self.base_offset, self.next_offset)
                if dense
                else cast("list[int]", self.to_arrow().column("offset").to_pylist())
            )
        return self._offsets

    @property
    def keys(self) -> list[bytes | None]:
        """Key of each record."""
        if self._keys is None:
            self._keys = self._column("key").to_pylist()
        return self._keys

    @property
    def values(self) -> list[bytes | None]:
        """Value of each record."""
        if self._values is None:
            self._values = self._column("value").to_pylist()
        return self._values

    @property
    def timestamps_us(self) -> list[int]:
        """Time of each record in microseconds since 1970, UTC."""
        if self._timestamps_us is None:
            times = self._column("timestamp").cast(pa.int64())
            self._timestamps_us = cast("list[int]", times.to_pylist())
        return self._timestamps_us

    @property
    def headers(self) -> list[Headers]:
        """Headers of each record; empty for a record without headers."""
        if self._headers is None:
            column = self._column("headers")
            if column.null_count == len(column):
                self._headers = [()] * len(column)
            else:
                self._headers = [
                    tuple((entry["key"], entry["value"]) for entry in entries or ())
                    for entries in column.to_pylist()
                ]
        return self._headers

    def _column(self, name: str) -> pa.Array:
        # A whole batch needs no column of offsets, whose construction takes as long as decoding a small batch.
        return (self._decode_stored() if self._is_whole else self.to_arrow()).column(name)

    def __iter__(self) -> Iterator[Record]:
        # Keys and values are converted to Python objects for the whole batch at once.
        return map(Record, repeat(self), self.offsets, self.keys, self.values)

    def __repr__(self) -> str:
        return (
            f"ConsumerBatch({self.topic}-{self.partition}, offsets {self.base_offset} to "
            f"{self.next_offset - 1}, {self.record_count} records)"
        )


def _rows_below(offsets: pa.Array, offset: int, base_offset: int) -> int:
    """Return the number of rows with a smaller offset; offsets have gaps only after compaction."""
    count = len(offsets)
    if count == 0 or offset <= base_offset:
        return 0
    if offsets[count - 1].as_py() < offset:
        return count
    if offsets[count - 1].as_py() - offsets[0].as_py() == count - 1:
        return max(0, int(offset - offsets[0].as_py()))
    return int((offsets.to_numpy(zero_copy_only=False) < offset).sum())
