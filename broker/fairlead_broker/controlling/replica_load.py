"""Numbers of replicas per broker and of partitions per topic, including additions by operations in progress.

`topics` and `operations` reserve replicas and partitions (a promise) before they write them, so that concurrent
operations together do not exceed the maximum of a broker or a quota. The promises are state of this process: a
controller that takes over completes the operations of an earlier controller without promises.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TypeAlias

from fairlead_api.identifiers import BrokerId, TopicId
from fairlead_broker.coordination.partition_index import PartitionsByBroker
from fairlead_broker.registry.keys import PartitionKey
from fairlead_broker.registry.metadata import PartitionChange

Subject: TypeAlias = TopicId | PartitionKey
"""Topic that gets partitions, or partition that gets replicas."""


class Promise:
    """Replicas and partitions that one operation will add."""

    def __init__(self, topic: str | None = None) -> None:
        """Create a promise without replicas. `topic`: name of the topic that the operation creates or changes."""
        self.topic = topic
        self.partitions = 0
        """Number of partitions that the topic will have; 0 before the number is known."""
        self.subject: Subject | None = None
        self.counts = Counter[BrokerId]()
        self._outstanding: dict[PartitionKey, set[BrokerId]] = {}

    def renew(self, subject: Subject, replicas: Mapping[PartitionKey, Sequence[BrokerId]]) -> None:
        """Replace the promised replicas."""
        self.subject = subject
        self._outstanding = {key: set(brokers) for key, brokers in replicas.items()}
        self.counts = Counter(broker for brokers in replicas.values() for broker in brokers)

    def follow(self, key: PartitionKey, existing: set[BrokerId]) -> None:
        """Remove the replicas that exist now from the promise."""
        outstanding = self._outstanding.get(key, set())
        self.counts.subtract(outstanding & existing)
        outstanding -= existing


class ReplicaLoad:
    """Replicas by broker: replicas of the partition records, and replicas promised by operations of this controller."""

    def __init__(self, index: PartitionsByBroker) -> None:
        """Count the replicas in an index that the caller keeps up to date."""
        self._index = index
        self._promises: list[Promise] = []

    def of_brokers(self, besides: Subject | None = None) -> dict[BrokerId, int]:
        """Return the number of replicas on each broker, without the promises for the subject `besides`."""
        load = self._index.replica_counts()
        for promise in self._promises:
            if promise.subject != besides:
                for broker, count in promise.counts.items():
                    load[broker] = load.get(broker, 0) + count
        return load

    def promised_partitions(self) -> dict[str, int]:
        """Return the number of partitions that each topic will have after the current operations, by topic name."""
        found: dict[str, int] = {}
        for promise in self._promises:
            if promise.topic is not None:
                found[promise.topic] = max(promise.partitions, found.get(promise.topic, 0))
        return found

    @contextmanager
    def promise(self, topic: str | None = None) -> Iterator[Promise]:
        """Yield the promise of an operation; the promise counts until the operation has ended."""
        promise = Promise(topic)
        self._promises.append(promise)
        try:
            yield promise
        finally:
            self._promises.remove(promise)

    def follow(self, change: PartitionChange) -> None:
        """Remove from the promises the replicas created by a change in the mirror."""
        if change.after is not None and self._promises:
            existing = {replica.broker for replica in change.after.value.replicas}
            for promise in self._promises:
                promise.follow(PartitionKey(change.topic_id, change.partition), existing)
