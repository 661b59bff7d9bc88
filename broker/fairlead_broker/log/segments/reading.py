"""Plan reads from an offset, and trim the read bytes to whole batches.

The module is pure except for its buffer. `segments` calls the module for cached reads and for reads from the disk. A
read checks by offset and leader epoch that every returned batch follows the previous batch, since a lost write may
leave an intact older batch between two good batches. `readable_log` checks the leader epoch of the first batch. The
bytes between two entries of the index form a run of small batches or one large batch. numpy walks all runs of a read at
once, so a read of large batches takes a single step. The contents of batches are not checked, because readers verify
every checksum.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final

import numpy as np

from fairlead_api.batch.header import (
    HEADER_BYTES,
    LENGTH_STOP,
    batch_span,
    check_stamp_checksum,
    check_unread_checksum,
)
from fairlead_api.identifiers import Offset
from fairlead_api.problems import ProblemError
from fairlead_broker.log.segments.indexes import SegmentIndex

CACHED_READ_BYTES_MAX: Final = 1 << 20
"""Maximum number of bytes in a read on the event loop. Reading 1 MiB from memory takes about 60 µs, during which no
other request is served.
"""
MAXIMUM: Final = 1 << 62
_SPAN_BYTES: Final = 44
"""Number of header bytes that determine where the next batch begins."""
_WORD_BYTES: Final = 8
"""Alignment of batches, and the size of the words in which runs of batches are read."""
_LENGTH_WORD, _LAST_DELTA_WORD = 1, 5
_EPOCH_SHIFT: Final = 32
"""Number of bits for the length, which is stored below the leader epoch in the same word."""
_EPOCH: Final = struct.Struct("<i")
_EPOCH_AT: Final = 12
_HALF_WORD: Final = 0xFFFF_FFFF


@dataclass(frozen=True, slots=True)
class LogRead:
    """Whole batches of one partition, contiguous as stored."""

    data: memoryview
    """Bytes of the batches, or no bytes if there is no batch. The first batch may begin below the requested offset."""
    next_offset: Offset
    """Offset at which the next read begins."""
    ends_at_stale: bool = False
    """Whether the next batch in the file has an earlier leader epoch, and is therefore not part of the log."""

    @property
    def first_batch(self) -> tuple[int, int]:
        """Base offset and leader epoch of the first batch, which must exist."""
        return batch_span(self.data)[0], _epoch(self.data, 0)


@dataclass(frozen=True, slots=True)
class ReadPlan:
    """A range of a file that contains the batch with the requested offset, and as many later batches as requested."""

    position: int
    nbytes: int
    point: int
    """Base offset of the batch at `position`."""
    stop: int
    """End of the bytes that may be returned. A range of read bytes may be extended up to this position."""
    offset: int
    """First requested offset."""
    offset_limit: int
    """Offset below which every returned batch ends."""
    bytes_max: int
    """Maximum total size in bytes, which only the first batch may exceed."""


class NotWhole(Exception):
    """The first batch does not end within the range. A new read must cover at least `nbytes` bytes."""

    def __init__(self, nbytes: int) -> None:
        super().__init__(nbytes)
        self.nbytes = nbytes


class WrongBytes(Exception):
    """The bytes at a position are not the expected batch."""

    def __init__(self, position: int, offset: int, reason: str) -> None:
        super().__init__(f"byte {position}: {reason}")
        self.position = position
        self.offset = offset
        """Offset below which all batches are intact."""


def plan_read(
    index: SegmentIndex,
    size: int,
    offset: int,
    bytes_max: int,
    offset_limit: int,
    base_offset: int,
    nbytes_max: int = MAXIMUM,
    place: tuple[int, int] | None = None,
) -> ReadPlan | None:
    """Return the range of the file to read, which contains the whole batch with `offset`.

    `base_offset`: base offset of the segment. `place`: position and base offset of the batch with `offset`, if both are
    known because the bytes before the batch are damaged.

    Returns None if the range is empty, or if the first batch might not fit into `nbytes_max`.
    """
    position, point = place or index.place_at_or_below(offset)
    point = max(point, base_offset)
    stop = index.position_at_or_above(offset_limit, size)
    # The range between two entries contains a run of small batches or one large batch.
    stretch = index.position_after(position, stop) - position
    if not 0 < stretch <= nbytes_max:
        return None
    # The requested batch is somewhere in the run that begins with the entry's batch. The bytes before the requested
    # batch are read and dropped.
    wanted = max(bytes_max, stretch) if point == offset else bytes_max + stretch
    nbytes = min(wanted, nbytes_max, stop - position)
    return ReadPlan(position, nbytes, point, stop, offset, offset_limit, bytes_max)


def new_buffer(nbytes: int) -> memoryview:
    """Return memory to read into. The memory is not cleared, because clearing costs as much as reading."""
    return np.empty(nbytes, np.uint8).data


def whole_batches(plan: ReadPlan, buffer: memoryview, index: SegmentIndex) -> LogRead | None:
    """Return the requested batches from the read bytes, or None if the segment has none of them.

    Raises `NotWhole` if the first batch is incomplete, and `WrongBytes` if the bytes contradict the index.
    """
    found = _first_wanted(plan, buffer)
    if found is None:
        return None
    start, next_offset = found
    at, bound = start, min(len(buffer), start + plan.bytes_max)
    epoch, ends_at_stale = _epoch(buffer, at), False
    known, offset = index.last_before(plan.position + bound + 1, plan.offset_limit)
    if known - plan.position > start:
        last_epoch = _epoch_in_order(plan, buffer, start, next_offset, bound, index)
        if last_epoch is not None:
            at, next_offset, epoch = known - plan.position, offset, last_epoch
    # If the limit is the start of a damaged range, the bytes after the limit might not look like a batch.
    while at + _SPAN_BYTES <= len(buffer) and next_offset < plan.offset_limit:
        first = at == start
        try:
            base_offset, total_bytes, last_delta = _span(plan, buffer, at, next_offset)
        except WrongBytes:
            if first:
                raise
            # The batches before the invalid bytes are intact. The next read begins at the invalid bytes and reports
            # them.
            break
        stop = at + total_bytes
        if base_offset + last_delta >= plan.offset_limit or (stop > bound and not first):
            break
        following_epoch = _epoch(buffer, at)
        if following_epoch < epoch:
            ends_at_stale = True
            break
        epoch = following_epoch
        if stop > len(buffer):
            raise NotWhole(stop)
        at, next_offset = stop, base_offset + last_delta + 1
    if at == start:
        return LogRead(buffer[:0], Offset(plan.offset))
    return LogRead(buffer[start:at], Offset(next_offset), ends_at_stale)


def _epoch(buffer: memoryview, at: int) -> int:
    epoch: int = _EPOCH.unpack_from(buffer, at + _EPOCH_AT)[0]
    return epoch


def _epoch_in_order(
    plan: ReadPlan, buffer: memoryview, start: int, offset: int, bound: int, index: SegmentIndex
) -> int | None:
    """Return the leader epoch of the last batch before the last index entry in the read bytes.

    Returns None unless the batches up to this entry follow one another as the index states, with leader epochs that
    never decrease. `offset`: base offset of the batch at `start`.
    """
    positions, offsets = index.entries_between(
        plan.position + start + 1, plan.position + bound + 1, plan.offset_limit
    )
    words = np.frombuffer(buffer, np.int64, len(buffer) // _WORD_BYTES)
    stops, stop_offsets = positions - plan.position, offsets
    at, expected = np.append(start, stops[:-1]), np.append(offset, stop_offsets[:-1])
    if (at % _WORD_BYTES).any() or (at + HEADER_BYTES > stops).any():
        return None
    runs, begin = np.arange(len(at)), words[at // _WORD_BYTES + _LENGTH_WORD] >> _EPOCH_SHIFT
    # Leader epoch of the last batch that was read in each run.
    epochs = begin.copy()
    while len(at):
        if (at % _WORD_BYTES).any() or (at + HEADER_BYTES > stops).any():
            return None
        first = at // _WORD_BYTES
        following = at + LENGTH_STOP + (words[first + _LENGTH_WORD] & _HALF_WORD)
        next_offsets = expected + (words[first + _LAST_DELTA_WORD] & _HALF_WORD) + 1
        more = following < stops
        ends = (following == stops) & (next_offsets == stop_offsets)
        rising = words[first + _LENGTH_WORD] >> _EPOCH_SHIFT
        if not ((words[first] == expected) & (more | ends) & (rising >= epochs[runs])).all():
            return None
        epochs[runs] = rising
        at, expected = following[more], next_offsets[more]
        stops, stop_offsets, runs = stops[more], stop_offsets[more], runs[more]
    return int(epochs[-1]) if (begin[1:] >= epochs[:-1]).all() else None


def _first_wanted(plan: ReadPlan, buffer: memoryview) -> tuple[int, int] | None:
    """Return the position and base offset of the batch with the requested offset, or None if the segment ends earlier.

    The stamp does not cover the field with the last offset of a batch, and a flipped bit in the field would hide the
    batches after it. If only the last offset shows that a batch contains the requested offset, the whole batch is read
    and checked.
    """
    at, stop, expected, epoch = 0, len(buffer), plan.point, 0
    while at + _SPAN_BYTES <= stop:
        base_offset, total_bytes, last_delta = _span(plan, buffer, at, expected)
        earlier, epoch = epoch, _epoch(buffer, at)
        if epoch < earlier:
            raise WrongBytes(
                plan.position + at, base_offset, f"leader epoch {epoch} follows leader epoch {earlier}"
            )
        following = base_offset + last_delta + 1
        if following > plan.offset:
            _check_stamp(plan, buffer, at)
            if base_offset >= plan.offset or _is_whole(buffer, at, total_bytes):
                return at, base_offset
            raise WrongBytes(plan.position + at, base_offset, "the content of the batch is damaged")
        at, expected = at + total_bytes, following
    if plan.position + at == plan.stop:
        return None
    if plan.position + at > plan.stop:
        raise WrongBytes(plan.position + at, expected, "the last batch extends beyond the end")
    raise NotWhole(max(at, stop) + _SPAN_BYTES)


def _is_whole(buffer: memoryview, at: int, total_bytes: int) -> bool:
    """Return whether the content of a batch is intact. Raises `NotWhole`."""
    if at + total_bytes > len(buffer):
        raise NotWhole(at + total_bytes)
    try:
        check_unread_checksum(buffer[at : at + total_bytes])
    except ProblemError:
        return False
    return True


def _check_stamp(plan: ReadPlan, buffer: memoryview, at: int) -> None:
    try:
        check_stamp_checksum(buffer, at)
    except ProblemError as problem:
        raise WrongBytes(plan.position + at, -1, problem.detail) from problem


def _span(plan: ReadPlan, buffer: memoryview, at: int, expected: int) -> tuple[int, int, int]:
    """Return the base offset, size and last offset delta of the batch that must begin at the expected offset."""
    try:
        span = batch_span(buffer, at)
    except ProblemError as problem:
        raise WrongBytes(plan.position + at, expected, problem.detail) from problem
    if span[0] != expected:
        raise WrongBytes(
            plan.position + at, expected, f"offset {span[0]} is stored where offset {expected} belongs"
        )
    return span
