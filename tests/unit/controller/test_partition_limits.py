"""Brokers that have reached their maximum number of replicas get no more."""

from __future__ import annotations

from collections import Counter

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from fairlead_api.identifiers import BrokerId, PartitionIndex
from fairlead_broker.controller.election import Brokers
from fairlead_broker.controller.partition_limits import as_assigned, has_room, placed
from fairlead_broker.controller.round_robin import PlaceableBroker, assign_replicas
from fairlead_broker.registry.metadata import Versioned
from fairlead_broker.registry.records import BrokerRegistration
from partition_kit import registered


def limited(limits: dict[int, int | None]) -> Brokers:
    """Return registered brokers with their maximum numbers of replicas."""
    brokers = dict[BrokerId, Versioned[BrokerRegistration]]()
    for n, limit in limits.items():
        found = registered(n, 10 + n)
        value = msgspec.structs.replace(found.value, partitions_max=limit)
        brokers[BrokerId(n)] = Versioned(value, found.create_revision, found.mod_revision)
    return brokers


def place(
    limits: dict[int, int | None], load: dict[int, int], partitions: int, factor: int = 1
) -> list[set[int]] | None:
    """Return the replicas of new partitions on the brokers, without their order."""
    brokers = limited(limits)
    result = placed(
        [PartitionIndex(n) for n in range(partitions)],
        factor,
        [PlaceableBroker(BrokerId(n)) for n in limits],
        brokers,
        {BrokerId(n): count for n, count in load.items()},
        0,
    )
    return None if result is None else [set(map(int, result[PartitionIndex(n)])) for n in range(partitions)]


def test_a_broker_without_a_limit_always_has_room() -> None:
    """Brokers of older releases, which register no limit, and brokers without a registration have no limit."""
    brokers = limited({1: None, 2: 3})
    load = {BrokerId(1): 10**6, BrokerId(2): 3}

    assert has_room(BrokerId(1), brokers, load)
    assert has_room(BrokerId(9), brokers, load)
    assert not has_room(BrokerId(2), brokers, load)


def test_chosen_brokers_are_used_or_nothing_is_placed() -> None:
    """Partitions get the brokers that a client chose, unless one of these is full or takes no new replicas."""
    brokers = limited({1: 2, 2: None})
    takers = [PlaceableBroker(BrokerId(1)), PlaceableBroker(BrokerId(2))]

    def place_on(*chosen: int, load: int = 0) -> object:
        assigned = {PartitionIndex(number): (BrokerId(broker),) for number, broker in enumerate(chosen)}
        return as_assigned(list(assigned), assigned, takers, brokers, {BrokerId(1): load})

    assert place_on(1, 1, 2) == {0: (1,), 1: (1,), 2: (2,)}
    assert place_on(1, 1, load=1) is None
    assert place_on(2, 3) is None


def test_full_brokers_are_replaced_while_others_have_room() -> None:
    """Partitions are placed on brokers with room, and are refused if too few brokers have room."""
    assert place({1: 2, 2: None, 3: 5}, {1: 1, 3: 5}, 3) == [{1}, {2}, {2}]
    assert place({1: 2, 2: 2, 3: 2}, {1: 2}, 2, factor=2) == [{2, 3}, {2, 3}]
    assert place({1: 2, 2: 2, 3: 2}, {1: 2}, 3, factor=2) is None
    assert place({1: 2}, {}, 1, factor=2) is None


@given(
    limits=st.lists(st.integers(1, 6), min_size=1, max_size=5),
    load=st.lists(st.integers(0, 6), min_size=5, max_size=5),
    partitions=st.integers(1, 12),
    factor=st.integers(1, 3),
)
def test_no_broker_exceeds_its_limit(
    limits: list[int], load: list[int], partitions: int, factor: int
) -> None:
    """No placement exceeds a limit; one replica for each partition is placed whenever the brokers have room."""
    result = place(dict(enumerate(limits)), dict(enumerate(load)), partitions, factor)
    room = [max(0, limit - load[n]) for n, limit in enumerate(limits)]

    if result is not None:
        counts = Counter(broker for replicas in result for broker in replicas)
        assert all(counts[n] <= free for n, free in enumerate(room))
        assert {len(replicas) for replicas in result} == {factor}
    if factor == 1:
        assert (result is not None) == (sum(room) >= partitions)


def test_without_limits_partitions_are_placed_in_turn() -> None:
    """Brokers with room get the partitions exactly as without limits."""
    brokers = limited({1: 100, 2: None, 3: 100})
    takers = [PlaceableBroker(broker) for broker in brokers]
    missing = [PartitionIndex(n) for n in (2, 3, 5)]
    in_turn = assign_replicas(
        takers, first_partition=missing[0], partition_count=4, replication_factor=2, start_index=7, shift=7
    )

    assert placed(missing, 2, takers, brokers, {}, 7) == {n: in_turn[n] for n in missing}
