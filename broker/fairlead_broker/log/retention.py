"""Choose the segments of a partition that retention removes, according to Kafka's rules.

`runtime` calls this module for partitions that this broker leads; followers adopt the leader's log start. Only
`retention_facts` reads files, in a disk thread: the first call reads the end of each closed segment's time index, and
later calls use the latest time kept in memory. All functions except `retention_facts` are pure: each decides from the
given facts. The module must not know when its functions are called.

    whole segments, oldest first; never the active one; nothing at or above the high watermark
    1. segments wholly below the log start (delete-records moved the log start)
    2. by size: while the remaining segments are not smaller than retention.bytes
    3. by time: while a segment's newest record is older than retention.ms, up to the first younger segment

An idle topic expires because `segment.ms` rolls its active segment (`PartitionLog.roll_if_due`). The new
active segment is empty, and the log end does not move.

Kafka rolls and deletes an active segment whose retention time has passed. In Fairlead an idle topic is empty
after the sum of `segment.ms` and `retention.ms`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from fairlead_api.configuration import TopicConfig
from fairlead_api.identifiers import Offset, TimestampUs
from fairlead_broker.log.errors import StorageFailed
from fairlead_broker.log.partition_log import PartitionLog
from fairlead_broker.log.segments.indexes import NO_TIME
from fairlead_broker.log.segments.segments import Segment

NO_LIMIT = -1
"""Value of `retention.ms` and `retention.bytes` that disables the limit."""


@dataclass(frozen=True, slots=True)
class SegmentFacts:
    """Facts about a segment that decide whether retention removes it."""

    base_offset: Offset
    next_offset: Offset
    """Base offset of the next segment; for the active segment, the offset of the next record."""
    size_bytes: int
    newest_time_us: TimestampUs | None
    """Latest record time visible to readers (the append time with LogAppendTime), or None if no record is known."""
    active: bool = False
    """Whether the segment is the active segment, which is the last segment of the log."""


class Reason(StrEnum):
    """Reason for the removal of a segment."""

    LOG_START = "log start"
    SIZE = "retention.bytes"
    TIME = "retention.ms"


@dataclass(frozen=True, slots=True)
class Expiry:
    """Segments that retention removes from one partition."""

    log_start: Offset
    """New log start, which must be made durable before a file is removed."""
    segments: tuple[tuple[SegmentFacts, Reason], ...]
    """Removed segments, oldest first."""

    @property
    def size_bytes(self) -> int:
        """Total size of the batches in the removed segments."""
        return sum(segment.size_bytes for segment, _ in self.segments)


def expire(
    segments: Sequence[SegmentFacts],
    config: TopicConfig,
    *,
    log_start: Offset,
    high_watermark: Offset,
    now_us: TimestampUs,
) -> Expiry:
    """Return the expired segments of a partition, given oldest first (Kafka: `UnifiedLog.deleteOldSegments`)."""
    # Only a prefix of the committed and closed segments is removed, up to the first segment to which no rule applies.
    removable = [each for each in segments if not each.active and each.next_offset <= high_watermark]
    reasons = [Reason.LOG_START] * _count_below(removable, log_start)
    remaining = segments[len(reasons) :]
    # A topic that is only compacted keeps the newest record of each key, however old it is.
    retention_bytes = config.retention_bytes if config.deletes else NO_LIMIT
    retention_ms = config.retention_ms if config.deletes else NO_LIMIT
    by_size = _count_over_size(remaining, retention_bytes)
    reasons += [Reason.SIZE] * min(by_size, len(removable) - len(reasons))
    by_time = _count_expired(segments[len(reasons) :], retention_ms, now_us)
    reasons += [Reason.TIME] * min(by_time, len(removable) - len(reasons))
    if reasons:
        log_start = max(log_start, removable[len(reasons) - 1].next_offset)
    # Empty segments after the last removed segment are also removed, since they contain no record.
    reasons += [Reason.LOG_START] * (_count_below(removable, log_start) - len(reasons))
    return Expiry(log_start, tuple(zip(removable, reasons, strict=False)))


def _count_below(segments: Sequence[SegmentFacts], log_start: Offset) -> int:
    return sum(segment.next_offset <= log_start for segment in segments)


def _count_over_size(segments: Sequence[SegmentFacts], limit_bytes: int) -> int:
    """Return how many of the oldest segments can be removed while the remaining size stays at or above the limit."""
    if limit_bytes == NO_LIMIT:
        return 0
    surplus, count = sum(segment.size_bytes for segment in segments) - limit_bytes, 0
    for segment in segments:
        surplus -= segment.size_bytes
        if surplus < 0:
            break
        count += 1
    return count


def _count_expired(segments: Sequence[SegmentFacts], limit_ms: int, now_us: TimestampUs) -> int:
    """Return the number of oldest segments whose newest record is older than the limit.

    A segment without a known record (because of damage) is treated like the next segment with a known record, so
    the damaged segment is neither removed before older segments nor kept permanently.
    """
    if limit_ms == NO_LIMIT:
        return 0
    count = 0
    for index, segment in enumerate(segments):
        if segment.newest_time_us is not None:
            if now_us - segment.newest_time_us <= limit_ms * 1000:
                break
            count = index + 1
    return count


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
