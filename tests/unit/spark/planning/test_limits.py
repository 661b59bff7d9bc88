from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead_spark.planning.limits import (
    TriggerPace,
    capped,
    fallen,
    falls_back,
    kept,
    limited,
    settled,
    stopped,
)
from fairlead_spark.planning.offsets import PartitionOffset, StreamOffsets, TopicOffsets
from fairlead_spark.planning.ranges import OffsetRange, plan_between


def stands(topic_id: str = "A", /, epoch: int = 3, **offsets: int) -> StreamOffsets:
    """Return a query's offsets for one topic, given as p0=5 for offset 5 of partition 0."""
    places = {int(name[1:]): PartitionOffset(offset, epoch) for name, offset in offsets.items()}
    return StreamOffsets({"a": TopicOffsets(topic_id, places)})


NOWHERE = StreamOffsets()


def test_a_new_leader_alone_is_no_new_data() -> None:
    """An offset that did not change keeps its leader epoch, even if other offsets changed."""
    end = settled(stands(p0=5, p1=5), stands(epoch=4, p0=5, p1=6, p2=0))

    assert end.topics["a"].partitions == {
        0: PartitionOffset(5, 3),
        1: PartitionOffset(6, 4),
        2: PartitionOffset(0, 4),
    }


def test_a_partition_that_a_broker_does_not_know_keeps_its_place() -> None:
    """A partition that the broker does not list keeps its offset."""
    assert settled(stands(p0=5, p1=7), stands(p0=6)).end_offsets() == {"a": {0: 6, 1: 7}}


@pytest.mark.parametrize("start", [NOWHERE, stands("B", p0=5)])
def test_another_topic_is_taken_as_it_is(start: StreamOffsets) -> None:
    """The offsets of an unknown or recreated topic are used unchanged."""
    assert settled(start, stands(epoch=4, p0=5)) == stands(epoch=4, p0=5)


@pytest.mark.parametrize(
    ("start", "end", "back"),
    [
        (stands(p0=5), stands(p0=4), True),
        (stands(p0=5), stands(p0=5), False),
        (stands(p0=5), stands(p1=1), False),
        (stands("B", p0=5), stands(p0=4), False),
        (NOWHERE, stands(p0=4), False),
        (stands(p0=5), NOWHERE, True),
    ],
)
def test_a_log_that_ends_too_early_is_seen(start: StreamOffsets, end: StreamOffsets, back: bool) -> None:
    """A log counts as shortened if a partition of the same topic ends earlier, or if the topic is gone."""
    assert falls_back(start, end) is back


@pytest.mark.parametrize(
    ("end", "expected"),
    [
        pytest.param(stands(epoch=4, p0=4, p1=7), stands(epoch=4, p0=4, p1=7), id="a newer leader's end"),
        pytest.param(stands(p0=4), stands(p0=5), id="an answer that came too early"),
        pytest.param(stands(p0=5), stands(p0=5), id="nothing new"),
        pytest.param(stands("B", p0=4), stands("B", p0=4), id="another topic"),
    ],
)
def test_a_query_goes_back_only_for_a_newer_leader(end: StreamOffsets, expected: StreamOffsets) -> None:
    """A query accepts a lower end offset only with a newer leader epoch, so that it reads no record twice."""
    assert kept(stands(p0=5, p2=1), end) == expected
    assert kept(NOWHERE, end) == end


def test_a_log_that_fell_back_is_asked_where_it_parts() -> None:
    """If a log was shortened, its divergence is looked up at the last offset read, provided that its epoch is known."""
    start = StreamOffsets({"a": TopicOffsets("A", {0: PartitionOffset(9, 3), 1: PartitionOffset(9)})})
    end = stands(epoch=4, p0=4, p1=4, p2=4)

    assert fallen(start, end) == [OffsetRange("a", "A", 0, 9, 10, 3)]
    assert fallen(stands(p0=4), end) == fallen(stands("B", p0=9), end) == fallen(NOWHERE, end) == []
    assert stopped(end, {("a", 0): 1}) == StreamOffsets(
        {
            "a": TopicOffsets(
                "A", {0: PartitionOffset(1, 4), 1: PartitionOffset(4, 4), 2: PartitionOffset(4, 4)}
            )
        }
    )


def test_records_that_have_expired_do_not_use_up_a_limit() -> None:
    """Expired records do not count towards the limit of a trigger, and an empty log is skipped."""
    start, end = stands(p0=0, p1=0, p2=0), stands(p0=500, p1=500, p2=500)

    read = limited(start, end, 100, stands(p0=400, p1=500)).end_offsets()["a"]

    assert read[1] == 500
    assert (read[0] - 400) + read[2] == 100
    assert limited(start, end, 100, stands(p0=450, p1=490, p2=460)) == end


def test_a_limit_is_shared_out_by_what_is_there() -> None:
    """Half of the limit is shared equally by the partitions with a lag, and half in proportion to the lag."""
    end = limited(stands(p0=0, p1=0, p2=4), stands(p0=300, p1=100, p2=4), 100)

    assert end.end_offsets() == {"a": {0: 64, 1: 36, 2: 4}}


@given(sizes=st.lists(st.integers(1, 10**7), min_size=1, max_size=8), rows_max=st.integers(8, 20_000))
def test_no_partition_waits_behind_a_larger_one(sizes: list[int], rows_max: int) -> None:
    """Each partition gets at least its equal share of half of the limit, or all its records."""
    start = stands(**{f"p{index}": 0 for index in range(len(sizes))})
    end = stands(**{f"p{index}": size for index, size in enumerate(sizes)})

    read = limited(start, end, rows_max).end_offsets()["a"]

    least = max(1, rows_max // (2 * len(sizes)))
    assert all(read[index] >= min(size, least) for index, size in enumerate(sizes))


def test_more_partitions_than_records_take_turns() -> None:
    """With a limit of one record, three partitions are each read within three triggers."""
    place, end = stands(p0=0, p1=0, p2=0), stands(p0=9, p1=9, p2=9)
    for _ in range(3):
        place = limited(place, end, 1)

    assert place.end_offsets() == {"a": {0: 1, 1: 1, 2: 1}}


def test_less_than_the_limit_is_read_whole() -> None:
    """A limit above the number of records has no effect."""
    assert limited(stands(p0=0), stands(p0=30), 30) == stands(p0=30)


@given(
    sizes=st.lists(st.integers(0, 10_000), min_size=1, max_size=8),
    rows_max=st.integers(1, 20_000),
)
def test_a_limit_is_used_up_and_never_passed(sizes: list[int], rows_max: int) -> None:
    """A trigger reads exactly the limit, or all records if there are fewer, and never more than a partition has."""
    start = stands(**{f"p{index}": 0 for index in range(len(sizes))})
    end = stands(**{f"p{index}": size for index, size in enumerate(sizes)})

    read = plan_between(start, limited(start, end, rows_max))

    assert sum(part.size for part in read.ranges) == min(rows_max, sum(sizes))
    assert all(part.stop <= sizes[part.partition] for part in read.ranges)
    assert not read.losses


@pytest.mark.parametrize(
    ("start", "end", "target", "expected"),
    [
        pytest.param(stands(p0=1), stands(p0=9), stands(p0=5), stands(p0=5), id="stops at the target"),
        pytest.param(stands(p0=1), stands(p0=3), stands(p0=5), stands(p0=3), id="a log that lost its end"),
        pytest.param(stands(p0=7), stands(p0=9), stands(p0=5), stands(p0=7), id="never falls behind"),
        pytest.param(stands(p0=1), stands(p0=9, p1=4), stands(p0=5), stands(p0=5), id="new partition waits"),
        pytest.param(
            stands(p0=1, p1=2),
            stands(p0=9, p1=4),
            stands(p0=5),
            stands(p0=5, p1=2),
            id="known partition stays",
        ),
        pytest.param(NOWHERE, stands(p0=9), NOWHERE, NOWHERE, id="new topic waits"),
        pytest.param(NOWHERE, stands(p0=9), stands(p0=5), stands(p0=5), id="topic of the target is read"),
        pytest.param(stands(p0=1), stands("B", p0=9), stands(p0=5), stands(p0=1), id="recreated topic waits"),
        pytest.param(
            stands(p0=9),
            stands("B", p0=9),
            stands("B", p0=2),
            stands("B", p0=2),
            id="recreated before the target",
        ),
        pytest.param(
            stands(p0=3),
            stands(epoch=4, p0=12),
            stands(p0=9),
            stands(epoch=4, p0=9),
            id="a newer leader's word",
        ),
        pytest.param(
            stands(p0=9, p1=9),
            stands(epoch=4, p0=12, p1=12),
            stands(p0=9),
            stands(p0=9, p1=9),
            id="a place that stays keeps its epoch",
        ),
    ],
)
def test_a_target_is_reached_and_not_passed(
    start: StreamOffsets, end: StreamOffsets, target: StreamOffsets, expected: StreamOffsets
) -> None:
    """A query with the trigger availableNow ends exactly at the target offsets."""
    assert capped(start, end, target) == expected


def test_a_trigger_waits_for_enough_records_or_for_its_delay() -> None:
    """The first trigger never waits, and a later trigger waits for enough records or until its time limit."""
    pace = TriggerPace(10, 60.0)
    due = [
        pace.is_due(rows, now)
        for rows, now in [(1, 0.0), (9, 30.0), (10, 31.0), (0, 32.0), (1, 90.0), (1, 91.0), (0, 200.0)]
    ]

    assert due == [True, False, True, False, False, True, True]
    assert TriggerPace(None, 60.0).is_due(1, 0.0)
