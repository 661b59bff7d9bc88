"""The position of a consumer in each partition, and the batches fetched ahead of it.

Pure: the fetcher asks `due` for the next fetches and reports their results, the consumer takes entries out; time is an
argument. A seek starts a new generation of its cursor, so that answers for the old one are dropped.
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
"""Below every offset."""
_EPOCH: Final = struct.Struct("<i")

EndOffsets: TypeAlias = Mapping[TopicPartition, int]
"""For each partition the offset before which to stop."""


class Cursor:
    """One assigned partition."""

    __slots__ = (
        "attempts",
        "buffered_bytes",
        "error",
        "error_is_told",
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
        """The highest leader epoch seen of this partition: an older leader must not answer."""
        self.high_watermark: int | None = None
        self.log_start_offset: int | None = None
        self.paused = False
        """Whether its reader wants nothing of it for now."""
        self.withheld = False
        """Whether its group is assigning or revoking it: no record is fetched or handed out until that is done."""
        self.seek(offset, last_epoch)

    def seek(self, offset: int, last_epoch: int | None = None) -> None:
        """Restart at an offset; earlier fetched batches, failures and answers no longer count.

        `last_epoch`: leader epoch of the record before the offset, if the reader has seen it.
        """
        self.life += 1
        self.position = offset
        """Offset of the next record to hand out."""
        self.position_epoch = last_epoch
        """Leader epoch of the last batch before the position."""
        self.rest_until: int | None = None
        """The end of the batch in which the position is, where a reader took records one by one and stopped there."""
        self.fetch_offset = offset
        """Offset of the next fetch: the position and what is buffered behind it."""
        self.last_epoch = last_epoch
        """Leader epoch of the last batch before the next fetch: how a leader tells that its log is another one."""
        self.buffered_bytes = 0
        self.in_flight = False
        self.retry_at = 0.0
        self.attempts = 0
        self.error: FairleadError | None = None
        self.error_is_told = False

    def saw_leader_epoch(self, epoch: int) -> None:
        """Take note of a leader epoch; it never goes back."""
        self.leader_epoch = epoch if self.leader_epoch is None else max(self.leader_epoch, epoch)

    @property
    def is_read(self) -> bool:
        """Whether it is to be fetched and handed out."""
        return not self.paused and not self.withheld

    @property
    def is_behind(self) -> bool:
        """Whether the last answer said that there is more."""
        return self.high_watermark is not None and self.fetch_offset < self.high_watermark

    @property
    def topic_partition(self) -> TopicPartition:
        """The partition by name."""
        return TopicPartition(self.topic, self.partition)

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


@dataclass(frozen=True, slots=True, eq=False)
class Fetched:
    """One partition's part of an answer: whole batches, or none where only the position moved on."""

    cursor: Cursor
    life: int
    data: memoryview
    start_offset: int
    """The asked offset: records below it are not handed out."""
    next_offset: int
    last_epoch: int | None
    """Leader epoch of the last batch before the next offset."""
    start_epoch: int | None = None
    """Leader epoch of the last batch before the asked offset."""

    @property
    def is_stale(self) -> bool:
        """Whether a seek or a new assignment came since."""
        return self.life != self.cursor.life


class Prefetch:
    """All cursors of a consumer and the buffer between its fetcher and its reader.

    `stops` gives partitions an end: the offset at which no fetch of the partition begins any more. A partition without
    a stop has no end.
    """

    def __init__(self, settings: ConsumerSettings, stops: EndOffsets | None = None) -> None:
        self._settings = settings
        self._stops: EndOffsets = {} if stops is None else stops
        self._buffer: deque[Fetched] = deque()
        self._buffered_bytes = 0
        self.cursors: dict[TopicPartition, Cursor] = {}
        self.until: EndOffsets | None = None
        """What the reader reads, if not everything: nothing else is fetched."""

    def wanted(self, cursor: Cursor) -> bool:
        """Whether a partition is to be fetched and handed out now."""
        until = self.until
        return cursor.is_read and (
            until is None or cursor.position < until.get(cursor.topic_partition, NO_OFFSET)
        )

    def restart(self, *, keeps_cursors: bool) -> None:
        """Drop all fetched batches and answers under way, and all cursors unless they are kept at their positions."""
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
        """Take partitions in beside the others."""
        for cursor in cursors:
            assert cursor.topic_partition not in self.cursors, f"{cursor} has another reader here"
            self.cursors[cursor.topic_partition] = cursor

    def remove(self, places: Iterable[TopicPartition]) -> None:
        """Forget partitions and what was fetched of them; the others go on."""
        for place in places:
            cursor = self.cursors.pop(place, None)
            if cursor is not None:
                cursor.life += 1
        self._drop_stale()

    def seek(self, cursor: Cursor, offset: int, last_epoch: int | None = None) -> None:
        """Move a cursor and drop what was fetched for it; see `Cursor.seek`."""
        cursor.seek(offset, last_epoch)
        self._drop_stale()

    def due(self, now: float) -> list[Cursor]:
        """Return the cursors that should be fetched now, the longest waiting first."""
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
        """Return when a cursor's back-off ends."""
        waiting = (
            cursor.retry_at for cursor in self.cursors.values() if cursor.retry_at > now and cursor.is_read
        )
        return min(waiting, default=None)

    def arrived(self, cursor: Cursor, life: int, data: memoryview, next_offset: int) -> None:
        """Take a part of an answer in."""
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
        """Go on elsewhere, behind what was fetched: the position moves there once the reader has had that."""
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
        """Put a partition that was given data behind the others: brokers fill an answer in the order asked (KIP-74)."""
        self.cursors[cursor.topic_partition] = self.cursors.pop(cursor.topic_partition)

    def delayed(self, cursor: Cursor, life: int, retry_at: float) -> None:
        """Ask again for a partition, not before `retry_at`."""
        if cursor.life == life:
            cursor.in_flight = False
            cursor.attempts += 1
            cursor.retry_at = retry_at

    def failed(self, cursor: Cursor, life: int, error: FairleadError) -> None:
        """Stop a partition until a seek; the reader gets the error after the batches fetched before it."""
        if cursor.life == life:
            cursor.in_flight = False
            cursor.error = error

    def take(self, wanted: Callable[[Cursor], bool]) -> Fetched | None:
        """Return the oldest entry of a wanted partition and leave the others."""
        for index, fetched in enumerate(self._buffer):
            if wanted(fetched.cursor):
                del self._buffer[index]
                return fetched
        return None

    def make_room(self) -> bool:
        """Forget what fills the buffer, if all of it is of partitions that are not wanted and another one is.

        It is fetched again when it is wanted. What is on its way follows what is buffered, so that stays.
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
            # What failed behind it fails again.
            cursor.error = None
            self._buffered_bytes -= cursor.buffered_bytes
            cursor.buffered_bytes = 0
        self._buffer = deque(fetched for fetched in self._buffer if fetched.cursor not in forgotten)
        return bool(forgotten)

    def release(self, fetched: Fetched) -> None:
        """Give the room of an entry back once it was read."""
        if not fetched.is_stale:
            fetched.cursor.buffered_bytes -= len(fetched.data)
        self._buffered_bytes -= len(fetched.data)

    def failures(self) -> Iterator[Cursor]:
        """Yield the cursors that failed and have nothing buffered before the failure."""
        return (
            cursor
            for cursor in self.cursors.values()
            if cursor.error and not cursor.buffered_bytes and cursor.is_read
        )

    def _drop_stale(self) -> None:
        self._buffered_bytes -= sum(len(fetched.data) for fetched in self._buffer if fetched.is_stale)
        self._buffer = deque(fetched for fetched in self._buffer if not fetched.is_stale)


def _last_epoch(data: memoryview, before: int | None) -> int | None:
    """Return the leader epoch of the last whole batch; damage is found when the data is read."""
    at, epoch = 0, before
    while len(data) - at >= HEADER_BYTES:
        try:
            nbytes = batch_span(data, at)[1]
        except ProblemError:
            break
        epoch = _EPOCH.unpack_from(data, at + EPOCH_AT)[0]
        at += nbytes
    return epoch
