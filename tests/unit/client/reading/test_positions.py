"""The partitions of a consumer, assigned by name, without a network."""

from __future__ import annotations

import pytest

from fairlead.connection.metadata import Picture
from fairlead.errors import SettingError
from fairlead.reading.cursors import Cursor, Prefetch
from fairlead.reading.positions import AssignedPartitions, places_of
from fairlead.reading.reader import BatchReader
from fairlead.settings import ConsumerSettings
from fairlead.topic_partition import TopicPartition
from fairlead_api.bodies.metadata import PartitionMetadata, TopicMetadata


def at(index: int) -> TopicPartition:
    """Return a partition of the topic."""
    return TopicPartition("flights", index)


def picture_of(topic_id: str, partitions: int) -> Picture:
    """Return cached metadata with the topic."""
    each = [
        PartitionMetadata(
            partition=index, leader=1, leader_epoch=1, replicas=[1], isr=[1], elr=[], offline=[]
        )
        for index in range(partitions)
    ]
    return Picture(topics={"flights": TopicMetadata(name="flights", topic_id=topic_id, partitions=each)})


@pytest.fixture
def partitions() -> AssignedPartitions:
    """Return partition 0 of a topic that is read as a whole, at offset 10."""
    prefetch = Prefetch(ConsumerSettings())
    partitions = AssignedPartitions(prefetch, BatchReader(prefetch, lambda: None))
    partitions.choose([Cursor("flights", "id", 0, 10)], {"flights": "id"})
    return partitions


def test_a_grown_topic_is_read_from_the_beginning_of_its_new_partitions(
    partitions: AssignedPartitions,
) -> None:
    """New partitions of a topic are read from their first record; assigned partitions keep their positions."""
    partitions.grow(picture_of("id", 3))

    assert {place: partitions.cursor(place).position for place in partitions.names} == {
        at(0): 10,
        at(1): 0,
        at(2): 0,
    }


def test_another_topic_of_the_same_name_adds_no_partitions(partitions: AssignedPartitions) -> None:
    """A recreated topic, which has a different id, adds no partitions to the assignment."""
    partitions.grow(picture_of("other", 3))

    assert partitions.names == {at(0)}


def test_only_assigned_partitions_have_cursors(partitions: AssignedPartitions) -> None:
    """The cursors of given partitions, or of all partitions, are returned, and an unassigned partition is refused."""
    with pytest.raises(SettingError) as refused:
        partitions.cursors([at(0), at(1)])

    assert refused.value.name == "partition"
    assert partitions.cursors([]) == [partitions.cursor(at(0))]


def test_a_partition_is_named_by_its_topic_and_index() -> None:
    """A repeated partition counts once, and a topic name in place of partitions is refused."""
    assert places_of([at(0), at(1), at(0)]) == [at(0), at(1)]
    with pytest.raises(SettingError):
        places_of("flights")
