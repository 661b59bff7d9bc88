from __future__ import annotations

from fairlead_spark.planning.narrowing import Narrowing
from fairlead_spark.planning.offsets import PartitionOffset, StreamOffsets, TopicOffsets
from fairlead_spark.planning.ranges import OffsetRange

RANGES = [
    OffsetRange("a", "A", 0, 10, 20),
    OffsetRange("a", "A", 1, 10, 20),
    OffsetRange("b", "B", 0, 10, 20),
]


def left(bounds: Narrowing, at_time: StreamOffsets | None = None) -> list[tuple[str, int, int]]:
    """Return the narrowed ranges as partition, start and stop."""
    return [(str(part), part.start, part.stop) for part in bounds.applied(RANGES, at_time)]


def test_no_filter_leaves_everything() -> None:
    """A read without filters contains all ranges."""
    assert Narrowing().applied(RANGES, None) == RANGES


def test_topics_and_partitions_meet() -> None:
    """Filters on the same column are combined with AND."""
    bounds = Narrowing().only_topics(["a", "b"]).only_topics(["a"]).only_partitions([1, 2])

    assert left(bounds) == [("a-1", 10, 20)]


def test_the_strictest_offsets_count() -> None:
    """The narrowest of several bounds applies, and an empty range is not read."""
    bounds = Narrowing().offsets_from(3).offsets_from(12).offsets_before(18).offsets_before(30)
    empty = bounds.offsets_before(12)

    assert left(bounds) == [("a-0", 12, 18), ("a-1", 12, 18), ("b-0", 12, 18)]
    assert left(empty) == []


def test_a_time_moves_the_beginning_where_it_is_known() -> None:
    """A range begins at the offset of the later of two times, if that offset is known."""
    bounds = Narrowing().times_from(5).times_from(4)
    at_time = StreamOffsets({"a": TopicOffsets("A", {0: PartitionOffset(15), 1: PartitionOffset(20)})})

    assert bounds.timestamp_min_us == 5
    assert left(bounds, at_time) == [("a-0", 15, 20), ("b-0", 10, 20)]
