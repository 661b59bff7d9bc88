"""Plan reads from an offset, and trim the read bytes to whole batches.

The module is pure except for its buffer. `segments` calls the module for cached reads and for reads from the
disk. A read examines only the batches near both ends of the range, which the index locates. The batches in
between are returned unchecked.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from fairlead_api.batch.header import batch_span, check_stamp_checksum, check_unread_checksum
from fairlead_api.identifiers import Offset
from fairlead_api.problems import ProblemError
from fairlead_broker.log.segments.indexes import SegmentIndex

CACHED_READ_BYTES_MAX: Final = 1 << 20
"""Largest read on the event loop: reading 1 MiB from memory takes about 60 µs, during which no other request is
served.
"""
MAXIMUM: Final = 1 << 62
_OFFSET_BYTES: Final = 8
_EIGHT: Final = np.arange(_OFFSET_BYTES)
_SPAN_BYTES: Final = 44
"""Number of header bytes that determine where the next batch begins."""


@dataclass(frozen=True, slots=True)
class LogRead:
    """Whole batches of one partition, contiguous as stored."""

    data: memoryview
    """Bytes of the batches, or no bytes if there is no batch. The first batch may begin below the requested offset."""
    next_offset: Offset
    """Offset at which the next read begins."""


@dataclass(frozen=True, slots=True)
class ReadPlan:
    """A range of a file that contains the batch with the requested offset, and as many later batches as requested."""

    position: int
    nbytes: int
    point: int
    """Base offset of the batch at `position`."""
    stop: int
    """End of the bytes that may be returned. A range can grow up to this position."""
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

    `base_offset`: base offset of the segment. `place`: position and base offset of that batch, if they are known
    because the bytes before the batch are damaged.

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
    known, offset = index.last_before(plan.position + bound + 1, plan.offset_limit)
    if known - plan.position > start:
        _check_entries(plan, buffer, start, bound, index)
        at, next_offset = known - plan.position, offset
    # If the limit is the start of a damaged range, the bytes after the limit may not look like a batch.
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
        if stop > len(buffer):
            raise NotWhole(stop)
        at, next_offset = stop, base_offset + last_delta + 1
    if at == start:
        return LogRead(buffer[:0], Offset(plan.offset))
    return LogRead(buffer[start:at], Offset(next_offset))


def _check_entries(plan: ReadPlan, buffer: memoryview, start: int, bound: int, index: SegmentIndex) -> None:
    """Check that a batch with the entry's offset begins at the position of every index entry within the read bytes."""
    positions, offsets = index.entries_between(
        plan.position + start, plan.position + bound + 1, plan.offset_limit
    )
    at = positions - plan.position
    at = at[at + _OFFSET_BYTES <= len(buffer)]
    stored = np.frombuffer(buffer, np.uint8)[at[:, None] + _EIGHT].copy().view("<i8")[:, 0]
    wrong = np.flatnonzero(stored != offsets[: len(at)])
    if len(wrong):
        first = int(wrong[0])
        reason = f"the index states offset {offsets[first]}, but the batch states offset {stored[first]}"
        raise WrongBytes(int(positions[first]), int(offsets[max(first - 1, 0)]), reason)


def _first_wanted(plan: ReadPlan, buffer: memoryview) -> tuple[int, int] | None:
    """Return the position and base offset of the batch with the requested offset; None if the segment ends before it.

    The stamp does not cover the field with the last offset of a batch, and a flipped bit in the field would hide
    the batches after it. If only this field shows that a batch contains the offset, the whole batch is therefore
    read and checked.
    """
    at, stop, expected = 0, len(buffer), plan.point
    while at + _SPAN_BYTES <= stop:
        base_offset, total_bytes, last_delta = _span(plan, buffer, at, expected)
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
