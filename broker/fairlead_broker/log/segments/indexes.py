"""The sparse index of a segment: positions of batches in the file by offset, and the latest times of records.

An entry states that the batch with the entry's base offset begins at the entry's position, and that no record
before that position has a newer time than the entry's time. Every entry is in both index files, so one walk over
the headers fills both files. `segments` and `recovery` use the index. Every entry can be rebuilt from the headers
of the batches, so a damaged index never causes a read to fail. The module encodes and decodes the bytes of index
files, but must not access files.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from fairlead_api.identifiers import Offset
from fairlead_broker.log.segments.entry_file import HEADER_BYTES, EntryKind, EntryLayout

if TYPE_CHECKING:
    from numpy.typing import NDArray

OFFSET_INDEX: Final = EntryLayout(EntryKind.OFFSET_INDEX, "qI")
TIME_INDEX: Final = EntryLayout(EntryKind.TIME_INDEX, "qqI")
NO_TIME: Final = -(2**63)
"""Time older than every record, for a segment without records."""


@dataclass(frozen=True, slots=True)
class IndexPoint:
    """A position in a segment at which a walk over batch headers can start."""

    offset: Offset
    position: int
    max_time_us: int
    """Latest time of the segment's records before this position."""


class SegmentIndex:
    """Index entries of one segment in memory, in ascending order of offset and position.

    One appender writes the index, and any thread may read the index at any time. An entry's position and time are
    appended before its offset, so a reader that finds an offset also finds its position and time.
    """

    __slots__ = ("max_time_us", "offsets", "positions", "times")

    def __init__(self) -> None:
        self.max_time_us = NO_TIME
        """Latest time of any record in the segment, with or without an index entry."""
        self.offsets = array("q")
        self.positions = array("q")
        self.times = array("q")

    def __len__(self) -> int:
        return len(self.offsets)

    @property
    def nbytes(self) -> int:
        """Number of bytes of memory that the entries use."""
        return 24 * len(self.offsets)

    @property
    def file_bytes(self) -> int:
        """Size of the offset index file, which `segment.index.bytes` limits."""
        return HEADER_BYTES + OFFSET_INDEX.entry_bytes * len(self.offsets)

    def is_due(self, position: int, interval_bytes: int) -> bool:
        """Return whether a batch at this position gets an entry. The first batch of a segment needs no entry."""
        last = self.positions[-1] if self.positions else 0
        return position > last and position - last >= interval_bytes

    def note(self, base_offset: int, position: int, max_time_us: int, interval_bytes: int) -> None:
        """Add the next batch of the segment. With an interval of 0 the batch always gets an entry."""
        if self.is_due(position, interval_bytes):
            self.positions.append(position)
            self.times.append(self.max_time_us)
            self.offsets.append(base_offset)
        self.max_time_us = max(self.max_time_us, max_time_us)

    def point_at(self, index: int) -> IndexPoint:
        """Return the entry with this number."""
        return IndexPoint(Offset(self.offsets[index]), self.positions[index], self.times[index])

    def last_at_or_below(self, offset: int) -> int:
        """Return the number of the last entry whose offset is at most `offset`, or -1."""
        return bisect_right(self.offsets, offset) - 1

    def position_at_or_below(self, offset: int) -> int:
        """Return the position from which a walk finds the batch with an offset."""
        return self.place_at_or_below(offset)[0]

    def place_at_or_below(self, offset: int) -> tuple[int, int]:
        """Return (position, offset) of the last entry at or below an offset, or (0, -1) before the first entry."""
        index = bisect_right(self.offsets, offset) - 1
        return (self.positions[index], self.offsets[index]) if index >= 0 else (0, -1)

    def position_at_or_above(self, offset: int, end: int) -> int:
        """Return a position, at most `end`, at or before which every batch below an offset ends."""
        index = bisect_left(self.offsets, offset)
        return min(self.positions[index], end) if index < len(self.offsets) else end

    def position_after(self, position: int, end: int) -> int:
        """Return the position of the first entry after `position`, but at most `end`."""
        index = bisect_right(self.positions, position)
        return min(self.positions[index], end) if index < len(self.positions) else end

    def last_before(self, position: int, offset: int) -> tuple[int, int]:
        """Return (position, offset) of the last entry below both the position and the offset, or (-1, -1)."""
        index = min(bisect_left(self.positions, position), bisect_left(self.offsets, offset)) - 1
        return (self.positions[index], self.offsets[index]) if index >= 0 else (-1, -1)

    def entries_between(
        self, position: int, position_stop: int, offset_stop: int
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the positions and offsets of the entries from `position` up to `position_stop` and `offset_stop`."""
        start = bisect_left(self.positions, position)
        stop = min(bisect_left(self.positions, position_stop), bisect_left(self.offsets, offset_stop))
        positions, offsets = self.positions[start:stop], self.offsets[start:stop]
        return np.frombuffer(positions, np.int64), np.frombuffer(offsets, np.int64)

    def first_with_time(self, timestamp_us: int) -> int:
        """Return the number of the first entry that follows a record with this time or newer."""
        return bisect_left(self.times, timestamp_us)

    def cut(self, count: int, max_time_us: int) -> SegmentIndex:
        """Return a copy with the first `count` entries, and the latest time up to the new end of the segment.

        The original index stays unchanged because readers may use it.
        """
        shorter = SegmentIndex()
        shorter.max_time_us = max_time_us
        shorter.offsets = self.offsets[:count]
        shorter.positions = self.positions[:count]
        shorter.times = self.times[:count]
        return shorter

    def cut_at_or_below(self, offset: int) -> tuple[SegmentIndex, IndexPoint | None]:
        """Return a copy of the index up to an offset, and its last entry, from which a walk continues."""
        count = self.last_at_or_below(offset) + 1
        if count == 0:
            return SegmentIndex(), None
        point = self.point_at(count - 1)
        return self.cut(count, point.max_time_us), point

    def encode_offsets(self, start: int, stop: int) -> bytes:
        """Return the entries from `start` up to `stop` in the format of the offset index file."""
        return OFFSET_INDEX.encode(zip(self.offsets[start:stop], self.positions[start:stop], strict=True))

    def encode_times(self, start: int, stop: int) -> bytes:
        """Return the entries from `start` up to `stop` in the format of the time index file."""
        return TIME_INDEX.encode(
            (time_us, offset, 0)
            for time_us, offset in zip(self.times[start:stop], self.offsets[start:stop], strict=True)
        )


def encode_final_time(max_time_us: int, next_offset: int) -> bytes:
    """Return the final entry of a closed segment's time index, with the latest time of all records in the segment."""
    return TIME_INDEX.encode([(max_time_us, next_offset, 0)])


def decode_index(offset_file: bytes | None, time_file: bytes | None, size: int) -> SegmentIndex | None:
    """Return the entries on which both index files agree for a segment of `size` bytes, or None if a file is invalid.

    The result ends before the first entry that contradicts the previous entry, the other file or the size.
    """
    points = OFFSET_INDEX.decode(offset_file)
    times = TIME_INDEX.decode(time_file)
    if points is None or times is None:
        return None
    count = min(len(points), len(times))
    offsets, positions = points["f0"][:count], points["f1"][:count].astype(np.int64)
    newest, twins = times["f0"][:count], times["f1"][:count]
    good = (offsets == twins) & (positions < size)
    good[1:] &= (np.diff(offsets) > 0) & (np.diff(positions) > 0) & (np.diff(newest) >= 0)
    bad = np.flatnonzero(~good)
    stop = int(bad[0]) if len(bad) else count
    index = SegmentIndex()
    index.offsets.frombytes(offsets[:stop].tobytes())
    index.positions.frombytes(positions[:stop].tobytes())
    index.times.frombytes(newest[:stop].tobytes())
    return index


def decode_closed_index(
    offset_file: bytes | None, time_file: bytes | None, size: int, next_offset: int
) -> SegmentIndex | None:
    """Return the index of a closed segment, or None if either file is incomplete."""
    index = decode_index(offset_file, time_file, size)
    max_time_us = decode_final_time(time_file, next_offset)
    if index is None or max_time_us is None or len(index) != _entry_count(TIME_INDEX, time_file) - 1:
        return None
    if len(index) != _entry_count(OFFSET_INDEX, offset_file):
        return None
    index.max_time_us = max_time_us
    return index


def _entry_count(layout: EntryLayout, data: bytes | None) -> int:
    return (len(data or b"") - HEADER_BYTES) // layout.entry_bytes


def decode_final_time(time_file: bytes | None, next_offset: int) -> int | None:
    """Return the latest time of a closed segment, or None if its time index lacks the final entry."""
    times = TIME_INDEX.decode(time_file)
    if times is None or not len(times) or int(times["f1"][-1]) != next_offset:
        return None
    return int(times["f0"][-1])
