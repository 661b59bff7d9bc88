"""Sizes and rates in a picture of the cluster."""

from __future__ import annotations

import pytest

from fairlead_api.bodies.metadata import PartitionMetadata, TopicMetadata
from fairlead_console.observation.picture import LogEnds, Topic, byte_rate, outlined


def topic(ends: LogEnds, sizes: dict[int, int], leader: int | None = 1) -> Topic:
    """Return a topic of one partition."""
    partition = PartitionMetadata(
        partition=0, leader=leader, leader_epoch=0, replicas=[1, 2], isr=[1], elr=[], offline=[]
    )
    description = outlined(TopicMetadata(name="orders", topic_id="x", partitions=[partition]))
    return Topic(description, [partition], {0: ends}, 0.0, {0: sizes} if sizes else {})


@pytest.mark.parametrize(
    ("before", "now", "expected"),
    [
        ((LogEnds(0, 10), {1: 1000, 2: 1000}), (LogEnds(0, 20), {1: 3000, 2: 1000}), 200.0),
        ((LogEnds(0, 100), {1: 10_000}), (LogEnds(80, 110), {1: 3000}), 100.0),
        ((LogEnds(0, 100), {1: 10_000}), (LogEnds(100, 100), {1: 0}), 0.0),
        ((LogEnds(0, 10), {}), (LogEnds(0, 20), {1: 3000}), 0.0),
    ],
    ids=["grown", "deleted and grown", "emptied", "unknown before"],
)
def test_the_bytes_of_a_second_are_those_of_new_records(
    before: tuple[LogEnds, dict[int, int]], now: tuple[LogEnds, dict[int, int]], expected: float
) -> None:
    """The rate counts a single copy of the records, and a deletion of old records does not reduce it."""
    assert byte_rate(topic(*before), topic(*now), 10.0) == pytest.approx(expected)


def test_the_size_of_a_log_is_that_of_its_leader() -> None:
    """The log size is that of the leader, or the largest without a leader; the topic's size counts all replicas."""
    sizes = {1: 100, 2: 300}

    assert topic(LogEnds(0, 1), sizes).log_sizes == {0: 100}
    assert topic(LogEnds(0, 1), sizes, leader=None).log_sizes == {0: 300}
    assert topic(LogEnds(0, 1), sizes).size == 400
    assert topic(LogEnds(0, 1), {}).log_sizes == {}
