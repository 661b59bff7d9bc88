"""The brokers of a partition after a change of its number of replicas.

The call `:reassign` takes the replicas as given, so they are chosen here. Called by `topic`, one topic at a time.
Present replicas stay as far as their number allows, and the preferred leader stays first, so that the balance of
leaders does not change. Pure: the load of each broker is an argument.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping

from fairlead_operator.plan.topic_observed import LiveBroker, LivePartition, racks_of


class ReplicaChooser:
    """Chooses replicas for the partitions of one topic; each choice counts in the load of the following ones."""

    def __init__(self, brokers: Collection[LiveBroker], load: Mapping[int, int]) -> None:
        """`load`: how many replicas of all topics each broker keeps."""
        self._brokers = {broker.id: broker for broker in brokers}
        self._racks = racks_of(brokers)
        self._load = Counter(load)

    def choose(self, partition: LivePartition, replicas: int) -> tuple[int, ...] | None:
        """Return the brokers that are to keep the partition; None where too few take new replicas."""
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
        """Return the sort key of a candidate: a rack without a replica first, then the least load, then the id."""
        used = {self._racks.get(each) for each in chosen}
        return self._racks.get(broker) in used, self._load[broker], broker

    def _dispensable(self, chosen: list[int], partition: LivePartition) -> int:
        """Return the broker to remove: a gone one, a lagging one, one with a shared rack, the one with the most load.

        The preferred leader stays, unless it does not run or lags while others do not: the remaining replicas must be
        able to acknowledge.
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
