"""Writes that balance brokers: moves of replicas off draining brokers, and moves of leadership to preferred leaders.

The controllership writes the proposed partition records. The module keeps no state about drains: the remaining moves
are derived from the mirror, so that the next controller can continue a drain.
"""

from __future__ import annotations

from typing import Final

from fairlead_broker.clock import Clock
from fairlead_broker.controller.drain import drained, taken_back
from fairlead_broker.controller.partition_changes import ClusterView
from fairlead_broker.controller.partition_writes import PartitionWrite
from fairlead_broker.controller.preferred import imbalanced
from fairlead_broker.controlling.replica_load import ReplicaLoad
from fairlead_broker.coordination.cluster_values import cluster_number, cluster_value
from fairlead_broker.coordination.partition_index import PartitionsByBroker
from fairlead_broker.registry.metadata import ClusterMetadata

MOVES_MAX: Final = 20
"""Maximum number of partitions in the cluster that drains move concurrently, since each move copies a log over the
network.
"""


class Balancing:
    """Planner of the writes that balance brokers."""

    def __init__(
        self, metadata: ClusterMetadata, index: PartitionsByBroker, load: ReplicaLoad, clock: Clock
    ) -> None:
        self._metadata = metadata
        self._index = index
        self._load = load
        self._clock = clock
        self._looked_at = clock.monotonic()

    def proposals(self, view: ClusterView) -> list[PartitionWrite]:
        """Return the writes of partition records that are due, at most one for each partition."""
        drains = self._drains(view)
        begun = {write.key for write in drains}
        # A partition whose move starts now gets its preferred leader in a later call.
        return [*drains, *(write for write in self._preferences(view) if write.key not in begun)]

    def _drains(self, view: ClusterView) -> list[PartitionWrite]:
        writes = self._moves_taken_back(view)
        if writes:
            # Drains continue after the cancellations are written.
            return writes
        room, load = MOVES_MAX - len(self._index.moving), self._load.of_brokers()
        leaving = {key for broker in view.draining for key in self._index.of_broker(broker)}
        for key in sorted(leaving, key=lambda each: (each.topic_id, each.partition)):
            if len(writes) >= room:
                break
            partition = self._index.find(key)
            if partition is None:
                continue
            record = drained(key, partition.value, partition.mod_revision, view, load)
            if record is not None:
                writes.append(PartitionWrite(key, partition.mod_revision, record))
                for broker in record.adding:
                    load[broker] = load.get(broker, 0) + 1
        return writes

    def _moves_taken_back(self, view: ClusterView) -> list[PartitionWrite]:
        writes: list[PartitionWrite] = []
        for key in self._index.moving if view.draining else ():
            partition = self._index.find(key)
            if partition is None:
                continue
            record = taken_back(key, partition.value, view)
            if record is not None:
                writes.append(PartitionWrite(key, partition.mod_revision, record))
        return writes

    def _preferences(self, view: ClusterView) -> list[PartitionWrite]:
        now = self._clock.monotonic()
        if now - self._looked_at < cluster_number(self._metadata, "leader.imbalance.check.interval.seconds"):
            return []
        self._looked_at = now
        if cluster_value(self._metadata, "auto.leader.rebalance.enable") is not True:
            return []
        partitions = dict(self._index.partitions())
        moves = imbalanced(
            ((key, each.value) for key, each in partitions.items()),
            view,
            cluster_number(self._metadata, "leader.imbalance.per.broker.percentage"),
        )
        return [
            PartitionWrite(key, partitions[key].mod_revision, record, elects=True)
            for key, record in moves.items()
        ]
