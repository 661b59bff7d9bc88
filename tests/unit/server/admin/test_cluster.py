"""The metadata of a partition that is being moved."""

from __future__ import annotations

from types import MappingProxyType

from fairlead_api.configuration import effective_topic_config
from fairlead_api.identifiers import BrokerId, PartitionIndex
from fairlead_broker.registry.records import TopicState
from fairlead_broker.runtime.topic_views import TopicView
from fairlead_broker.server.admin.cluster import topic_metadata
from partition_kit import TOPIC_ID, record, registered


def test_a_move_under_way_is_shown() -> None:
    """A partition that is being moved is listed with its adding, removing and offline replicas, and its minimum ISR."""
    moving = record(1, "123", replicas="1243", adding=(BrokerId(4),), removing=(BrokerId(3),))
    config, entries = effective_topic_config({}, {}, {}, replication_factor=3)
    view = TopicView(
        "t", TOPIC_ID, TopicState.READY, 1, 3, config, entries, MappingProxyType({PartitionIndex(0): moving})
    )
    there = {BrokerId(each): registered(each, 10 + each) for each in (1, 2, 4)}
    [shown] = topic_metadata(view, there).partitions

    assert (shown.adding, shown.removing, shown.min_isr) == ([4], [3], 2)
    assert shown.replicas == [1, 2, 4, 3]
    assert 3 in shown.offline


def test_partitions_that_are_still_being_made_are_shown() -> None:
    """A topic that is being created lists all its partitions, and partitions without a record have no leader."""
    config, entries = effective_topic_config({}, {}, {}, replication_factor=3)
    made = MappingProxyType({PartitionIndex(1): record(1, "123", replicas="123")})
    view = TopicView("t", TOPIC_ID, TopicState.CREATING, 3, 3, config, entries, made)
    there = {BrokerId(each): registered(each, 10 + each) for each in (1, 2, 3)}
    shown = topic_metadata(view, there).partitions

    assert [(each.partition, each.leader, each.replicas) for each in shown] == [
        (0, None, []),
        (1, 1, [1, 2, 3]),
        (2, None, []),
    ]
