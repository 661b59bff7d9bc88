"""Positions of a consumer in its partitions, and the prefetched batches.

The module performs no I/O: the fetcher calls `due` for the next fetches and reports their results, the consumer takes
entries out, and time is an argument. A seek increases the generation of its cursor, so that answers to earlier fetches
are dropped.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

from fairlead.errors import FairleadError
from fairlead.settings import ConsumerSettings
from fairlead.topic_partition import TopicPartition
from fairlead_api.batch.header import HEADER_BYTES, batch_span
from fairlead_api.problems import ProblemError

EPOCH_AT: Final = 12
"""Position of the leader epoch in a stored batch; see docs/reference/record-batch.md."""
NO_OFFSET: Final = -1
"""Number that is smaller than every offset."""
_EPOCH: Final = struct.Struct("<i")

EndOffsets: TypeAlias = Mapping[TopicPartition, int]
"""End offsets by partition; reading stops before the end offset."""


class Cursor:
    """Position and fetch state of one assigned partition."""

    __slots__ = (
        "attempts",
        "buffered_bytes",
        "error",
        "error_is_reported",
        "fetch_offset",
        "high_watermark",
        "in_flight",
        "last_epoch",
        "leader_epoch",
        "life",
        "log_start_offset",
        "partition",
        "paused",
        "position",
        "position_epoch",
        "rest_until",
        "retry_at",
        "topic",
        "topic_id",
        "withheld",
    )

    def __init__(
        self, topic: str, topic_id: str, partition: int, offset: int, last_epoch: int | None = None
    ) -> None:
        self.topic = topic
        self.topic_id = topic_id
        self.partition = partition
        self.life = 0
        self.leader_epoch: int | None = None
        """Highest leader epoch of this partition that the consumer has seen; answers of older leaders are refused."""
        self.high_watermark: int | None = None
        self.log_start_offset: int | None = None
        self.paused = False
        """Whether the reader has paused the partition."""
        self.withheld = False
        """Whether the group is assigning or revoking the partition; during this time, no record of the partition is
        fetched or handed out."""
        self.seek(offset, last_epoch)

    def seek(self, offset: int, last_epoch: int | None = None) -> None:
        """Move the position to an offset and discard batches, failures and answers of earlier fetches.

        `last_epoch`: leader epoch of the record before the offset, if the reader has seen that record.
        """
        self.life += 1
        self.position = offset
        """Offset of the next record to hand out."""
        self.position_epoch = last_epoch
        """Leader epoch of the last batch before the position."""
        self.rest_until: int | None = None
        """End offset of the batch that contains the position, if a program that reads single records stopped inside the
        batch; in all other cases, the value is None."""
        self.fetch_offset = offset
        """Start offset of the next fetch, after the position and all buffered batches."""
        self.last_epoch = last_epoch
        """Leader epoch of the last batch before the next fetch, by which a leader detects that its log has diverged."""
        self.buffered_bytes = 0
        self.in_flight = False
        self.retry_at = 0.0
        self.attempts = 0
        self.error: FairleadError | None = None
        self.error_is_reported = False

    def saw_leader_epoch(self, epoch: int) -> None:
        """Update the known leader epoch, which never decreases."""
        self.leader_epoch = epoch if self.leader_epoch is None else max(self.leader_epoch, epoch)

    @property
    def is_read(self) -> bool:
        """Whether the partition may be fetched and its records may be handed out."""
        return not self.paused and not self.withheld

    @property
    def is_behind(self) -> bool:
        """Whether the last answer reported further records after the offset of the next fetch."""
        return self.high_watermark is not None and self.fetch_offset < self.high_watermark

    @property
    def topic_partition(self) -> TopicPartition:
        """Topic name and index of the partition."""
        return TopicPartition(self.topic, self.partition)

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


@dataclass(frozen=True, slots=True, eq=False)
class Fetched:
    """Part of an answer for one partition: whole batches, or no batches if only the position advances."""

    cursor: Cursor
    life: int
    data: memoryview
    start_offset: int
    """Requested offset; records below the requested offset are not handed out."""
    next_offset: int
    last_epoch: int | None
    """Leader epoch of the last batch before the next offset."""
    start_epoch: int | None = None
    """Leader epoch of the last batch before the requested offset."""

    @property
    def is_stale(self) -> bool:
        """Whether a seek or a new assignment has invalidated the entry."""
        return self.life != self.cursor.life


class Prefetch:
    """Cursors of a consumer, and the prefetch buffer between its fetcher and its reader.

    `stops` contains the end offsets of partitions; no record at or after the end offset is fetched. A partition without
    an end offset is read forever.
    """

    def __init__(self, settings: ConsumerSettings, stops: EndOffsets | None = None) -> None:
        self._settings = settings
        self._stops: EndOffsets = {} if stops is None else stops
        self._buffer: deque[Fetched] = deque()
        self._buffered_bytes = 0
        self.cursors: dict[TopicPartition, Cursor] = {}
        self.until: EndOffsets | None = None
        """End offsets of the requested partitions; no other partitions are fetched. None if all partitions are read."""

    def wanted(self, cursor: Cursor) -> bool:
        """Return whether a partition may be fetched and handed out now."""
        until = self.until
        return cursor.is_read and (
            until is None or cursor.position < until.get(cursor.topic_partition, NO_OFFSET)
        )

    def restart(self, *, keeps_cursors: bool) -> None:
        """Drop all prefetched batches and pending answers; also drop the cursors unless the positions must be kept."""
        self.until = None
        if not keeps_cursors:
            self.assign(())
        for cursor in self.cursors.values():
            cursor.seek(cursor.position, cursor.position_epoch)
        self._drop_stale()

    def assign(self, cursors: Iterable[Cursor]) -> None:
        """Replace the assignment."""
        for cursor in self.cursors.values():
            cursor.life += 1
        self.cursors = {cursor.topic_partition: cursor for cursor in cursors}
        self._drop_stale()

    def add(self, cursors: Iterable[Cursor]) -> None:
        """Add partitions to the assignment."""
        for cursor in cursors:
            assert cursor.topic_partition not in self.cursors, f"{cursor} is already assigned"
            self.cursors[cursor.topic_partition] = cursor

    def remove(self, places: Iterable[TopicPartition]) -> None:
        """Remove partitions from the assignment and drop their prefetched batches."""
        for place in places:
            cursor = self.cursors.pop(place, None)
            if cursor is not None:
                cursor.life += 1
        self._drop_stale()

    def seek(self, cursor: Cursor, offset: int, last_epoch: int | None = None) -> None:
        """Move a cursor and drop its prefetched batches; see `Cursor.seek`."""
        cursor.seek(offset, last_epoch)
        self._drop_stale()

    def due(self, now: float) -> list[Cursor]:
        """Return the cursors that should be fetched now, longest waiting time first."""
        if self._buffered_bytes >= self._settings.prefetch_bytes:
            return []
        share = self._settings.prefetch_bytes // max(len(self.cursors), 1)
        limit = max(share, self._settings.partition_fetch_bytes_max)
        return [
            cursor
            for cursor in self.cursors.values()
            if not cursor.in_flight
            and cursor.error is None
            and cursor.retry_at <= now
            and cursor.buffered_bytes < limit
            and self.wanted(cursor)
            and not self._is_at_stop(cursor)
        ]

    def next_deadline(self, now: float) -> float | None:
        """Return the earliest time at which the back-off of a cursor ends; None if no cursor is in back-off."""
        waiting = (
            cursor.retry_at for cursor in self.cursors.values() if cursor.retry_at > now and cursor.is_read
        )
        return min(waiting, default=None)

    def arrived(self, cursor: Cursor, life: int, data: memoryview, next_offset: int) -> None:
        """Buffer a partition's part of an answer."""
        if cursor.life != life:
            return
        cursor.in_flight = False
        cursor.attempts = 0
        if next_offset == cursor.fetch_offset and not data:
            return
        before, cursor.last_epoch = cursor.last_epoch, _last_epoch(data, cursor.last_epoch)
        self._buffer.append(
            Fetched(cursor, life, data, cursor.fetch_offset, next_offset, cursor.last_epoch, before)
        )
        self._ask_last(cursor)
        cursor.fetch_offset = next_offset
        cursor.buffered_bytes += len(data)
        self._buffered_bytes += len(data)

    def skipped(self, cursor: Cursor, offset: int, last_epoch: int | None) -> None:
        """Continue fetching at a different offset.

        The position moves to the new offset after the buffered batches are read.
        """
        cursor.in_flight = False
        nothing = memoryview(b"")
        self._buffer.append(
            Fetched(cursor, cursor.life, nothing, cursor.fetch_offset, offset, last_epoch, cursor.last_epoch)
        )
        cursor.fetch_offset = offset
        cursor.last_epoch = last_epoch

    def _is_at_stop(self, cursor: Cursor) -> bool:
        if not self._stops:
            return False
        stop = self._stops.get(cursor.topic_partition)
        return stop is not None and cursor.fetch_offset >= stop

    def _ask_last(self, cursor: Cursor) -> None:
        """Move a partition that received data to the end of the fetch order: brokers fill answers in order (KIP-74)."""
        self.cursors[cursor.topic_partition] = self.cursors.pop(cursor.topic_partition)

    def delayed(self, cursor: Cursor, life: int, retry_at: float) -> None:
        """Delay the next fetch of a partition until `retry_at`."""
        if cursor.life == life:
            cursor.in_flight = False
            cursor.attempts += 1
            cursor.retry_at = retry_at

    def failed(self, cursor: Cursor, life: int, error: FairleadError) -> None:
        """Stop fetching a partition until a seek; the reader gets the error after the batches already fetched."""
        if cursor.life == life:
            cursor.in_flight = False
            cursor.error = error

    def take(self, wanted: Callable[[Cursor], bool]) -> Fetched | None:
        """Remove and return the oldest entry of a requested partition; None if no such entry is buffered."""
        for index, fetched in enumerate(self._buffer):
            if wanted(fetched.cursor):
                del self._buffer[index]
                return fetched
        return None

    def make_room(self) -> bool:
        """Drop entries of partitions not requested if they fill the buffer and a requested partition needs room.

        Dropped entries are fetched again when their partition is requested. Entries of a partition with a fetch in
        flight are kept, because the answer continues after these entries.
        """
        if self._buffered_bytes < self._settings.prefetch_bytes:
            return False
        if not any(self.wanted(cursor) for cursor in self.cursors.values()):
            return False
        forgotten: dict[Cursor, Fetched] = {}
        for fetched in self._buffer:
            if not fetched.cursor.in_flight:
                forgotten.setdefault(fetched.cursor, fetched)
        for cursor, first in forgotten.items():
            cursor.fetch_offset, cursor.last_epoch = first.start_offset, first.start_epoch
            # An error that was reported after the dropped entries will occur again.
            cursor.error = None
            self._buffered_bytes -= cursor.buffered_bytes
            cursor.buffered_bytes = 0
        self._buffer = deque(fetched for fetched in self._buffer if fetched.cursor not in forgotten)
        return bool(forgotten)

    def release(self, fetched: Fetched) -> None:
        """Free the buffer space of an entry that was read."""
        if not fetched.is_stale:
            fetched.cursor.buffered_bytes -= len(fetched.data)
        self._buffered_bytes -= len(fetched.data)

    def failures(self) -> Iterator[Cursor]:
        """Yield the failed cursors that have no buffered batch from before the failure."""
        return (
            cursor
            for cursor in self.cursors.values()
            if cursor.error and not cursor.buffered_bytes and cursor.is_read
        )

    def _drop_stale(self) -> None:
        self._buffered_bytes -= sum(len(fetched.data) for fetched in self._buffer if fetched.is_stale)
        self._buffer = deque(fetched for fetched in self._buffer if not fetched.is_stale)


def _last_epoch(data: memoryview, before: int | None) -> int | None:
    """Return the leader epoch of the last whole batch; damage is detected only when the batch is read."""
    at, epoch = 0, before
    while len(data) - at >= HEADER_BYTES:
        try:
            nbytes = batch_span(data, at)[1]
        except ProblemError:
            break
        epoch = _EPOCH.unpack_from(data, at + EPOCH_AT)[0]
        at += nbytes
    return epoch
