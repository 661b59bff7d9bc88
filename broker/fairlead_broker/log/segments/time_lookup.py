"""Find the first record at or after a time: search the index, then batch headers, then the record times of a batch.

`readable_log` calls this module. A search decodes only batches whose latest time is not earlier than the requested
time, and stops at the first readable record at or after the requested time.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np

from fairlead_api.batch.batches import decode, offsets_of
from fairlead_api.batch.columns import numbers_of
from fairlead_api.batch.header import BatchHeader
from fairlead_api.identifiers import Offset, TimestampUs
from fairlead_api.problems import ProblemError
from fairlead_broker.log.errors import LogDamaged
from fairlead_broker.log.segments.batch_walk import BadBatch, WalkedBatch, walk_headers
from fairlead_broker.log.segments.segments import Segment, SegmentBody

if TYPE_CHECKING:
    from numpy.typing import NDArray


def first_record_in(
    segments: Iterable[Segment], timestamp_us: int, log_start: Offset, end: Offset
) -> tuple[Offset, TimestampUs] | None:
    """Return the offset and time of the first record between the log's start and end that is at or after a time.

    `segments` is in ascending order. Raises `LogDamaged`.
    """
    for segment in segments:
        if segment.next_offset > log_start and segment.max_time_us() >= timestamp_us:
            found = first_record_since(segment, timestamp_us, log_start, end)
            if found is not None:
                return found
    return None


def first_record_since(
    segment: Segment, timestamp_us: int, log_start: Offset, end: Offset
) -> tuple[Offset, TimestampUs] | None:
    """Return the offset and time of a segment's first record below `end` that is at or after a time.

    Raises `LogDamaged` if a batch before that record is bad.
    """
    start = segment.find_time(timestamp_us)
    if start is None:
        return None
    body = segment.load()
    position, expected = body.index.place_at_or_below(start)
    expected = max(expected, int(segment.base_offset))
    met = start
    try:
        for batch in walk_headers(
            body.file, position, body.size, expected, segment.next_offset, segment.offset_stop
        ):
            header = batch.header
            if header.base_offset >= end:
                return None
            met = Offset(header.next_offset)
            if (
                header.max_time_us >= timestamp_us
                and header.next_offset > log_start
                and header.record_count
                and not header.is_control
            ):
                found = _first_in_batch(body, batch, timestamp_us, log_start)
                if found is not None:
                    return found
    except (BadBatch, ProblemError) as bad:
        raise LogDamaged(segment.path, met, segment.next_offset, str(bad)) from bad
    return None


def _first_in_batch(
    body: SegmentBody, batch: WalkedBatch, timestamp_us: int, log_start: Offset
) -> tuple[Offset, TimestampUs] | None:
    header = batch.header
    if header.has_append_time and not header.has_offset_column:
        return Offset(max(header.base_offset, log_start)), TimestampUs(header.append_time_us)
    buffer = memoryview(bytearray(header.total_bytes))
    body.file.read_into(buffer, batch.position)
    offsets, times = _offsets_and_times(buffer, header)
    late = np.flatnonzero((times >= timestamp_us) & (offsets >= log_start))
    if not len(late):
        return None
    return Offset(int(offsets[late[0]])), TimestampUs(int(times[late[0]]))


def _offsets_and_times(
    buffer: memoryview, header: BatchHeader
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    columns = decode(buffer, header)
    times = numbers_of(columns.column("timestamp"), np.int64)
    return numbers_of(offsets_of(header, columns), np.int64), times
