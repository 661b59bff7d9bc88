"""Placement of partitions, evenly distributed across brokers and racks.

The controller calls `assign_replicas` when it creates partitions. The function is pure: the start of the round is
an argument, so equal arguments give equal placements. The placement rule is Kafka's
(`AdminUtils.assignReplicasToBrokers`). The first replica of each partition is placed on the brokers round-robin. The
other replicas are placed on the following brokers at a distance that grows with each round. With racks, brokers are
taken from each rack in turn, and a rack gets a second replica only when every rack has one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, count, zip_longest

from fairlead_api.identifiers import BrokerId, PartitionIndex


@dataclass(frozen=True, slots=True)
class PlaceableBroker:
    """A broker that can get new replicas."""

    broker: BrokerId
    rack: str | None = None


def assign_replicas(
    brokers: Collection[PlaceableBroker],
    *,
    first_partition: PartitionIndex,
    partition_count: int,
    replication_factor: int,
    start_index: int,
    shift: int,
) -> dict[PartitionIndex, tuple[BrokerId, ...]]:
    """Return the replicas of the partitions starting at `first_partition`, each with its preferred leader first.

    `start_index` is the index of the broker at which the round-robin starts. `shift` is the distance of the second
    replica from the broker after the leader. `start_index` and `shift` may exceed the number of brokers, because they
    wrap around. Racks are used only if every broker has a rack. Raises `ValueError` if there are fewer brokers than
    replicas.
    """
    if not 1 <= replication_factor <= len(brokers):
        message = f"{replication_factor} replicas cannot be placed on {len(brokers)} brokers"
        raise ValueError(message)
    racks = {each.broker: each.rack for each in brokers if each.rack is not None}
    if len(racks) == len(brokers):
        order, rack_count = alternate_racks(racks), len(set(racks.values()))
    else:
        order, rack_count = sorted(each.broker for each in brokers), 1
        racks = dict.fromkeys(order, "")
    placed = {}
    for partition in range(first_partition, first_partition + partition_count):
        rounds, leader_index = partition // len(order), (partition + start_index) % len(order)
        followers = _followers(order, leader_index, (shift + rounds) * rack_count)
        placed[PartitionIndex(partition)] = _spread(order[leader_index], followers, racks, replication_factor)
    return placed


def alternate_racks(racks: Mapping[BrokerId, str]) -> list[BrokerId]:
    """Order brokers so that adjacent brokers are in different racks: one of each rack in turn, by rack and id."""
    by_rack: dict[str, list[BrokerId]] = {}
    for broker in sorted(racks):
        by_rack.setdefault(racks[broker], []).append(broker)
    turns = zip_longest(*(by_rack[rack] for rack in sorted(by_rack)))
    return [broker for broker in chain.from_iterable(turns) if broker is not None]


def _followers(order: Sequence[BrokerId], leader_index: int, shift: int) -> Iterator[BrokerId]:
    """Yield the brokers other than the leader in an endless cycle, beginning at a distance from the leader."""
    others = len(order) - 1
    return (order[(leader_index + 1 + (shift + step) % others) % len(order)] for step in count())


def _spread(
    leader: BrokerId, followers: Iterator[BrokerId], racks: Mapping[BrokerId, str], replication_factor: int
) -> tuple[BrokerId, ...]:
    """Choose followers in order, skipping used racks as long as a rack is unused."""
    replicas, used_racks, rack_count = [leader], {racks[leader]}, len(set(racks.values()))
    while len(replicas) < replication_factor:
        broker = next(followers)
        rack_is_free = racks[broker] not in used_racks or len(used_racks) == rack_count
        if rack_is_free and broker not in replicas:
            replicas.append(broker)
            used_racks.add(racks[broker])
    return tuple(replicas)
