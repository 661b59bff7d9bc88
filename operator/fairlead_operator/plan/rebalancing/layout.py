"""Replicas of all partitions of a cluster while a proposal is computed: a working copy that counts loads.

`proposal` uses this module. A partition that is being moved counts as load on the brokers that have its replicas after
the move, and no proposal changes the partition.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from typing import NamedTuple

from fairlead_operator.plan.topic_observed import LiveTopics, racks_of


class Place(NamedTuple):
    """Topic and index of a partition; proposals are ordered by both."""

    topic: str
    partition: int

    def __str__(self) -> str:
        """Return the text `topic-partition`."""
        return f"{self.topic}-{self.partition}"


class Layout:
    """Replicas of each partition, with the load of each broker."""

    def __init__(self, live: LiveTopics) -> None:
        """Copy the replicas of all topics that are not being created or deleted."""
        self._racks = racks_of(live.brokers)
        self._before: dict[Place, tuple[int, ...]] = {}
        self._replicas: dict[Place, tuple[int, ...]] = {}
        self._changed: set[Place] = set()
        self.load = Counter({broker.id: 0 for broker in live.brokers})
        """Number of replicas on each broker."""
        self.leaders = Counter({broker.id: 0 for broker in live.brokers})
        """Number of partitions whose preferred leader is on each broker."""
        self._of_topic: Counter[tuple[str, int]] = Counter()
        self._movable: dict[int, set[Place]] = {broker.id: set() for broker in live.brokers}
        for name, topic in live.topics.items():
            for partition in topic.placement if topic.state == "ready" else ():
                place = Place(name, partition.index)
                self._before[place] = self._replicas[place] = partition.target
                self._count(place, partition.target, 1)
                for broker in () if partition.moving else partition.target:
                    self._movable.setdefault(broker, set()).add(place)

    def movable(self, broker: int) -> Collection[Place]:
        """Return the partitions with a replica on the broker that are not being moved, in no particular order."""
        return self._movable.get(broker, set())

    def of(self, place: Place) -> tuple[int, ...]:
        """Return the replicas of a partition, the preferred leader first."""
        return self._replicas[place]

    def before(self, place: Place) -> tuple[int, ...]:
        """Return the replicas of a partition before all changes."""
        return self._before[place]

    @property
    def changed(self) -> Collection[Place]:
        """The partitions whose replicas have been changed."""
        return self._changed

    def put(self, place: Place, replicas: tuple[int, ...]) -> None:
        """Change the replicas of a partition, the preferred leader first."""
        old = self._replicas[place]
        self._replicas[place] = replicas
        self._count(place, old, -1)
        self._count(place, replicas, 1)
        for broker in old:
            self._movable[broker].discard(place)
        for broker in replicas:
            self._movable.setdefault(broker, set()).add(place)
        (self._changed.discard if replicas == self._before[place] else self._changed.add)(place)

    def replace(self, place: Place, leaving: int, coming: int) -> None:
        """Replace a replica by a replica on another broker, at the same position."""
        self.put(place, tuple(coming if broker == leaving else broker for broker in self._replicas[place]))

    def shares_rack(self, place: Place, leaving: int, coming: int) -> bool:
        """Return whether the added broker is in the rack of a replica that is kept."""
        return self._racks.get(coming) in {self._racks.get(each) for each in self._staying(place, leaving)}

    def keeps_racks(self, place: Place, leaving: int, coming: int) -> bool:
        """Return whether the replicas are in at least as many racks after the replacement."""
        return not self.shares_rack(place, leaving, coming) or self.shares_rack(place, leaving, leaving)

    def unevenness(self, topic: str, giver: int, taker: int) -> int:
        """Return how many more replicas of a topic one broker has than another broker."""
        return self._of_topic[topic, giver] - self._of_topic[topic, taker]

    def _staying(self, place: Place, leaving: int) -> list[int]:
        return [broker for broker in self._replicas[place] if broker != leaving]

    def _count(self, place: Place, replicas: tuple[int, ...], step: int) -> None:
        self.leaders.update(dict.fromkeys(replicas[:1], step))
        self.load.update(dict.fromkeys(replicas, step))
        self._of_topic.update({(place.topic, broker): step for broker in replicas})


def load_after(live: LiveTopics, replicas: Mapping[Place, tuple[int, ...]]) -> Layout:
    """Return the replicas of all topics after the given partitions have changed."""
    layout = Layout(live)
    for place, brokers in replicas.items():
        layout.put(place, brokers)
    return layout
