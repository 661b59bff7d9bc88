"""Plan reads from an offset, and cut the read bytes to whole batches.

The module is pure except for its buffer: it returns the range of a segment's file to read, and cuts the
received bytes to whole batches. `segments` calls it for both kinds of reads. A read walks only over the
batches around both ends of the range, found by the index; the batches in between are returned unchecked.
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
"""Largest read on the event loop: 1 MiB from memory takes about 60 µs, during which no other request is served."""
MAXIMUM: Final = 1 << 62
_SPAN_BYTES: Final = 44
"""Bytes of a header that show where the next batch begins."""


@dataclass(frozen=True, slots=True)
class LogRead:
    """Whole batches of one partition, contiguous as stored."""

    data: memoryview
    """Bytes of the batches, possibly beginning with a batch below the requested offset, or empty if there is no batch.
    """
    next_offset: Offset
    """Offset at which the next read begins."""


@dataclass(frozen=True, slots=True)
class ReadPlan:
    """A range of a file that holds the batch with an offset, and as many batches after it as were requested."""

    position: int
    nbytes: int
    point: int
    """Offset in the index of the batch at the position, or -1 at the start of a segment."""
    stop: int
    """Position from which on no byte may be returned; a range can grow up to this position."""
    offset: int
    """First requested offset."""
    offset_limit: int
    """Offset that no returned batch reaches."""
    bytes_max: int
    """Maximum bytes of all batches after the first one."""


class NotWhole(Exception):
    """The first batch does not end within the range; the read needs at least this many bytes."""

    def __init__(self, nbytes: int) -> None:
        super().__init__(nbytes)
        self.nbytes = nbytes


class WrongBytes(Exception):
    """The bytes at a position are not the expected batch."""

    def __init__(self, position: int, offset: int, reason: str) -> None:
        super().__init__(f"byte {position}: {reason}")
        self.position = position
        self.offset = offset
        """Offset below which no batch is affected."""


def plan_read(
    index: SegmentIndex,
    size: int,
    offset: int,
    bytes_max: int,
    offset_limit: int,
    nbytes_max: int = MAXIMUM,
    place: tuple[int, int] | None = None,
) -> ReadPlan | None:
    """Return the range to read so that the batch with `offset` arrives whole.

    `place`: position and base offset of that batch where they are known, because the bytes before it are
    damaged. Returns None if the range is empty, or if the first batch might not fit into `nbytes_max`.
    """
    position, point = place or index.place_at_or_below(offset)
    stop = index.position_at_or_above(offset_limit, size)
    # Between two entries there is a run of small batches, or one large batch.
    stretch = index.position_after(position, stop) - position
    if not 0 < stretch <= nbytes_max:
        return None
    # The requested batch lies somewhere in the run after the entry's batch: the bytes before it are read and
    # dropped.
    wanted = max(bytes_max, stretch) if point == offset else bytes_max + stretch
    nbytes = min(wanted, nbytes_max, stop - position)
    return ReadPlan(position, nbytes, point, stop, offset, offset_limit, bytes_max)


def new_buffer(nbytes: int) -> memoryview:
    """Return memory to read into, not cleared first: clearing costs as much as reading."""
    return np.empty(nbytes, np.uint8).data


def whole_batches(plan: ReadPlan, buffer: memoryview, index: SegmentIndex) -> LogRead | None:
    """Return the whole batches that were requested, from the read bytes, or None if the segment has none of them.

    Raises `NotWhole` if the first batch is incomplete, `WrongBytes` if the bytes contradict the index.
    """
    if plan.point >= 0:
        _check_point(plan, buffer, 0, plan.point)
    start = _first_wanted(plan, buffer)
    if start is None:
        return None
    bound = min(len(buffer), start + plan.bytes_max)
    known, offset = index.last_before(plan.position + bound + 1, plan.offset_limit)
    at, next_offset = max(known - plan.position, start), -1
    if at > start:
        next_offset = offset
        _check_point(plan, buffer, at, offset)
    # If the limit is the start of a damaged range, the bytes after the limit may not look like a batch.
    while at + _SPAN_BYTES <= len(buffer) and next_offset < plan.offset_limit:
        base_offset, total_bytes, last_delta = _span(plan, buffer, at, next_offset)
        first, stop = at == start, at + total_bytes
        if base_offset + last_delta >= plan.offset_limit or (stop > bound and not first):
            break
        if stop > len(buffer):
            raise NotWhole(stop)
        at, next_offset = stop, base_offset + last_delta + 1
    if at == start:
        return LogRead(buffer[:0], Offset(plan.offset))
    return LogRead(buffer[start:at], Offset(next_offset))


def _first_wanted(plan: ReadPlan, buffer: memoryview) -> int | None:
    """Return where the batch begins that holds the requested offset or, in a gap, the first batch after it.

    The stamp does not cover the field with the last offset of a batch, and a flipped bit in the field would
    hide the batches after it. A batch that holds the offset only by this field is therefore read and checked
    as a whole.
    """
    at, stop, next_offset = 0, len(buffer), -1
    passed, passed_min = 0, -1
    while at + _SPAN_BYTES <= stop:
        base_offset, total_bytes, last_delta = _span(plan, buffer, at, next_offset)
        following = base_offset + last_delta + 1
        if following > plan.offset:
            _check_stamp(plan, buffer, at)
            if base_offset > plan.offset and at:
                _check_passed(plan, buffer[passed:at], passed, passed_min)
            if base_offset >= plan.offset or _is_whole(buffer, at, total_bytes):
                return at
            # The stamp, and so the length, is good: the requested batch may follow.
            following = base_offset + 1
        passed, passed_min = at, next_offset
        at, next_offset = at + total_bytes, following
    if plan.position + at == plan.stop:
        return None
    if plan.position + at > plan.stop:
        raise WrongBytes(plan.position + at, next_offset, "the last batch goes beyond the end")
    raise NotWhole(max(at, stop) + _SPAN_BYTES)


def _is_whole(buffer: memoryview, at: int, total_bytes: int) -> bool:
    """Return whether the content of a batch is good. Raises `NotWhole`."""
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


def _check_passed(plan: ReadPlan, batch: memoryview, at: int, offset_min: int) -> None:
    """Check the batch before a gap: a flipped bit of its length or last offset would hide the requested batch."""
    try:
        check_stamp_checksum(batch)
        check_unread_checksum(batch)
    except ProblemError as problem:
        reason = f"offset {plan.offset} is missing behind a batch that is damaged: {problem.detail}"
        raise WrongBytes(plan.position + at, offset_min, reason) from problem


def _span(plan: ReadPlan, buffer: memoryview, at: int, offset_min: int) -> tuple[int, int, int]:
    try:
        span = batch_span(buffer, at)
    except ProblemError as problem:
        raise WrongBytes(plan.position + at, offset_min, problem.detail) from problem
    if span[0] < offset_min:
        reason = f"a batch with base offset {span[0]} cannot follow offset {offset_min - 1}"
        raise WrongBytes(plan.position + at, offset_min, reason)
    return span


def _check_point(plan: ReadPlan, buffer: memoryview, at: int, offset: int) -> None:
    if at + _SPAN_BYTES > len(buffer):
        return
    base_offset = _span(plan, buffer, at, -1)[0]
    if base_offset != offset:
        reason = f"the index promises offset {offset}, the batch there says {base_offset}"
        raise WrongBytes(plan.position + at, offset, reason)
