"""Health of a cluster, computed from its metadata and its brokers.

`fairlead cluster health`, `fairlead broker` and the console use this module. The module performs no I/O.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from fairlead_api.bodies.metadata import BrokerDescription, Metadata, PartitionMetadata

NAMED_MAX = 5


class Ailing(msgspec.Struct, frozen=True):
    """A partition that lacks a leader or replicas."""

    topic: str
    partition: int
    leader: int | None
    in_sync: int
    min_isr: int
    missing: list[int]
    """Replicas that are not in sync."""
    offline: list[int]


class Drain(msgspec.Struct, frozen=True):
    """A broker that is being drained."""

    broker: int
    replicas: int
    """Number of replicas that the broker still has."""
    immovable: list[str]


class Health(msgspec.Struct, frozen=True):
    """Summary of the cluster's health."""

    healthy: bool
    """Whether there is a controller, and every partition has a leader and all its replicas."""
    controller: int | None
    brokers: int
    """Number of registered brokers that are running."""
    gone: list[int]
    draining: list[int]
    cordoned: list[int]
    partitions: int
    without_leader: int
    under_min_isr: int
    """Number of partitions that refuse produce requests with acks=all."""
    under_replicated: int
    moving: int
    ailing: list[Ailing]
    drains: list[Drain]


def health_of(metadata: Metadata, brokers: Sequence[BrokerDescription]) -> Health:
    """Return the health of the cluster."""
    partitions = [(topic.name, each) for topic in metadata.topics for each in topic.partitions]
    ailing = [_ailing(topic, each) for topic, each in partitions if _lacks_something(each)]
    gone = [each.id for each in brokers if each.state == "gone"]
    draining = [each.id for each in brokers if each.state == "draining" or each.immovable]
    return Health(
        healthy=metadata.controller is not None and not ailing,
        controller=metadata.controller,
        brokers=len(brokers) - len(gone),
        gone=gone,
        draining=draining,
        cordoned=[each.id for each in brokers if each.cordoned and each.id not in draining],
        partitions=len(partitions),
        without_leader=sum(each.leader is None for each in ailing),
        under_min_isr=sum(each.in_sync < each.min_isr for each in ailing),
        under_replicated=sum(bool(each.missing) for each in ailing),
        moving=sum(bool(each.adding or each.removing) for _, each in partitions),
        ailing=ailing,
        drains=[
            Drain(each.id, sum(each.id in one.replicas for _, one in partitions), each.immovable)
            for each in brokers
            if each.id in draining
        ],
    )


def stuck(broker: int, immovable: Sequence[str]) -> str:
    """Return the reason why a drain cannot finish, and the remedies."""
    named = ", ".join(immovable[:NAMED_MAX]) + (", ..." if len(immovable) > NAMED_MAX else "")
    return (
        f"the drain of broker {broker} cannot finish: no other broker can receive {named}; start another broker, "
        f"uncordon one, or reassign the partitions to fewer brokers"
    )


def _lacks_something(partition: PartitionMetadata) -> bool:
    return (
        partition.leader is None
        or len(partition.isr) < max(len(partition.replicas) - len(partition.adding), partition.min_isr)
        or bool(partition.offline)
    )


def _ailing(topic: str, partition: PartitionMetadata) -> Ailing:
    return Ailing(
        topic=topic,
        partition=partition.partition,
        leader=partition.leader,
        in_sync=len(partition.isr),
        min_isr=partition.min_isr,
        missing=sorted(set(partition.replicas) - set(partition.isr) - set(partition.adding)),
        offline=partition.offline,
    )
