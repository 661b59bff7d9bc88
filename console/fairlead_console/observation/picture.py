"""The state of a cluster at one moment, as pages show it: pure, computed from the answers of the brokers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

from fairlead.health import Health, health_of
from fairlead_api.bodies.group_answers import LagAnswer
from fairlead_api.bodies.metadata import (
    BrokerDescription,
    Metadata,
    PartitionMetadata,
    TopicDescription,
    TopicMetadata,
    Versions,
)
from fairlead_api.bodies.operations import BrokerReport
from fairlead_api.bodies.security import WhoAmI

LOW_DISK_SHARE: Final = 0.15
"""Share of free space below which a disk is marked: that of the alert for Prometheus."""
FULL_DISK_BYTES: Final = 16 * 1024 * 1024
"""Free space below which a disk counts as full, because a broker may have no space for a batch."""
LISTED_SETTINGS: Final = ("cleanup.policy", "retention.bytes", "retention.ms")


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
    rates: Mapping[int, float] = field(default_factory=dict)
    """Records per second of each partition that grew between the last two rounds."""
    sizes: Mapping[int, Mapping[int, int]] = field(default_factory=dict)
    """Bytes of each log by partition and broker, for the brokers that have answered."""
    byte_rates: Mapping[int, float] = field(default_factory=dict)
    """Stored bytes per second of one copy of each partition that grew between the last two rounds."""

    @property
    def name(self) -> str:
        """Name of the topic."""
        return self.description.name

    @cached_property
    def rate(self) -> float:
        """Records per second of all partitions together."""
        return sum(self.rates.values())

    @cached_property
    def byte_rate(self) -> float:
        """Stored bytes per second of one copy of all partitions together."""
        return sum(self.byte_rates.values())

    @cached_property
    def records(self) -> int:
        """Number of offsets in all logs."""
        return sum(each.records for each in self.ends.values())

    @cached_property
    def size(self) -> int:
        """Bytes of all replicas together."""
        return sum(sum(each.values()) for each in self.sizes.values())

    @cached_property
    def log_sizes(self) -> Mapping[int, int]:
        """Bytes of one copy of each partition: that of the leader, else the largest."""
        return {
            each.partition: sizes.get(-1 if each.leader is None else each.leader, max(sizes.values()))
            for each in self.partitions
            if (sizes := self.sizes.get(each.partition))
        }

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
    reports: Mapping[int, BrokerReport] = field(default_factory=dict)
    """Disk and Kafka listener of each broker; empty if the caller may not see the brokers."""
    silent: frozenset[int] = frozenset()
    """Registered brokers that have not answered; sizes, lags and the offsets of partitions that silent brokers lead are
    those of the previous picture."""
    is_sketch: bool = False
    """Whether offsets, sizes, settings and groups are missing, because the first round has not ended."""

    @cached_property
    def health(self) -> Health:
        """Summary of the cluster's health."""
        return health_of(self.metadata, self.brokers)

    @cached_property
    def rate(self) -> float:
        """Records per second of all topics together."""
        return sum(each.rate for each in self.topics.values())

    @cached_property
    def byte_rate(self) -> float:
        """Stored bytes per second of all topics together, of one copy."""
        return sum(each.byte_rate for each in self.topics.values())

    @cached_property
    def stored(self) -> Mapping[int, int]:
        """Bytes of all replicas on each broker that has answered."""
        found: dict[int, int] = {}
        for topic in self.topics.values():
            for sizes in topic.sizes.values():
                for broker, size in sizes.items():
                    found[broker] = found.get(broker, 0) + size
        return found

    @cached_property
    def broker_rates(self) -> Mapping[int, float]:
        """Records per second of the partitions that each broker leads."""
        return self._led({name: each.rates for name, each in self.topics.items()})

    @cached_property
    def broker_byte_rates(self) -> Mapping[int, float]:
        """Stored bytes per second of one copy of the partitions that each broker leads."""
        return self._led({name: each.byte_rates for name, each in self.topics.items()})

    def unanswered(self, topic: str) -> frozenset[int]:
        """Return the partitions of a topic that silent brokers lead."""
        found = self.topics.get(topic)
        partitions = [] if found is None else found.partitions
        return frozenset(each.partition for each in partitions if each.leader in self.silent)

    @cached_property
    def full_disks(self) -> Sequence[int]:
        """Brokers whose disk has no space for further records."""
        return [
            each.broker
            for each in self.reports.values()
            if each.disk_free_bytes is not None and each.disk_free_bytes < FULL_DISK_BYTES
        ]

    @cached_property
    def low_disks(self) -> Sequence[int]:
        """Brokers whose disk has little free space, but is not full."""
        return [
            each.broker
            for each in self.reports.values()
            if each.disk_free_bytes is not None
            and FULL_DISK_BYTES <= each.disk_free_bytes < LOW_DISK_SHARE * (each.disk_total_bytes or 0)
        ]

    def _led(self, values: Mapping[str, Mapping[int, float]]) -> Mapping[int, float]:
        """Return the sum of the values by topic and partition for each leader."""
        found: dict[int, float] = {}
        for topic in self.metadata.topics:
            of_topic = values.get(topic.name)
            if of_topic:
                for partition in topic.partitions:
                    if partition.leader is not None and partition.partition in of_topic:
                        value = of_topic[partition.partition]
                        found[partition.leader] = found.get(partition.leader, 0.0) + value
        return found

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


def outlined(topic: TopicMetadata) -> TopicDescription:
    """Return the description of a topic whose settings are not known yet."""
    replicas = max((len(each.replicas) for each in topic.partitions), default=0)
    return TopicDescription(
        name=topic.name,
        topic_id=topic.topic_id,
        state="ready",
        partitions=len(topic.partitions),
        replication_factor=replicas,
        config={},
    )


def silent_brokers(reports: Iterable[BrokerReport]) -> frozenset[int]:
    """Return the brokers with an empty report, which stands for a broker that has not answered."""
    return frozenset(each.broker for each in reports if each == BrokerReport(broker=each.broker))


def ends_with_last_known(
    ends: Mapping[str, Mapping[int, LogEnds]], before: Mapping[str, Topic], metadata: Metadata
) -> dict[str, dict[int, LogEnds]]:
    """Return the offsets by topic and partition, completed with the offsets of an earlier picture."""
    found: dict[str, dict[int, LogEnds]] = {}
    for topic in metadata.topics:
        earlier = before.get(topic.name)
        is_known = earlier is not None and earlier.description.topic_id == topic.topic_id
        known = earlier.ends if earlier is not None and is_known else {}
        found[topic.name] = {**known, **ends.get(topic.name, {})}
    return found


def byte_rates(before: Topic, now: Topic, seconds: float) -> Mapping[int, float]:
    """Return the stored bytes per second of each partition that grew between two pictures.

    A log from which records were deleted is assumed to have grown by its new records, each of the average record size.
    """
    if seconds <= 0:
        return {}
    written: dict[int, float] = {}
    for partition, size in now.log_sizes.items():
        earlier, ends, earlier_ends = (
            before.log_sizes.get(partition), now.ends.get(partition), before.ends.get(partition)
        )  # fmt: skip
        if earlier is None or ends is None or earlier_ends is None:
            continue
        if size > earlier:
            written[partition] = (size - earlier) / seconds
        elif size < earlier and ends.end > earlier_ends.end and ends.records:
            written[partition] = (ends.end - earlier_ends.end) * size / ends.records / seconds
    return written
