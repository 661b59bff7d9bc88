"""What filters on topic, partition, offset and time leave of a read. Pure; filled from Spark's filters."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from fairlead_spark.planning.offsets import StreamOffsets
from fairlead_spark.planning.ranges import OffsetRange

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Narrowing:
    """Bounds that every record of the result keeps; None where there is none."""

    topics: frozenset[str] | None = None
    partitions: frozenset[int] | None = None
    offset_min: int | None = None
    offset_stop: int | None = None
    """The first offset that is not wanted."""
    timestamp_min_us: int | None = None
    """Only tells where to begin: records of this time and later may stand before older ones."""

    def only_topics(self, topics: Collection[str]) -> Narrowing:
        """Keep these topics alone."""
        return replace(self, topics=_both(self.topics, topics))

    def only_partitions(self, partitions: Collection[int]) -> Narrowing:
        """Keep these partitions alone."""
        return replace(self, partitions=_both(self.partitions, partitions))

    def offsets_from(self, offset: int) -> Narrowing:
        """Keep this offset and those behind it."""
        return replace(self, offset_min=_larger(self.offset_min, offset))

    def offsets_before(self, offset: int) -> Narrowing:
        """Keep the offsets before this one."""
        return replace(
            self, offset_stop=offset if self.offset_stop is None else min(self.offset_stop, offset)
        )

    def times_from(self, timestamp_us: int) -> Narrowing:
        """Begin at the first record of this time or later."""
        return replace(self, timestamp_min_us=_larger(self.timestamp_min_us, timestamp_us))

    def applied(self, ranges: Sequence[OffsetRange], at_time: StreamOffsets | None) -> list[OffsetRange]:
        """Return what is left of the ranges; `at_time` is where `timestamp_min_us` stands."""
        kept = []
        for part in ranges:
            if self.topics is not None and part.topic not in self.topics:
                continue
            if self.partitions is not None and part.partition not in self.partitions:
                continue
            begin = None if at_time is None else at_time.get(part.topic, part.partition)
            start = max(part.start, self.offset_min or 0, 0 if begin is None else begin.offset)
            stop = part.stop if self.offset_stop is None else min(part.stop, self.offset_stop)
            if start < stop:
                kept.append(part.within(start, stop))
        return kept


def _both(before: frozenset[T] | None, wanted: Collection[T]) -> frozenset[T]:
    return frozenset(wanted) if before is None else before & frozenset(wanted)


def _larger(before: int | None, value: int) -> int:
    return value if before is None else max(before, value)
