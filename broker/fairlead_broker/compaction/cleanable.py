"""Which part of a log may be cleaned, and when a round is due.

The cleanable range begins where the last complete round ended, and ends before the first segment that must not be
cleaned yet: the last segment, or a segment that is damaged or too young, or has records that are not stable or not
synced.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

REMOVABLE_RATIO_MIN: Final = 0.01
"""Fraction of the log's bytes, in batches with tombstones, above which expired tombstones alone make a round due."""


class CleanableSegment(msgspec.Struct, frozen=True):
    """Facts about a segment."""

    base_offset: int
    next_offset: int
    size: int
    newest_time_us: int | None
    """Latest record time, or None if no record is known."""
    is_last: bool = False


class CleaningState(msgspec.Struct, frozen=True, kw_only=True):
    """Stored facts about the cleaning of a replica."""

    cleaned: int = 0
    """Offset below which the log was cleaned."""
    rewritten: int = 0
    """Offset below which segments were replaced or were about to be replaced, even by a round that has not ended."""
    removed: int = 0
    """Offset below which tombstones and markers were removed, and with them every record that they deleted."""
    removing: int = 0
    """Offset below which a replacement of segments may have removed tombstones and markers. It is stored before the
    replacement takes effect, so a crash may leave it above `removed`.
    """
    oldest_horizon_us: int | None = None
    """Oldest horizon of the tombstones below `cleaned`, or None if there are no tombstones."""
    horizon_bytes: int = 0
    """Size of the batches with tombstones below `cleaned`."""

    @property
    def differs_below(self) -> int:
        """Offset below which the bytes of the log may differ from those of other replicas."""
        return max(self.cleaned, self.rewritten)

    @property
    def lacks_below(self) -> int:
        """Offset below which tombstones and markers may be missing."""
        return max(self.removed, self.removing)


NEVER_CLEANED: Final = CleaningState()


class CleanableRange(msgspec.Struct, frozen=True):
    """Cleanable range of a log, from the cleaned offset to `until`."""

    until: int
    dirty_bytes: int
    """Size of the segments that no round has cleaned."""
    total_bytes: int
    """Size of all segments below `until`."""

    @property
    def dirty_ratio(self) -> float:
        """Share of the log below `until` that no round has cleaned."""
        return self.dirty_bytes / self.total_bytes if self.total_bytes else 0.0


class CleaningRules(msgspec.Struct, frozen=True):
    """Settings of a topic that decide when its partitions are cleaned."""

    dirty_ratio_min: float
    min_lag_us: int
    max_lag_us: int
    delete_retention_us: int


class Due(msgspec.Struct, frozen=True):
    """A round that is due."""

    dirty_ratio: float
    is_overdue: bool
    """Whether a record is older than `max.compaction.lag.ms`, which takes precedence over every ratio."""
    is_removal: bool = False
    """Whether expired tombstones, which may have to stay for an absent follower, are the only reason for the round."""


def cleanable_range(
    segments: Sequence[CleanableSegment], cleaned: int, limit: int, min_lag_us: int, now_us: int
) -> CleanableRange:
    """Return the cleanable range of a log, whose segments are given in ascending order.

    `limit`: lowest of the last stable offset, the synced offset, and the beginning of damage.
    """
    until = segments[0].base_offset
    dirty = total = 0
    for segment in segments:
        is_dirty = segment.next_offset > cleaned
        too_young = (
            is_dirty and segment.newest_time_us is not None and segment.newest_time_us > now_us - min_lag_us
        )
        if segment.is_last or segment.next_offset > limit or (too_young and min_lag_us):
            break
        until = segment.next_offset
        total += segment.size
        dirty += segment.size if is_dirty else 0
    return CleanableRange(until, dirty, total)


def due_round(
    found: CleanableRange,
    state: CleaningState,
    rules: CleaningRules,
    oldest_dirty_us: int | None,
    now_us: int,
) -> Due | None:
    """Return the due round of a log, or None. `oldest_dirty_us`: time of the first batch that no round has cleaned."""
    ratio = found.dirty_ratio
    if found.until <= 0 or not found.total_bytes:
        return None
    if found.dirty_bytes and oldest_dirty_us is not None and oldest_dirty_us < now_us - rules.max_lag_us:
        return Due(ratio, is_overdue=True)
    if found.dirty_bytes and ratio > rules.dirty_ratio_min:
        return Due(ratio, is_overdue=False)
    horizon_us = state.oldest_horizon_us
    if horizon_us is not None and horizon_us < now_us:
        removable = state.horizon_bytes / found.total_bytes
        if removable > REMOVABLE_RATIO_MIN or horizon_us + rules.delete_retention_us < now_us:
            return Due(ratio, is_overdue=False, is_removal=True)
    return None
