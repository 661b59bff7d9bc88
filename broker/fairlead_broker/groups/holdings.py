"""Set operations on partitions by topic. Results have the order of records: ascending, and without empty topics."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from fairlead_api.identifiers import TopicId
from fairlead_broker.groups.messages import Partitions

Holding: TypeAlias = dict[TopicId, tuple[int, ...]]


def common(one: Holding, other: Holding) -> Holding:
    """Return the partitions in both holdings."""
    kept = {topic_id: set(other.get(topic_id, ())) for topic_id in one}
    return _held({topic_id: kept[topic_id].intersection(one[topic_id]) for topic_id in one})


def without(one: Holding, other: Holding) -> Holding:
    """Return the partitions of `one` that `other` does not have."""
    return _held({topic_id: set(one[topic_id]).difference(other.get(topic_id, ())) for topic_id in one})


def together(one: Holding, other: Holding) -> Holding:
    """Return the partitions in either holding."""
    topic_ids = one.keys() | other.keys()
    return _held({each: {*one.get(each, ()), *other.get(each, ())} for each in topic_ids})


def as_partitions(holding: Holding) -> Partitions:
    """Convert a holding from the format of records to the format of events and replies."""
    return {topic_id: frozenset(partitions) for topic_id, partitions in holding.items()}


def is_within(owned: Partitions, holding: Holding) -> bool:
    """Return whether the holding has all owned partitions."""
    return all(partitions.issubset(holding.get(topic_id, ())) for topic_id, partitions in owned.items())


def is_apart(owned: Partitions, holding: Holding) -> bool:
    """Return whether the holding has none of the owned partitions."""
    return all(partitions.isdisjoint(holding.get(topic_id, ())) for topic_id, partitions in owned.items())


def is_exactly(owned: Partitions, holding: Holding) -> bool:
    """Return whether the holding has exactly the owned partitions."""
    return is_within(owned, holding) and sum(map(len, owned.values())) == sum(map(len, holding.values()))


def _held(partitions: Mapping[TopicId, set[int]]) -> Holding:
    return {
        topic_id: tuple(sorted(partitions[topic_id]))
        for topic_id in sorted(partitions)
        if partitions[topic_id]
    }
