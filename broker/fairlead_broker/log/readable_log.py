"""Read access to a partition's log: batches by offset and by time, and the damaged ranges.

`ReadableLog` is the base class of `PartitionLog`, which alone changes the state of the log. Any number of reads
may run at the same time as one appender, and return only bytes that the appender has published. The module must
not know how the log grows or shrinks. Each read gets its offset limit as an argument.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from operator import attrgetter
from pathlib import Path
from threading import Lock
from typing import NoReturn

from fairlead_api.identifiers import LeaderEpoch, Offset, TimestampUs
from fairlead_broker.log.errors import (
    LogClosed,
    LogDamaged,
    OffsetOutOfRange,
    SegmentReplaced,
    StorageFailed,
)
from fairlead_broker.log.leader_epochs import EpochEnd, EpochStart, LeaderEpochs
from fairlead_broker.log.segments.damage import DamagedRange, merge_ranges, readable_until, skip_accepted
from fairlead_broker.log.segments.reading import LogRead
from fairlead_broker.log.segments.segments import Segment
from fairlead_broker.log.segments.time_lookup import first_record_in
from fairlead_broker.replication.divergence import epochs_between

_BASE_OFFSET = attrgetter("base_offset")


class ReadableLog:
    """The segments of a log in ascending order, from the log start to the log end."""

    def __init__(self, folder: Path, segments: Sequence[Segment], end: Offset, epochs: LeaderEpochs) -> None:
        self.folder = folder
        self.damaged: tuple[DamagedRange, ...] = ()
        """Unreadable ranges in ascending order, including ranges whose loss was accepted."""
        self._segments = tuple(segments)
        self._log_start = segments[0].base_offset
        self._end = end
        self._epochs = epochs
        self._generation = 0
        self._closed = False
        self._write_checkpoint: Callable[[], None] = lambda: None
        self._damage_lock = Lock()

    @property
    def log_start_offset(self) -> Offset:
        """First offset that may be read."""
        return self._log_start

    @property
    def end_offset(self) -> Offset:
        """Offset of the next record that is appended."""
        return self._end

    @property
    def generation(self) -> int:
        """Number of truncations so far: after a truncation the same offsets belong to other records."""
        return self._generation

    @property
    def segments(self) -> tuple[Segment, ...]:
        """Segments in ascending order. Only the last segment grows."""
        return self._segments

    @property
    def segment_count(self) -> int:
        """Number of segments, including the segment that grows."""
        return len(self._segments)

    @property
    def closed(self) -> bool:
        """Whether the log was closed."""
        return self._closed

    # ------------------------------------------------------------------------------------------ leader epochs

    @property
    def leader_epochs(self) -> tuple[EpochStart, ...]:
        """All known leader epochs, oldest first."""
        return tuple(self._epochs.entries)

    @property
    def last_epoch(self) -> LeaderEpoch | None:
        """Epoch of the last record, or None for a log without records. Epochs without records are ignored."""
        epochs = (start.epoch for start in reversed(self._epochs.entries) if start.start_offset < self._end)
        return next(epochs, None)

    def end_offset_for_epoch(self, epoch: LeaderEpoch) -> EpochEnd | None:
        """Return the largest known epoch that is not newer than `epoch`, and the end of its records (KIP-279).

        Returns None if `epoch` is newer than every known epoch.
        """
        return self._epochs.end_offset(epoch, self._end)

    def epoch_before(self, offset: Offset) -> EpochStart | None:
        """Return the epoch of the record before an offset, even of a deleted record, or None if it is unknown."""
        return self._epochs.before(offset)

    # ------------------------------------------------------------------------------------------ reading

    def read_cached(self, offset: Offset, bytes_max: int, offset_limit: Offset) -> LogRead | None:
        """Read like `read`, but only from memory and at most 1 MiB, without waiting for the disk.

        Returns None when the batches are not in memory, in which case the caller must call `read`. Raises the errors of
        `read`.
        """
        start, limit = self._readable(offset, offset_limit)
        if start >= limit:
            return _nothing(offset, start, limit)
        found = self._segment_of(start).read_cached(start, bytes_max, limit)
        return None if found is None or self._first_stale(found, None) is not None else found

    def read(self, offset: Offset, bytes_max: int, offset_limit: Offset) -> LogRead:
        """Read whole batches below the offset limit, starting with the batch that contains the offset.

        The first batch is returned even if it exceeds `bytes_max`. A read at an offset whose loss was accepted
        continues at the next readable offset. The call may wait for the disk. Raises `OffsetOutOfRange` for an
        offset below the log start or above the log end, `LogDamaged` for an offset inside a damaged range, and
        `StorageFailed` if the disk cannot be read.
        """
        while True:
            start, limit = self._readable(offset, offset_limit)
            if start >= limit:
                return _nothing(offset, start, limit)
            segment = self._segment_of(start)
            try:
                found = segment.read(start, bytes_max, limit)
            except SegmentReplaced:
                self._wait_for_swap()
                continue
            except LogDamaged as damaged:
                # The damage may begin after the offset. The damaged range is now recorded, and intact batches before
                # the range are served.
                if not self.note_damage([DamagedRange(damaged.first_offset, damaged.next_good_offset)]):
                    raise
                continue
            if found is not None and found.data:
                stale_at = self._first_stale(found, segment)
                if stale_at is not None:
                    stale = segment.first_damage(stale_at.start_offset, stale_at.epoch)
                    if stale is not None and self.note_damage([stale]):
                        continue
                if found.ends_at_stale:
                    # A read that begins at the stale batch could not compare it with the previous batch.
                    stale = segment.first_damage(start)
                    if stale is not None:
                        self.note_damage([stale])
                return found
            # No batch was found at an offset where one is expected: a batch extends to the limit or beyond, or has an
            # incorrect last offset.
            damage = segment.first_damage(start)
            if damage is None or not self.note_damage([damage]):
                if limit >= min(offset_limit, self._end) and skip_accepted(self.damaged, limit) == limit:
                    return LogRead(memoryview(b""), offset)
                # The gap ends where damage begins. The read skips the damage if its loss was accepted, and otherwise
                # reports it to readers whose limit reaches it.
                offset = limit

    def offset_for_time(self, timestamp_us: TimestampUs) -> tuple[Offset, TimestampUs] | None:
        """Return the offset and time of the first record at or after a time, or None if every record is older.

        The call may wait for the disk. The caller compares the returned offset with the offset limit of its
        reader. Raises `LogDamaged` if damage prevents an answer, and `StorageFailed` if the disk cannot be read.
        """
        while True:
            try:
                return first_record_in(self._segments, timestamp_us, self._log_start, self._end)
            except SegmentReplaced:
                self._wait_for_swap()
            except OSError as error:
                message = f"{self.folder}: cannot search for a time: {error.strerror}"
                raise StorageFailed(message) from error

    def newest_record(self) -> tuple[Offset, TimestampUs] | None:
        """Return the offset and time of the first record with the latest time, or None for a log without records.

        The call may wait for the disk, and raises like `offset_for_time`.
        """
        try:
            newest = max((segment.max_time_us() for segment in self._segments), default=None)
        except OSError as error:
            message = f"{self.folder}: cannot search for a time: {error.strerror}"
            raise StorageFailed(message) from error
        return None if newest is None else self.offset_for_time(TimestampUs(newest))

    # ------------------------------------------------------------------------------------------ damage

    def note_damage(self, found: Sequence[DamagedRange]) -> bool:
        """Record unreadable ranges. The next checkpoint makes the ranges durable.

        Returns False if all of the ranges were already known.
        """
        with self._damage_lock:
            before = self.damaged
            self.damaged = merge_ranges((*before, *found), self._log_start, self._end)
            return self.damaged != before

    def look_for_damage(self, offset: Offset) -> bool:
        """Read a segment from an offset on, and record the first damaged range. Returns whether a range is damaged.

        Raises `OffsetOutOfRange` or `StorageFailed`.
        """
        found = self._segment_of(offset).first_damage(offset)
        if found is not None:
            self.note_damage([found])
        return found is not None

    def accept_damage(self, first_offset: Offset, next_good_offset: Offset) -> bool:
        """Durably make reads skip a damaged range. Returns False if no damaged range has exactly these offsets.

        Accepting the same range again returns True. If the call raises `Shortage` or `StorageFailed`, the loss is not
        accepted.
        """
        accepted = DamagedRange(first_offset, next_good_offset, accepted=True)
        with self._damage_lock:
            before = self.damaged
            if accepted in before:
                return True
            refused = DamagedRange(first_offset, next_good_offset)
            if refused not in before:
                return False
            self.damaged = tuple(accepted if each == refused else each for each in before)
        try:
            self._write_checkpoint()
        except BaseException:
            with self._damage_lock:
                self.damaged = tuple(refused if each == accepted else each for each in self.damaged)
            raise
        return True

    # ------------------------------------------------------------------------------------------ inside

    def _wait_for_swap(self) -> None:
        """Wait until the list of segments contains no replaced segments."""

    def _end_at(self, end: Offset, damaged: Sequence[DamagedRange]) -> None:
        """Publish the damaged ranges before the new end of the log, so that every read skips an accepted loss."""
        with self._damage_lock:
            self.damaged = merge_ranges(damaged, self._log_start, end)
            self._end = end

    def _readable(self, offset: Offset, offset_limit: Offset) -> tuple[Offset, Offset]:
        """Return the start offset and the offset limit of a read. Raises `OffsetOutOfRange`."""
        self._check_open()
        end = self._end
        if not self._log_start <= offset <= end:
            self._out_of_range(offset)
        damaged = self.damaged
        if not damaged:
            return offset, min(offset_limit, end)
        start, last = skip_accepted(damaged, offset), min(offset_limit, end)
        if start >= last:
            # Damage beyond the reader's limit is not reported to the reader.
            return start, last
        limit = readable_until(damaged, start, last)
        if isinstance(limit, DamagedRange):
            path = self._segment_of(start).path
            raise LogDamaged(path, limit.first_offset, limit.next_good_offset, "found before")
        return start, limit

    def _first_stale(self, found: LogRead, segment: Segment | None) -> EpochStart | None:
        """Return the first offset whose batch has an earlier leader epoch than the list names, and the listed epoch.

        A lost write may leave an older batch at an offset. Within a read, an older batch left by a lost write has an
        earlier epoch than the batch before it. The first batch of a read and the first batch of an epoch are compared
        with the list. The first batch of an epoch is rarely within a read, so it is read from the segment. If no
        segment is given, the start of the epoch is returned unchecked.
        """
        base_offset, first_epoch = found.first_batch
        for begun in epochs_between(self._epochs.entries, Offset(base_offset), found.next_offset):
            if begun.start_offset <= base_offset:
                if first_epoch < begun.epoch:
                    return EpochStart(begun.epoch, Offset(base_offset))
            elif segment is None:
                return begun
            else:
                first = segment.read(begun.start_offset, 1, found.next_offset)
                if first is not None and first.data and first.first_batch[1] < begun.epoch:
                    return begun
        return None

    def _segment_of(self, offset: Offset) -> Segment:
        segments = self._segments
        index = bisect_right(segments, offset, key=_BASE_OFFSET) - 1
        if index < 0:
            # The segment was removed after the log start was read.
            self._out_of_range(offset)
        return segments[index]

    def _check_open(self) -> None:
        if self._closed:
            message = f"{self.folder}: the log is closed"
            raise LogClosed(message)

    def _out_of_range(self, offset: Offset) -> NoReturn:
        raise OffsetOutOfRange(self.folder, offset, self._log_start, self._end)


def _nothing(offset: Offset, start: Offset, limit: Offset) -> LogRead:
    """Return an empty result, after which the reader continues at its offset or after a loss that was accepted."""
    return LogRead(memoryview(b""), max(offset, min(start, limit)))
