"""Placement of new partitions on brokers that have not reached their maximum numbers of replicas.

Plans for topics call `placed`, and drains and reassignments call `has_room`. All functions are pure: the number of
replicas on each broker is an argument. A broker whose registration names no maximum has no limit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fairlead_api.identifiers import BrokerId, PartitionIndex
from fairlead_broker.controller.election import Brokers
from fairlead_broker.controller.replacement import replace_replicas
from fairlead_broker.controller.round_robin import PlaceableBroker, assign_replicas


def has_room(broker: BrokerId, brokers: Brokers, load: Mapping[BrokerId, int]) -> bool:
    """Return whether the broker has fewer replicas than its maximum. `load`: number of replicas on each broker."""
    registered = brokers.get(broker)
    limit = registered.value.partitions_max if registered else None
    return limit is None or load.get(broker, 0) < limit


def as_assigned(
    missing: Sequence[PartitionIndex],
    assigned: Mapping[PartitionIndex, tuple[BrokerId, ...]],
    placeable: Sequence[PlaceableBroker],
    brokers: Brokers,
    load: Mapping[BrokerId, int],
) -> dict[PartitionIndex, tuple[BrokerId, ...]] | None:
    """Return the replicas that a client chose for new partitions, or None if one of the brokers cannot get them."""
    takers, counts = {each.broker for each in placeable}, dict(load)
    for partition in missing:
        for broker in assigned[partition]:
            if broker not in takers or not has_room(broker, brokers, counts):
                return None
            counts[broker] = counts.get(broker, 0) + 1
    return {partition: assigned[partition] for partition in missing}


def placed(
    missing: Sequence[PartitionIndex],
    replication_factor: int,
    placeable: Sequence[PlaceableBroker],
    brokers: Brokers,
    load: Mapping[BrokerId, int],
    start_index: int,
) -> dict[PartitionIndex, tuple[BrokerId, ...]] | None:
    """Return the replicas of new partitions, or None if too few brokers can get them.

    The partitions are placed one after another. A broker that has reached its maximum is replaced by the broker with
    the fewest replicas.
    """
    if replication_factor > len(placeable):
        return None
    in_turn = assign_replicas(
        placeable,
        first_partition=missing[0],
        partition_count=missing[-1] - missing[0] + 1,
        replication_factor=replication_factor,
        start_index=start_index,
        shift=start_index,
    )
    racks = {each.broker: each.rack for each in placeable}
    counts, result = dict(load), dict[PartitionIndex, tuple[BrokerId, ...]]()
    full = {each.broker for each in placeable if not has_room(each.broker, brokers, counts)}
    for partition in missing:
        replicas = in_turn[partition]
        if not full.isdisjoint(replicas):
            takers = [each for each in placeable if each.broker not in full]
            replicas = replace_replicas(replicas, full, takers, racks, counts)
            if not full.isdisjoint(replicas):
                return None
        for broker in replicas:
            counts[broker] = counts.get(broker, 0) + 1
            if not has_room(broker, brokers, counts):
                full.add(broker)
        result[partition] = replicas
    return result
