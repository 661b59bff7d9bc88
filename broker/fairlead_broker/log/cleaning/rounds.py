"""One round of cleaning: read the closed segments of a partition, and write the segments that replace them.

A round maps the keys of the cleanable range, and then rewrites adjacent segments in groups, in ascending order. The new
files of a group are written next to the old files, with the suffix `.cleaned`, and are synced. The broker renames them
(`swap`) before the round continues. `process` runs rounds in a child process of the broker, and tests run them
directly. A round opens files by their paths, changes no existing file and has no clock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec
import numpy as np

from fairlead_api.batch.columns import nulls_of
from fairlead_api.batch.control_batches import read_marker
from fairlead_api.batch.header import HEADER_BYTES, BatchHeader, check_stamp_checksum, read_header
from fairlead_api.identifiers import Offset
from fairlead_api.problems import ProblemError
from fairlead_broker.compaction.cleaned_batches import CleanedBatches, Totals
from fairlead_broker.compaction.fates import Fates, RoundFacts
from fairlead_broker.compaction.kept_rows import kept_rows
from fairlead_broker.compaction.key_hashes import KeyHashes
from fairlead_broker.compaction.key_map import KeyMap
from fairlead_broker.compaction.newest_records import NewestRecords
from fairlead_broker.compaction.windows import KEYS, NO_HORIZON, WindowBuilder
from fairlead_broker.log.aborted_index import ABORTED_LAYOUT
from fairlead_broker.log.segments.indexes import OFFSET_INDEX, TIME_INDEX, SegmentIndex, encode_final_time
from fairlead_broker.log.segments.segments import ABORTED_SUFFIX, LOG_SUFFIX
from fairlead_broker.producers import AbortedTransaction, aborted_by

if TYPE_CHECKING:
    from fairlead_broker.log.segments.storage import File, Storage

CLEANED_SUFFIX: Final = ".cleaned"
READ_BYTES: Final = 4 << 20
WRITE_BYTES: Final = 1 << 20
PROGRESS_BYTES: Final = 8 << 20
"""Number of bytes read and written after which a round reports its progress and waits for permission to continue."""
OFFSETS_MAX: Final = 2**31 - 1
"""Maximum range of offsets in a group of segments."""


class CleaningFailed(Exception):
    """A segment contains bytes that are not an intact batch, so the round ends."""

    def __init__(self, first_offset: int, next_offset: int, reason: str) -> None:
        super().__init__(reason)
        self.first_offset = Offset(first_offset)
        """Offset below which all batches of the segment are intact."""
        self.next_offset = Offset(next_offset)
        """End of the segment."""


class LostRange(msgspec.Struct, frozen=True):
    """Offsets of a segment whose loss was accepted. The new segment has a gap in their place."""

    first_offset: Offset
    next_offset: Offset
    stop: int
    """Position of the batch at `next_offset`, or the end of the file."""


class SegmentRange(msgspec.Struct, frozen=True):
    """A closed segment that a round reads."""

    base_offset: Offset
    next_offset: Offset
    size: int
    """Size of the segment's batches in bytes."""
    lost: tuple[LostRange, ...] = ()
    """Lost ranges in ascending order."""

    @property
    def is_lost(self) -> bool:
        """Whether the segment has no readable offset."""
        return any(each.first_offset == self.base_offset and self.ends_in(each) for each in self.lost)

    @property
    def ends_lost(self) -> bool:
        """Whether the last offset of the segment is lost."""
        return any(map(self.ends_in, self.lost))

    def ends_in(self, lost: LostRange) -> bool:
        """Return whether a lost range reaches the end of the segment."""
        return lost.next_offset == self.next_offset


class CleaningOrder(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that a round needs to know."""

    folder: str
    segments: tuple[SegmentRange, ...]
    """Adjacent closed segments from the log start to the end of the cleanable range."""
    map_from: Offset
    """Offset below which earlier rounds have cleaned the partition."""
    segment_bytes: int
    index_interval_bytes: int
    buffer_bytes: int
    """Memory of the map in bytes."""
    seed: bytes
    """Random bytes for the hashes of keys."""
    facts: RoundFacts


class Progress(msgspec.Struct, frozen=True, tag="progress"):
    """Bytes that were read and written since the last report."""

    read_bytes: int
    written_bytes: int


class Mapped(msgspec.Struct, frozen=True, tag="mapped"):
    """End of the first pass."""

    until: Offset
    """Offset below which the round cleans the log."""
    used_ratio: float
    """Fraction of the map that is in use."""


class GroupCleaned(msgspec.Struct, frozen=True, tag="group"):
    """A group of segments whose replacement has been written and synced."""

    base_offsets: tuple[Offset, ...]
    """Base offsets of the old segments. The first offset is also the base offset of the new segment."""
    next_offset: Offset
    cleaned_to: Offset
    """Offset below which the batches of the new segment may differ from those of the old segments."""
    removed_to: Offset
    """Offset after the last tombstone or marker that this round removed, or 0."""
    lost: tuple[tuple[Offset, Offset], ...] = ()
    """First and next offset of each lost range that was left out."""


class RoundDone(msgspec.Struct, frozen=True, tag="done"):
    """End of a round."""

    until: Offset
    kept_records: int
    dropped_records: int
    oldest_horizon_us: int | None
    horizon_bytes: int


Event = Progress | Mapped | GroupCleaned | RoundDone


def clean(order: CleaningOrder, storage: Storage) -> Iterator[Event]:
    """Carry out a round. After each `GroupCleaned`, the caller swaps the group before it requests the next event.

    Raises `CleaningFailed` for a damaged segment, and `OSError`.
    """
    return _Round(order, storage).run()


class _Round:
    """State of one round."""

    def __init__(self, order: CleaningOrder, storage: Storage) -> None:
        self._order = order
        self._storage = storage
        self._folder = Path(order.folder)
        self._hashes = KeyHashes(order.seed)
        self._totals = Totals()
        self._read_bytes = self._written_bytes = 0

    def run(self) -> Iterator[Event]:
        key_map = KeyMap(self._order.buffer_bytes)
        until = yield from self._map_keys(key_map)
        yield Mapped(until, key_map.used_ratio)
        fates = Fates(self._order.facts, until)
        newest = NewestRecords(key_map, self._hashes, self._order.map_from)
        for group in _groups(self._order, until):
            writer = _GroupWriter(self._storage, self._folder, group, until, self._order.index_interval_bytes)
            yield from self._rewrite(group, fates, newest, writer)
            writer.close()
            self._written_bytes += writer.take_written()
            yield from self._progress(self._read_bytes + self._written_bytes)
            yield GroupCleaned(
                tuple(segment.base_offset for segment in group),
                group[-1].next_offset,
                min(until, group[-1].next_offset),
                Offset(self._totals.removed_to),
                tuple((each.first_offset, each.next_offset) for segment in group for each in segment.lost),
            )
        totals = self._totals
        horizon_us = None if totals.oldest_horizon_us == NO_HORIZON else totals.oldest_horizon_us
        yield RoundDone(until, totals.kept_records, totals.dropped_records, horizon_us, totals.horizon_bytes)

    def _map_keys(self, key_map: KeyMap) -> Generator[Progress, None, Offset]:
        """Store the newest offset of each key in the cleanable range. Returns the end of the mapped range."""
        order = self._order
        end = order.segments[-1].next_offset
        window = WindowBuilder(Fates(order.facts, end).has_rows, KEYS)
        first = order.map_from
        for segment in order.segments:
            if segment.next_offset <= order.map_from:
                continue
            for header, data in self._batches(segment):
                if header.next_offset > order.map_from:
                    _check(segment, header, window.add, data)
                    if window.is_full:
                        if not self._put(window, key_map):
                            return first
                        first = Offset(header.next_offset)
                yield from self._progress(PROGRESS_BYTES)
        return end if window.is_empty or self._put(window, key_map) else first

    def _put(self, builder: WindowBuilder, key_map: KeyMap) -> bool:
        window = builder.take()
        keys = window.columns.column(0)
        if not len(keys):
            return True
        upper, lower = self._hashes.of(keys)
        offsets = window.offsets
        if keys.null_count:
            keyed = ~nulls_of(keys)
            upper, lower, offsets = upper[keyed], lower[keyed], offsets[keyed]
        return key_map.put(upper, lower, offsets)

    def _rewrite(
        self, group: tuple[SegmentRange, ...], fates: Fates, newest: NewestRecords, writer: _GroupWriter
    ) -> Iterator[Progress]:
        cleaned = CleanedBatches(self._order.facts, fates, self._totals)
        builder = WindowBuilder(lambda header: fates.has_rows(header) and newest.may_be_in(header))
        for segment in group:
            edges = {each.next_offset for each in segment.lost}
            for header, batch in self._batches(segment):
                if header.base_offset in edges:
                    self._finish(builder, newest, cleaned, writer)
                    writer.begin_after_gap()
                _check(segment, header, builder.add, batch)
                if builder.is_full:
                    self._write_window(builder, newest, cleaned, writer)
                    yield from self._progress(PROGRESS_BYTES)
        self._finish(builder, newest, cleaned, writer)

    def _finish(
        self, builder: WindowBuilder, newest: NewestRecords, cleaned: CleanedBatches, writer: _GroupWriter
    ) -> None:
        """Write all batches that were read, so that no batch covers the offsets of a lost range."""
        if not builder.is_empty:
            self._write_window(builder, newest, cleaned, writer)
        for found, data in cleaned.finish():
            writer.write(found, data)

    def _write_window(
        self, builder: WindowBuilder, newest: NewestRecords, cleaned: CleanedBatches, writer: _GroupWriter
    ) -> None:
        window = builder.take()
        kept = kept_rows(window, newest, self._order.facts)
        for found, data in cleaned.add(window, kept):
            writer.write(found, data)
        self._written_bytes += writer.take_written()

    def _batches(self, segment: SegmentRange) -> Iterator[tuple[BatchHeader, memoryview]]:
        file = self._storage.open(self._folder / f"{segment.base_offset:020d}{LOG_SUFFIX}")
        for header, data in stored_batches(file, segment):
            self._read_bytes += len(data)
            yield header, data

    def _progress(self, due_bytes: int) -> Iterator[Progress]:
        if self._read_bytes + self._written_bytes >= max(due_bytes, 1):
            yield Progress(self._read_bytes, self._written_bytes)
            self._read_bytes = self._written_bytes = 0


def stored_batches(file: File, segment: SegmentRange) -> Iterator[tuple[BatchHeader, memoryview]]:
    """Yield the batches of a segment; the offsets outside the lost ranges must be contiguous.

    Only the stamps are verified. Raises `CleaningFailed` and `OSError`.
    """
    position, expected, lost = 0, int(segment.base_offset), deque(segment.lost)
    buffer, start = memoryview(b""), 0
    while True:
        while lost and expected == lost[0].first_offset:
            skipped = lost.popleft()
            position, expected = skipped.stop, skipped.next_offset
        if position >= segment.size:
            break
        at = position - start
        left = len(buffer) - at
        nbytes = 0
        if left >= HEADER_BYTES:
            header = _header(buffer[at:], segment, expected)
            nbytes = header.total_bytes
            if nbytes <= left:
                yield header, buffer[at : at + nbytes]
                position, expected = position + nbytes, header.next_offset
                continue
        wanted = min(max(READ_BYTES, nbytes), segment.size - position)
        if wanted < max(nbytes, HEADER_BYTES):
            raise CleaningFailed(
                expected, segment.next_offset, f"{wanted} bytes at byte {position} are no batch"
            )
        buffer, start = np.empty(wanted, np.uint8).data, position
        if file.read_into(buffer, position) < wanted:
            raise CleaningFailed(
                expected, segment.next_offset, f"the file ends before byte {position + wanted}"
            )
    if expected != segment.next_offset:
        reason = f"the segment ends at offset {expected} and not at {segment.next_offset}"
        raise CleaningFailed(expected, segment.next_offset, reason)


def _header(buffer: memoryview, segment: SegmentRange, expected: int) -> BatchHeader:
    try:
        check_stamp_checksum(buffer)
        header = read_header(buffer)
    except ProblemError as problem:
        raise CleaningFailed(expected, segment.next_offset, problem.detail) from problem
    if header.base_offset != expected or header.next_offset > segment.next_offset:
        reason = f"offsets {header.base_offset} to {header.last_offset} are stored where {expected} belongs"
        raise CleaningFailed(expected, segment.next_offset, reason)
    return header


def _check(
    segment: SegmentRange,
    header: BatchHeader,
    add: Callable[[BatchHeader, memoryview], None],
    data: memoryview,
) -> None:
    """Add a batch to a window, which checks the batch. Raises `CleaningFailed`."""
    try:
        add(header, data)
    except ProblemError as problem:
        raise CleaningFailed(header.base_offset, segment.next_offset, problem.detail) from problem


def _groups(order: CleaningOrder, until: Offset) -> Iterator[tuple[SegmentRange, ...]]:
    """Yield groups of adjacent segments below the end of the range that together fit into one segment.

    A group ends with a segment whose last offset is lost. A segment without a readable offset is in no group.
    """
    group: list[SegmentRange] = []
    for segment in order.segments:
        if segment.base_offset >= until:
            break
        if group and group[-1].ends_lost:
            yield tuple(group)
            group = []
        if segment.is_lost:
            if group:
                yield tuple(group)
            group = []
            continue
        size = sum(each.size for each in group) + segment.size
        if group and (size > order.segment_bytes or segment.next_offset - group[0].base_offset > OFFSETS_MAX):
            yield tuple(group)
            group = []
        group.append(segment)
    if group:
        yield tuple(group)


class _GroupWriter:
    """Writer of the files that replace a group of segments."""

    def __init__(
        self,
        storage: Storage,
        folder: Path,
        group: tuple[SegmentRange, ...],
        until: Offset,
        interval_bytes: int,
    ) -> None:
        self._storage = storage
        self._name = folder / f"{group[0].base_offset:020d}"
        self._next_offset = group[-1].next_offset
        self._until = until
        self._interval_bytes = interval_bytes
        self._index = SegmentIndex()
        self._aborted: list[AbortedTransaction] = []
        self._size = self._flushed = self._reported = 0
        self._buffers: list[bytes] = []
        self._is_after_gap = False
        self._file = self._create(LOG_SUFFIX)

    def write(self, header: BatchHeader | None, data: bytes) -> None:
        """Add a batch to the segment. `header` is given for a stored batch that is kept unchanged."""
        found = read_header(data) if header is None else header
        # A batch after a gap has an index entry, since readers cannot reach it from an earlier entry.
        interval_bytes = 0 if self._is_after_gap else self._interval_bytes
        self._is_after_gap = False
        self._index.note(found.base_offset, self._size, found.max_time_us, interval_bytes)
        if header is not None and header.is_control and header.base_offset >= self._until:
            extension = data[HEADER_BYTES : HEADER_BYTES + header.extension_bytes]
            marker = read_marker(extension, header.producer_id, header.producer_epoch)
            aborted = None if marker is None else aborted_by(marker, Offset(header.base_offset))
            if aborted is not None:
                self._aborted.append(aborted)
        self._buffers.append(data)
        self._size += len(data)
        if self._size - self._flushed >= WRITE_BYTES:
            self._flush()

    def begin_after_gap(self) -> None:
        """Record that offsets are missing before the next batch."""
        self._is_after_gap = True

    def take_written(self) -> int:
        """Return the number of bytes written since the last call."""
        written, self._reported = self._size - self._reported, self._size
        return written

    def close(self) -> None:
        """Write the indexes, and sync all files.

        The file of aborted transactions is written even if it has no entries, since it replaces the file of the old
        segment. The syncs come last: the first sync then commits the changes of all files to the file system's journal,
        and syncs of producers wait for one commit instead of four.
        """
        self._flush()
        index, count = self._index, len(self._index)
        times = TIME_INDEX.encode_header() + index.encode_times(0, count)
        times += encode_final_time(index.max_time_us, self._next_offset)
        others = [
            self._write(".index", OFFSET_INDEX.encode_header() + index.encode_offsets(0, count)),
            self._write(".timeindex", times),
        ]
        entries = ABORTED_LAYOUT.encode(
            (each.producer_id, each.first_offset, each.marker_offset, each.epoch) for each in self._aborted
        )
        others.append(self._write(ABORTED_SUFFIX, ABORTED_LAYOUT.encode_header() + entries))
        for file in (*others, self._file):
            file.sync()

    def _flush(self) -> None:
        if self._buffers:
            self._file.write(self._buffers, self._flushed)
            self._buffers, self._flushed = [], self._size

    def _write(self, suffix: str, data: bytes) -> File:
        file = self._create(suffix)
        file.write([data], 0)
        return file

    def _create(self, suffix: str) -> File:
        path = self._name.with_name(self._name.name + suffix + CLEANED_SUFFIX)
        # A file left by an earlier round may also have a second name.
        self._storage.unlink(path)
        return self._storage.open(path, create=True)
