"""Sums and differences of partitions by topic, in the form of records: ascending, and no topic without partitions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from fairlead_api.identifiers import TopicId
from fairlead_broker.groups.messages import Partitions

Holding: TypeAlias = dict[TopicId, tuple[int, ...]]


def common(one: Holding, other: Holding) -> Holding:
    """Return the partitions that are in both."""
    kept = {topic_id: set(other.get(topic_id, ())) for topic_id in one}
    return _held({topic_id: kept[topic_id].intersection(one[topic_id]) for topic_id in one})


def without(one: Holding, other: Holding) -> Holding:
    """Return the partitions that are not in the other."""
    return _held({topic_id: set(one[topic_id]).difference(other.get(topic_id, ())) for topic_id in one})


def together(one: Holding, other: Holding) -> Holding:
    """Return the partitions that are in either."""
    topic_ids = one.keys() | other.keys()
    return _held({each: {*one.get(each, ()), *other.get(each, ())} for each in topic_ids})


def as_partitions(holding: Holding) -> Partitions:
    """Convert the form of records into that of events and replies."""
    return {topic_id: frozenset(partitions) for topic_id, partitions in holding.items()}


def is_within(owned: Partitions, holding: Holding) -> bool:
    """Return whether all owned partitions are held."""
    return all(partitions.issubset(holding.get(topic_id, ())) for topic_id, partitions in owned.items())


def is_apart(owned: Partitions, holding: Holding) -> bool:
    """Return whether no owned partition is held."""
    return all(partitions.isdisjoint(holding.get(topic_id, ())) for topic_id, partitions in owned.items())


def is_exactly(owned: Partitions, holding: Holding) -> bool:
    """Return whether both are the same partitions."""
    return is_within(owned, holding) and sum(map(len, owned.values())) == sum(map(len, holding.values()))


def _held(partitions: Mapping[TopicId, set[int]]) -> Holding:
    return {
        topic_id: tuple(sorted(partitions[topic_id]))
        for topic_id in sorted(partitions)
        if partitions[topic_id]
    }
