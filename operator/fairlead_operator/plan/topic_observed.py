"""What the brokers told of their topics, and what a Topic asks for: the two sides that `topic` compares.

Made by `brokers` from one listing of a whole cluster, and by `reconcile` from the resource. Values only. Must not
know how either was read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from fairlead_api.bodies.metadata import BrokerState, TopicState
from fairlead_api.configuration import ConfigEntry


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedTopic:
    """What a Topic asks for, defaults filled in."""

    name: str
    partitions: int | None
    """None leaves the number to the cluster."""
    replicas: int | None
    """None leaves the replication factor alone."""
    config: Mapping[str, str] = field(default_factory=dict)
    unmanaged: frozenset[str] = frozenset()
    """Keys that are never read or written, also not when the topic is created."""

    @property
    def managed_config(self) -> dict[str, str]:
        """The values that are to be set on the topic."""
        return {key: value for key, value in self.config.items() if key not in self.unmanaged}


@dataclass(frozen=True, slots=True)
class LiveBroker:
    """A broker as the others know it."""

    id: int
    rack: str | None = None
    state: BrokerState = "running"
    cordoned: bool = False

    @property
    def placeable(self) -> bool:
        """Whether it takes new replicas."""
        return self.state == "running" and not self.cordoned


@dataclass(frozen=True, slots=True)
class LivePartition:
    """Which brokers keep a partition, the preferred leader first, the leaving ones last."""

    index: int
    replicas: tuple[int, ...]
    adding: tuple[int, ...] = ()
    removing: tuple[int, ...] = ()
    isr: tuple[int, ...] = ()

    @property
    def moving(self) -> bool:
        """Whether a move is under way."""
        return bool(self.adding or self.removing)

    @property
    def target(self) -> tuple[int, ...]:
        """The brokers that keep it when the move is done."""
        return tuple(broker for broker in self.replicas if broker not in self.removing)

    @property
    def origin(self) -> tuple[int, ...]:
        """The brokers that would keep it if the move were taken back."""
        return tuple(broker for broker in self.replicas if broker not in self.adding)


def placed(partitions: Iterable[LivePartition]) -> tuple[LivePartition, ...]:
    """Return the partitions with replicas: a partition in creation has none, and none to move."""
    return tuple(each for each in partitions if each.replicas)


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveTopic:
    """A topic as the brokers have it."""

    name: str
    topic_id: str
    state: TopicState = "ready"
    partitions: int
    replication_factor: int
    """What new partitions get; the replicas of each one are in `placement`."""
    config: Mapping[str, ConfigEntry] = field(default_factory=dict)
    placement: tuple[LivePartition, ...] = ()
    """Partitions without those in creation, which have no replicas; empty for a new topic."""

    @property
    def replicas(self) -> int:
        """Replicas that every partition has, also while some move: the smallest number."""
        present = [min(len(each.origin), len(each.target)) for each in self.placement]
        return min(present, default=self.replication_factor)

    def placed_as(self, before: LiveTopic | None) -> LiveTopic:
        """Return this topic with the placement that an earlier answer told of the same topic."""
        if before is None or before.topic_id != self.topic_id:
            return self
        return replace(self, placement=before.placement)


@dataclass(frozen=True)
class LiveTopics:
    """All topics and brokers of one cluster, as one of its brokers had them."""

    brokers: tuple[LiveBroker, ...]
    topics: Mapping[str, LiveTopic]

    @property
    def placeable(self) -> list[LiveBroker]:
        """The brokers that take new replicas."""
        return [broker for broker in self.brokers if broker.placeable]

    @cached_property
    def load(self) -> Mapping[int, int]:
        """How many replicas each broker keeps or is to keep, over all topics."""
        return Counter(
            broker
            for topic in self.topics.values()
            for partition in topic.placement
            for broker in partition.target
        )


def fewest_brokers(replicas: int | None, desired_brokers: int) -> int:
    """Return how many brokers have to take replicas before a topic is made.

    Without a replication factor the brokers choose one by how many of them there are, up to three: a topic that is
    made while the first of three brokers is alone would keep one copy for ever.
    """
    return min(3, desired_brokers) if replicas is None else replicas


def racks_of(brokers: Collection[LiveBroker]) -> dict[int, str | None]:
    """Return the rack of every broker that is known."""
    return {broker.id: broker.rack for broker in brokers}
