"""Choice of a partition's brokers after its number of replicas has changed.

The call `:reassign` requires explicit replicas, which this module chooses. `topic` calls this module for one topic at a
time. As many current replicas are kept as the desired number allows, and the preferred leader stays first, so that the
balance of leaders does not change. The module does no I/O: the load of each broker is an argument.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping

from fairlead_operator.plan.topic_observed import LiveBroker, LivePartition, racks_of


class ReplicaChooser:
    """Chooses replicas for the partitions of one topic; each chosen replica counts as load in the next choice."""

    def __init__(self, brokers: Collection[LiveBroker], load: Mapping[int, int]) -> None:
        """Create a chooser; `load` is the number of replicas, across all topics, on each broker."""
        self._brokers = {broker.id: broker for broker in brokers}
        self._racks = racks_of(brokers)
        self._load = Counter(load)

    def choose(self, partition: LivePartition, replicas: int) -> tuple[int, ...] | None:
        """Return the new replicas of the partition; None if too few brokers accept new replicas."""
        chosen = list(partition.target)
        while len(chosen) > replicas:
            leaving = self._dispensable(chosen, partition)
            chosen.remove(leaving)
            self._load[leaving] -= 1
        while len(chosen) < replicas:
            free = [each for each in self._brokers.values() if each.placeable and each.id not in chosen]
            if not free:
                return None
            coming = min(free, key=lambda each: self._cost(each.id, chosen)).id
            chosen.append(coming)
            self._load[coming] += 1
        return tuple(chosen)

    def _cost(self, broker: int, chosen: list[int]) -> tuple[bool, int, int]:
        """Return the sort key of a candidate: brokers in unused racks first, then by least load, then by id."""
        used = {self._racks.get(each) for each in chosen}
        return self._racks.get(broker) in used, self._load[broker], broker

    def _dispensable(self, chosen: list[int], partition: LivePartition) -> int:
        """Return the replica to remove.

        A replica that is down is removed first, then a replica that is out of sync, then a replica in a shared rack,
        then the replica on the broker with the most load. The preferred leader is kept unless it is down or out of sync
        while other replicas are in sync: the remaining replicas must be able to acknowledge writes.
        """
        racks = Counter(self._racks.get(each) for each in chosen)

        def rank(broker: int) -> tuple[bool, bool, bool, bool, int, int]:
            known = self._brokers.get(broker)
            return (
                known is None or known.state != "running",
                broker not in partition.isr,
                broker != chosen[0],
                racks[self._racks.get(broker)] > 1,
                self._load[broker],
                broker,
            )

        return max(chosen, key=rank)
