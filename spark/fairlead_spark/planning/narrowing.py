"""Restriction of a read by Spark's filters on topic, partition, offset and time, without I/O."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from fairlead_spark.planning.offsets import StreamOffsets
from fairlead_spark.planning.ranges import OffsetRange

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Narrowing:
    """Bounds that every record in the result of a read must satisfy; None means that there is no bound."""

    topics: frozenset[str] | None = None
    partitions: frozenset[int] | None = None
    offset_min: int | None = None
    offset_stop: int | None = None
    """First offset that is excluded from the read."""
    timestamp_min_us: int | None = None
    """Time of the first record to read, in microseconds. The bound decides only where the read begins; older records
    that follow in the log are read as well."""

    def only_topics(self, topics: Collection[str]) -> Narrowing:
        """Return these bounds, restricted to the given topics."""
        return replace(self, topics=_both(self.topics, topics))

    def only_partitions(self, partitions: Collection[int]) -> Narrowing:
        """Return these bounds restricted to the given partitions."""
        return replace(self, partitions=_both(self.partitions, partitions))

    def offsets_from(self, offset: int) -> Narrowing:
        """Return these bounds restricted to the given offset and later offsets."""
        return replace(self, offset_min=_larger(self.offset_min, offset))

    def offsets_before(self, offset: int) -> Narrowing:
        """Return these bounds restricted to offsets before the given offset."""
        return replace(
            self, offset_stop=offset if self.offset_stop is None else min(self.offset_stop, offset)
        )

    def times_from(self, timestamp_us: int) -> Narrowing:
        """Return these bounds for a read that begins at the first record at or after the given time."""
        return replace(self, timestamp_min_us=_larger(self.timestamp_min_us, timestamp_us))

    def applied(self, ranges: Sequence[OffsetRange], at_time: StreamOffsets | None) -> list[OffsetRange]:
        """Return the ranges restricted to the bounds; `at_time` contains the offsets for `timestamp_min_us`."""
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
