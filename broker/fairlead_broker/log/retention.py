"""Choose the segments of a partition that retention removes, by Kafka's rules.

`runtime` calls this module for partitions that this broker leads; followers take over the leader's log start.
The functions are pure: they return a decision about given facts. The module must not know files, nor when it
is called.

    whole segments, oldest first; never the active one; nothing at or above the high watermark
    1. those wholly below the log start (delete-records moved it)
    2. by size: while what remains is not smaller than retention.bytes
    3. by time: while the newest record is older than retention.ms; the first young segment ends it

An idle topic expires because `segment.ms` rolls its active segment (`PartitionLog.roll_if_due`). The new
active segment is empty, and the log end does not move.

Kafka rolls an active segment past retention and deletes it. In Fairlead an idle topic is empty after
`segment.ms` and `retention.ms` together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from fairlead_api.configuration import TopicConfig
from fairlead_api.identifiers import Offset, TimestampUs

NO_LIMIT = -1
"""Value of retention.ms and retention.bytes that keeps every segment."""


@dataclass(frozen=True, slots=True)
class SegmentFacts:
    """Facts about a segment on which retention decides."""

    base_offset: Offset
    next_offset: Offset
    """Base offset of the next segment; for the active segment, of the next record."""
    size_bytes: int
    newest_time_us: TimestampUs | None
    """Newest record time visible to readers: the append time with LogAppendTime. The time is None if no
    record is known.
    """
    active: bool = False
    """Whether the segment is the active one, which is the last."""


class Reason(StrEnum):
    """Reason for the removal of a segment."""

    LOG_START = "log start"
    SIZE = "retention.bytes"
    TIME = "retention.ms"


@dataclass(frozen=True, slots=True)
class Expiry:
    """Decision about one partition."""

    log_start: Offset
    """New log start, which must be durable before a file is removed."""
    segments: tuple[tuple[SegmentFacts, Reason], ...]
    """Removed segments, oldest first."""

    @property
    def size_bytes(self) -> int:
        """Bytes of the batches in removed segments."""
        return sum(segment.size_bytes for segment, _ in self.segments)


def expire(
    segments: Sequence[SegmentFacts],
    config: TopicConfig,
    *,
    log_start: Offset,
    high_watermark: Offset,
    now_us: TimestampUs,
) -> Expiry:
    """Return the decision for all segments of a partition, oldest first (Kafka: `UnifiedLog.deleteOldSegments`)."""
    # Committed and closed segments are a prefix; the first segment that no rule removes ends the walk.
    removable = [each for each in segments if not each.active and each.next_offset <= high_watermark]
    reasons = [Reason.LOG_START] * _count_below(removable, log_start)
    remaining = segments[len(reasons) :]
    by_size = _count_over_size(remaining, config.retention_bytes)
    reasons += [Reason.SIZE] * min(by_size, len(removable) - len(reasons))
    by_time = _count_expired(segments[len(reasons) :], config.retention_ms, now_us)
    reasons += [Reason.TIME] * min(by_time, len(removable) - len(reasons))
    if reasons:
        log_start = max(log_start, removable[len(reasons) - 1].next_offset)
    # Empty segments after the last removed one hold no record above the new start either.
    reasons += [Reason.LOG_START] * (_count_below(removable, log_start) - len(reasons))
    return Expiry(log_start, tuple(zip(removable, reasons, strict=False)))


def _count_below(segments: Sequence[SegmentFacts], log_start: Offset) -> int:
    return sum(segment.next_offset <= log_start for segment in segments)


def _count_over_size(segments: Sequence[SegmentFacts], limit_bytes: int) -> int:
    """Return the number of oldest segments without which the partition is still not smaller than the limit."""
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

    A segment without a known record (damage) counts as old as the next segment with a known record, so it is
    neither removed first nor kept for ever.
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
