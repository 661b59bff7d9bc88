from __future__ import annotations

from fairlead_spark.planning.losses import DataLoss, Loss, LossKind
from fairlead_spark.planning.offsets import PartitionOffset, StreamOffsets, TopicOffsets
from fairlead_spark.planning.ranges import OffsetRange, expired, plan_between, unexpired
from refusals import missing


def stands(topic_id: str = "A", **offsets: int) -> StreamOffsets:
    """Return a query's offsets for one topic in leader epoch 3, given as p0=5 for offset 5 of partition 0."""
    places = {int(name[1:]): PartitionOffset(offset, 3) for name, offset in offsets.items()}
    return StreamOffsets({"a": TopicOffsets(topic_id, places)})


def test_ranges_go_from_where_the_query_stands_to_the_end() -> None:
    """A range that is not empty extends from the query's offset to the end, with the leader epochs of both offsets."""
    plan = plan_between(stands(p0=5, p1=7), stands(p0=9, p1=7))

    assert plan.ranges == [OffsetRange("a", "A", 0, 5, 9, 3, 3)]
    assert plan.losses == []
    assert plan.ranges[0].size == 4
    assert str(plan.ranges[0]) == "a-0"


def test_new_partitions_and_topics_are_read_from_their_first_offset() -> None:
    """New partitions and topics are read from offset 0."""
    grown = plan_between(stands(p0=5), stands(p0=5, p1=4))
    found = plan_between(StreamOffsets(), stands(p0=2))

    assert grown.ranges == [OffsetRange("a", "A", 1, 0, 4, stop_epoch=3)]
    assert found.ranges == [OffsetRange("a", "A", 0, 0, 2, stop_epoch=3)]


def test_a_recreated_topic_is_a_loss_and_read_from_its_beginning() -> None:
    """A recreated topic is reported as a loss and read from offset 0, even if its offsets are higher."""
    plan = plan_between(stands("A", p0=5), stands("B", p0=9))

    assert plan.ranges == [OffsetRange("a", "B", 0, 0, 9, stop_epoch=3)]
    assert [loss.kind for loss in plan.losses] == [LossKind.TOPIC_RECREATED]
    assert missing(str(plan.losses[0]), "A", "B", "0:5") == []


def test_a_topic_whose_id_is_not_known_is_taken_as_it_is() -> None:
    """A topic whose id is not stored is read from the stored offsets."""
    plan = plan_between(stands("", p0=5), stands("B", p0=9))

    assert plan.ranges == [OffsetRange("a", "B", 0, 5, 9, 3, 3)]
    assert plan.losses == []


def test_a_log_that_ends_earlier_is_a_loss_with_numbers() -> None:
    """A log that ends before the query's offset is reported as a loss, with both offsets."""
    plan = plan_between(stands(p0=9), stands(p0=4))

    assert plan.ranges == []
    assert [missing(str(loss), "a-0", 9, 4) for loss in plan.losses] == [[]]


def test_a_topic_that_is_gone_is_a_loss() -> None:
    """A deleted topic is reported as a loss, with the query's offsets."""
    plan = plan_between(stands(p0=9, p1=2), StreamOffsets())

    assert [(loss.kind, loss.topic) for loss in plan.losses] == [(LossKind.TOPIC_GONE, "a")]
    assert missing(str(plan.losses[0]), "0:9", "1:2") == []


def test_the_error_of_losses_says_each_and_what_to_do() -> None:
    """The error names each loss with its partition, and the effect of failOnDataLoss=false."""
    losses = [
        Loss(LossKind.LOG_START, "a", 1, "offset 3 is below log start 8"),
        Loss(LossKind.TOPIC_GONE, "b", detail="the query was at 0:1"),
    ]

    assert missing(str(DataLoss(losses)), "a-1", 3, 8, "b", "0:1", "failOnDataLoss=false") == []


def test_a_part_of_a_range_keeps_the_epoch_of_its_beginning_alone() -> None:
    """Only the first part of a range keeps the leader epoch of its start: later leaders may have written the rest."""
    whole = OffsetRange("a", "A", 0, 5, 9, 3, 4)

    assert whole.within(5, 7) == OffsetRange("a", "A", 0, 5, 7, 3, 4)
    assert whole.within(7, 9) == OffsetRange("a", "A", 0, 7, 9, stop_epoch=4)


def test_an_expired_range_is_a_loss_with_numbers() -> None:
    """A range that begins before a known log start is shortened or dropped, and reported as a loss."""
    ranges = plan_between(stands(p0=5, p1=5, p2=5, p3=5), stands(p0=9, p1=9, p2=9, p3=9)).ranges
    beginnings = stands(p0=7, p1=9, p2=5)

    assert [(part.partition, part.start, part.stop) for part in unexpired(ranges, beginnings)] == [
        (0, 7, 9),
        (2, 5, 9),
        (3, 5, 9),
    ]
    losses = expired(ranges, beginnings)
    assert [(loss.kind, loss.partition) for loss in losses] == [
        (LossKind.LOG_START, 0),
        (LossKind.LOG_START, 1),
    ]
    assert (missing(str(losses[0]), "a-0", 5, 7), missing(str(losses[1]), "a-1", 5, 9)) == ([], [])
