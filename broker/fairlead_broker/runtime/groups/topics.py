"""Every ready topic, in the form that group assignment uses.

While no topic changes, `topics` stays the same object.

Used by the coordinated groups, which read the topics at each turn and compare them by identity. The topics are updated
from the mirror.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from types import MappingProxyType

from fairlead_api.identifiers import BrokerId, PartitionIndex
from fairlead_broker.groups.subscriptions import Topics, TopicShape
from fairlead_broker.registry.metadata import (
    BrokerChange,
    Change,
    ClusterMetadata,
    PartitionChange,
    TopicChange,
)
from fairlead_broker.registry.records import TopicRecord, TopicState

NO_RACKS: frozenset[str] = frozenset()


class GroupTopics:
    """View of the mirror's topics. The owner must pass each update of the mirror to the view."""

    __slots__ = ("_changed", "_metadata", "_racks", "_shapes", "topics")

    def __init__(self, metadata: ClusterMetadata, changed: Callable[[], None]) -> None:
        """`changed` is called on the event loop when `topics` has been replaced by another object."""
        self._metadata = metadata
        self._changed = changed
        self._racks: dict[BrokerId, str | None] = {
            broker: each.value.rack for broker, each in metadata.brokers.items()
        }
        """Last known racks of all brokers. Racks of absent brokers are kept, so that a short absence moves no
        partitions between members."""
        self._shapes: dict[str, TopicShape] = {}
        self._look_at(metadata.topics)
        self.topics: Topics = MappingProxyType(self._shapes)

    def updated(self, changes: Iterable[Change]) -> None:
        """Apply changes in the mirror. Changes that do not affect groups are cheap."""
        touched: set[str] = set()
        for change in changes:
            touched.update(self._touched_by(change))
        if touched and self._look_at(touched):
            self.topics = MappingProxyType(self._shapes)
            self._changed()

    def _touched_by(self, change: Change) -> Iterable[str]:
        match change:
            case TopicChange(name):
                return (name,)
            case PartitionChange(topic_id, _, before, after):
                if before and after and before.value.replicas == after.value.replicas:
                    return ()
                of_partition = self._metadata.topic_name(topic_id)
                return () if of_partition is None else (of_partition,)
            case BrokerChange(broker, _, after) if after is not None:
                known = broker in self._racks and self._racks[broker] == after.value.rack
                self._racks[broker] = after.value.rack
                return () if known else tuple(self._metadata.topics)
            case _:
                return ()

    def _look_at(self, names: Iterable[str]) -> bool:
        """Update the shapes of some topics; return whether any shape has changed."""
        # Only the shapes of the given topics are compared, since each change of a topic calls this method.
        changed: dict[str, TopicShape | None] = {}
        for name in names:
            topic = self._metadata.topics.get(name)
            is_ready = topic is not None and topic.value.state is TopicState.READY
            shape = self._shape(topic.value) if topic is not None and is_ready else None
            if shape != self._shapes.get(name):
                changed[name] = shape
        if not changed:
            return False
        shapes = dict(self._shapes)
        for name, shape in changed.items():
            if shape is None:
                del shapes[name]
            else:
                shapes[name] = shape
        self._shapes = shapes
        return True

    def _shape(self, topic: TopicRecord) -> TopicShape:
        racks = tuple(self._racks_of(topic, PartitionIndex(index)) for index in range(topic.partitions))
        return TopicShape(topic.topic_id, topic.partitions, racks if any(racks) else ())

    def _racks_of(self, topic: TopicRecord, index: PartitionIndex) -> frozenset[str]:
        partition = self._metadata.partitions(topic.topic_id).get(index)
        if partition is None:
            return NO_RACKS
        racks = (self._racks.get(replica.broker) for replica in partition.value.replicas)
        return frozenset(rack for rack in racks if rack is not None)
