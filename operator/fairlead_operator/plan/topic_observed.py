"""Topics as reported by the brokers and as defined by Topic resources; `topic` compares the two.

`brokers` creates the live values from one listing of a whole cluster, and `reconcile` creates the desired values from
the resource. The module must not depend on how the topics were read.
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
    """The desired topic of a Topic resource, with defaults filled in."""

    name: str
    partitions: int | None
    """Desired number of partitions; None leaves the choice to the cluster."""
    replicas: int | None
    """Desired number of replicas; None means that the operator does not manage the replication factor."""
    config: Mapping[str, str] = field(default_factory=dict)
    unmanaged: frozenset[str] = frozenset()
    """Configuration keys that the operator never reads or writes, even when it creates the topic."""

    @property
    def managed_config(self) -> dict[str, str]:
        """The configuration values to set on the topic."""
        return {key: value for key, value in self.config.items() if key not in self.unmanaged}


@dataclass(frozen=True, slots=True)
class LiveBroker:
    """A broker as described by the metadata of its cluster."""

    id: int
    rack: str | None = None
    state: BrokerState = "running"
    cordoned: bool = False

    @property
    def placeable(self) -> bool:
        """Whether the broker accepts new replicas."""
        return self.state == "running" and not self.cordoned


@dataclass(frozen=True, slots=True)
class LivePartition:
    """Replicas of a partition, the preferred leader first and the leaving replicas last."""

    index: int
    replicas: tuple[int, ...]
    adding: tuple[int, ...] = ()
    removing: tuple[int, ...] = ()
    isr: tuple[int, ...] = ()

    @property
    def moving(self) -> bool:
        """Whether the partition is being moved."""
        return bool(self.adding or self.removing)

    @property
    def target(self) -> tuple[int, ...]:
        """The brokers that have a replica after the move completes."""
        return tuple(broker for broker in self.replicas if broker not in self.removing)

    @property
    def origin(self) -> tuple[int, ...]:
        """The brokers that have a replica if the move is cancelled."""
        return tuple(broker for broker in self.replicas if broker not in self.adding)


def placed(partitions: Iterable[LivePartition]) -> tuple[LivePartition, ...]:
    """Return the partitions that have replicas; a partition that is being created has no replicas."""
    return tuple(each for each in partitions if each.replicas)


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveTopic:
    """A topic as the brokers report it."""

    name: str
    topic_id: str
    state: TopicState = "ready"
    partitions: int
    replication_factor: int
    """Number of replicas for new partitions; `placement` contains the replicas of each existing partition."""
    config: Mapping[str, ConfigEntry] = field(default_factory=dict)
    placement: tuple[LivePartition, ...] = ()
    """Partitions with their replicas, except partitions that are being created; empty for a new topic."""
    link: str | None = None
    """Link that alone writes the topic; None for a topic that is not a mirror."""

    @property
    def replicas(self) -> int:
        """The smallest number of replicas of any partition; a moving partition counts with its smaller replica set."""
        present = [min(len(each.origin), len(each.target)) for each in self.placement]
        return min(present, default=self.replication_factor)

    def placed_as(self, before: LiveTopic | None) -> LiveTopic:
        """Return this topic with the placement from an earlier answer about the same topic."""
        if before is None or before.topic_id != self.topic_id:
            return self
        return replace(self, placement=before.placement)


@dataclass(frozen=True)
class LiveTopics:
    """All topics and brokers of one cluster, as reported by one broker."""

    brokers: tuple[LiveBroker, ...]
    topics: Mapping[str, LiveTopic]

    @property
    def placeable(self) -> list[LiveBroker]:
        """The brokers that accept new replicas."""
        return [broker for broker in self.brokers if broker.placeable]

    @cached_property
    def load(self) -> Mapping[int, int]:
        """The number of replicas, across all topics, that each broker has or will have."""
        return Counter(
            broker
            for topic in self.topics.values()
            for partition in topic.placement
            for broker in partition.target
        )


def fewest_brokers(replicas: int | None, desired_brokers: int) -> int:
    """Return the number of brokers that must accept replicas before a topic is created.

    If no replication factor is given, the cluster uses the number of brokers, up to three. A topic that is created
    while only the first of three brokers runs would permanently have one replica.
    """
    return min(3, desired_brokers) if replicas is None else replicas


def racks_of(brokers: Collection[LiveBroker]) -> dict[int, str | None]:
    """Return the rack of every known broker."""
    return {broker.id: broker.rack for broker in brokers}
