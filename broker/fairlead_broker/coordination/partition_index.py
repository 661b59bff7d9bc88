"""Index that finds the partitions affected by a change, so that no change requires a scan of all partitions.

The controllership uses the index. The index is updated at every change of the mirror and writes nothing to the
store.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from collections.abc import Set as AbstractSet

from fairlead_api.identifiers import BrokerId
from fairlead_broker.controller.reassignment import is_under_way
from fairlead_broker.registry.keys import PartitionKey
from fairlead_broker.registry.metadata import (
    BrokerChange,
    Change,
    ClusterMetadata,
    ConfigChange,
    PartitionChange,
    Versioned,
)
from fairlead_broker.registry.records import PartitionRecord, TopicState


class PartitionsByBroker:
    """Partitions by broker, and the partitions that are being moved."""

    def __init__(self, metadata: ClusterMetadata) -> None:
        """Build the index from the current mirror."""
        self._metadata = metadata
        self._by_broker: dict[BrokerId, set[PartitionKey]] = {}
        self._moving: set[PartitionKey] = set()
        for key, partition in self.partitions():
            self._follow(key, None, partition)

    @property
    def moving(self) -> AbstractSet[PartitionKey]:
        """Partitions whose reassignment is in progress."""
        return self._moving

    def of_broker(self, broker: BrokerId) -> AbstractSet[PartitionKey]:
        """Return the partitions that have a replica on the broker."""
        return self._by_broker.get(broker, set())

    def keepers(self) -> set[BrokerId]:
        """Return the brokers that have replicas, whether registered or gone."""
        return {broker for broker, keys in self._by_broker.items() if keys}

    def replica_counts(self) -> dict[BrokerId, int]:
        """Return the number of replicas on each broker."""
        return {broker: len(keys) for broker, keys in self._by_broker.items()}

    def partitions(self) -> Iterator[tuple[PartitionKey, Versioned[PartitionRecord]]]:
        """Iterate over all partitions of topics that are not being deleted."""
        for topic in self._metadata.topics.values():
            if topic.value.state is TopicState.DELETING:
                continue
            for index, partition in self._metadata.partitions(topic.value.topic_id).items():
                yield PartitionKey(topic.value.topic_id, index), partition

    def find(self, key: PartitionKey) -> Versioned[PartitionRecord] | None:
        """Return a partition, or None if it does not exist or its topic is being deleted."""
        topic = self._metadata.topic_by_id(key.topic_id)
        if topic is None or topic.value.state is TopicState.DELETING:
            return None
        return self._metadata.partitions(key.topic_id).get(key.partition)

    def touched_by(self, change: Change) -> AbstractSet[PartitionKey]:
        """Apply a change to the index, and return the partitions that the change affects."""
        match change:
            case PartitionChange(topic_id=topic_id, partition=partition):
                key = PartitionKey(topic_id, partition)
                self._follow(key, change.before, change.after)
                return {key}
            case BrokerChange(broker=broker):
                return self.of_broker(broker)
            case ConfigChange(broker=broker) if broker is not None:
                return self.of_broker(broker)
            case _:
                return set()

    def _follow(
        self,
        key: PartitionKey,
        before: Versioned[PartitionRecord] | None,
        after: Versioned[PartitionRecord] | None,
    ) -> None:
        for replica in before.value.replicas if before else ():
            self._by_broker.get(replica.broker, set()).discard(key)
        for replica in after.value.replicas if after else ():
            self._by_broker.setdefault(replica.broker, set()).add(key)
        self._moving.discard(key)
        if after is not None and is_under_way(after.value):
            self._moving.add(key)


class TouchedPartitions:
    """Queue of partitions to be examined again. Each partition is queued at most once."""

    def __init__(self, is_urgent: Callable[[PartitionKey], bool]) -> None:
        """Create an empty queue. `is_urgent` is called when a partition is added."""
        self._is_urgent = is_urgent
        self._urgent: set[PartitionKey] = set()
        self._others: set[PartitionKey] = set()

    def __bool__(self) -> bool:
        return bool(self._urgent or self._others)

    def add(self, keys: Iterable[PartitionKey]) -> None:
        """Add partitions. For a partition that is already queued, the urgency is determined again."""
        for key in keys:
            urgent = self._is_urgent(key)
            (self._urgent if urgent else self._others).add(key)
            (self._others if urgent else self._urgent).discard(key)

    def take(self, count: int) -> list[PartitionKey]:
        """Remove and return at most `count` partitions, urgent partitions first."""
        taken: list[PartitionKey] = []
        for keys in (self._urgent, self._others):
            while keys and len(taken) < count:
                taken.append(keys.pop())
        return taken

    def clear(self) -> None:
        """Remove all partitions."""
        self._urgent.clear()
        self._others.clear()
