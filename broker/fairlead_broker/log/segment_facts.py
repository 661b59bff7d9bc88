"""Read the facts about a log's segments that retention needs, from the indexes of the segments.

`runtime` calls this module in a disk thread before it calls `retention`. The first call reads the end of each closed
segment's time index. Later calls use the latest time kept in memory.
"""

from __future__ import annotations

from fairlead_api.identifiers import TimestampUs
from fairlead_broker.log.errors import StorageFailed
from fairlead_broker.log.partition_log import PartitionLog
from fairlead_broker.log.retention import SegmentFacts
from fairlead_broker.log.segments.indexes import NO_TIME
from fairlead_broker.log.segments.segments import Segment


def retention_facts(log: PartitionLog) -> list[SegmentFacts]:
    """Return the facts of every segment, oldest first. Raises `StorageFailed` if the disk cannot be read."""
    try:
        return [_facts(segment) for segment in log.segments]
    except OSError as error:
        message = f"{log.folder}: cannot read the age of the segments: {error.strerror or error}"
        raise StorageFailed(message) from error


def _facts(segment: Segment) -> SegmentFacts:
    newest_us = segment.max_time_us()
    return SegmentFacts(
        base_offset=segment.base_offset,
        next_offset=segment.next_offset,
        size_bytes=segment.size,
        newest_time_us=None if newest_us == NO_TIME else TimestampUs(newest_us),
        active=segment.growing,
    )
