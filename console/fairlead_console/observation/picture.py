"""The state of a cluster at one moment, as pages show it: pure, computed from the answers of the brokers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from fairlead.health import Health, health_of
from fairlead_api.bodies.group_answers import LagAnswer
from fairlead_api.bodies.metadata import (
    BrokerDescription,
    Metadata,
    PartitionMetadata,
    TopicDescription,
    Versions,
)
from fairlead_api.bodies.security import WhoAmI


@dataclass(frozen=True, slots=True)
class LogEnds:
    """Offsets of one partition: the start of its log, and the end of its committed records."""

    start: int
    end: int

    @property
    def records(self) -> int:
        """Number of offsets in the log."""
        return max(0, self.end - self.start)


@dataclass(frozen=True)
class Topic:
    """One topic with the state of its partitions."""

    description: TopicDescription
    partitions: list[PartitionMetadata]
    ends: Mapping[int, LogEnds]
    """Offsets of the partitions whose leader has answered."""
    rate: float
    """Records per second between the last two rounds."""

    @property
    def name(self) -> str:
        """Name of the topic."""
        return self.description.name

    @cached_property
    def records(self) -> int:
        """Number of offsets in all logs."""
        return sum(each.records for each in self.ends.values())

    @cached_property
    def without_leader(self) -> int:
        """Number of partitions without a leader."""
        return sum(each.leader is None for each in self.partitions)

    @cached_property
    def under_min_isr(self) -> int:
        """Number of partitions that refuse produce requests with acks=all."""
        return sum(len(each.isr) < each.min_isr for each in self.partitions)

    @cached_property
    def under_replicated(self) -> int:
        """Number of partitions with a replica that is not in sync."""
        return sum(bool(set(each.replicas) - set(each.isr) - set(each.adding)) for each in self.partitions)

    @property
    def state(self) -> str:
        """Health of the topic: `ok`, or the most severe trouble."""
        if self.without_leader:
            return "no leader"
        if self.under_min_isr:
            return "below min.insync"
        if self.under_replicated:
            return "catching up"
        return "ok" if self.description.state == "ready" else self.description.state


@dataclass(frozen=True)
class Picture:
    """The cluster at one moment."""

    at: float
    """Wall time in seconds since 1970."""
    versions: Versions
    caller: WhoAmI
    """Identity with which the console has queried the cluster."""
    metadata: Metadata
    brokers: list[BrokerDescription]
    """Brokers of the cluster; empty if the caller may not see them."""
    topics: Mapping[str, Topic]
    lags: Mapping[str, LagAnswer] = field(default_factory=dict)
    """Lag of each group whose coordinator has answered."""
    groups: int = 0

    @cached_property
    def health(self) -> Health:
        """Summary of the cluster's health."""
        return health_of(self.metadata, self.brokers)

    @cached_property
    def rate(self) -> float:
        """Records per second of all topics together."""
        return sum(each.rate for each in self.topics.values())

    @cached_property
    def leaders(self) -> Mapping[int, int]:
        """Number of partitions that each broker leads."""
        return self._count(leaders_only=True)

    @cached_property
    def replicas(self) -> Mapping[int, int]:
        """Number of replicas of each broker."""
        return self._count(leaders_only=False)

    def _count(self, *, leaders_only: bool) -> Mapping[int, int]:
        counts = {each.id: 0 for each in self.brokers}
        for topic in self.metadata.topics:
            for partition in topic.partitions:
                chosen = [partition.leader] if leaders_only else partition.replicas
                for broker in chosen:
                    if broker is not None:
                        counts[broker] = counts.get(broker, 0) + 1
        return counts
