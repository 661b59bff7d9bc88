from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead_api.identifiers import BrokerId, PartitionIndex
from fairlead_broker.controller.round_robin import PlaceableBroker, alternate_racks, assign_replicas
from refusals import raises

RACKS = {0: "rack1", 1: "rack2", 2: "rack2", 3: "rack3", 4: "rack3", 5: "rack1"}


def brokers(count: int) -> list[PlaceableBroker]:
    """Return brokers 0 to count - 1 without racks."""
    return [PlaceableBroker(BrokerId(broker)) for broker in range(count)]


def racked(racks: dict[int, str]) -> list[PlaceableBroker]:
    """Return brokers with their racks."""
    return [PlaceableBroker(BrokerId(broker), rack) for broker, rack in racks.items()]


def place(
    where: list[PlaceableBroker],
    count: int,
    factor: int,
    *,
    first: int = 0,
    start_index: int = 0,
    shift: int = 0,
) -> dict[int, tuple[int, ...]]:
    """Place replicas, and return the brokers of each partition as plain numbers."""
    placed = assign_replicas(
        where,
        first_partition=PartitionIndex(first),
        partition_count=count,
        replication_factor=factor,
        start_index=start_index,
        shift=shift,
    )
    return {int(partition): tuple(map(int, replicas)) for partition, replicas in placed.items()}


def test_kafkas_example_without_racks() -> None:
    """Ten partitions of three replicas on five brokers are placed as in Kafka's own test."""
    assert place(brokers(5), 10, 3) == {
        0: (0, 1, 2),
        1: (1, 2, 3),
        2: (2, 3, 4),
        3: (3, 4, 0),
        4: (4, 0, 1),
        5: (0, 2, 3),
        6: (1, 3, 4),
        7: (2, 4, 0),
        8: (3, 0, 1),
        9: (4, 1, 2),
    }


@pytest.mark.parametrize(
    ("racks", "order"),
    [
        ({0: "rack1", 1: "rack3", 2: "rack3", 3: "rack2", 4: "rack2", 5: "rack1"}, [0, 3, 1, 5, 4, 2]),
        ({0: "rack1", 1: "rack3", 2: "rack3", 3: "rack2", 4: "rack2"}, [0, 3, 1, 4, 2]),
        ({}, []),
    ],
)
def test_brokers_are_taken_from_each_rack_in_turn(racks: dict[int, str], order: list[int]) -> None:
    """Brokers alternate between racks as in Kafka: racks by name, brokers by id, exhausted racks left out."""
    assert alternate_racks({BrokerId(broker): rack for broker, rack in racks.items()}) == order


def test_kafkas_example_with_racks() -> None:
    """The replicas of each of twelve partitions are in three racks.

    Each broker leads two of the twelve partitions and has six replicas.
    """
    placed = place(racked(RACKS), 12, 3)
    keeps = [broker for replicas in placed.values() for broker in replicas]
    leads = [replicas[0] for replicas in placed.values()]

    assert all(len({RACKS[broker] for broker in replicas}) == 3 for replicas in placed.values())
    assert sorted(leads) == sorted(list(range(6)) * 2)
    assert sorted(keeps) == sorted(list(range(6)) * 6)


def test_a_rack_gets_a_second_replica_when_every_rack_has_one() -> None:
    """With more replicas than racks, every rack has at least one replica."""
    placed = place(racked({0: "a", 1: "a", 2: "a", 3: "b"}), 8, 3)

    assert all(3 in replicas for replicas in placed.values())


def test_racks_count_only_if_every_broker_has_one() -> None:
    """Racks are ignored if any broker has no rack."""
    mixed = [*racked({0: "a", 1: "a"}), *[PlaceableBroker(BrokerId(2))]]

    assert place(mixed, 6, 2) == place(brokers(3), 6, 2)


def test_one_broker_keeps_everything() -> None:
    """A single broker gets every partition."""
    assert place(brokers(1), 3, 1, start_index=7, shift=7) == {0: (0,), 1: (0,), 2: (0,)}


@pytest.mark.parametrize(("count", "factor"), [(2, 3), (0, 1), (3, 0)])
def test_more_replicas_than_brokers_are_refused(count: int, factor: int) -> None:
    """More replicas than brokers are refused, and the error contains both numbers."""
    with raises(ValueError, factor, count):
        place(brokers(count), 1, factor)


@given(
    racks=st.lists(st.sampled_from(["a", "b", "c", None]), min_size=1, max_size=9),
    count=st.integers(1, 40),
    factor=st.integers(1, 9),
    start_index=st.integers(0, 100),
    shift=st.integers(0, 100),
)
def test_every_placement_is_valid_and_even(
    racks: list[str | None], count: int, factor: int, start_index: int, shift: int
) -> None:
    """Replicas are on distinct brokers and as many racks as possible, and leader counts differ by at most one."""
    factor = min(factor, len(racks))
    where = [PlaceableBroker(BrokerId(10 * broker), rack) for broker, rack in enumerate(racks)]
    placed = place(where, count, factor, start_index=start_index, shift=shift)
    leads = [sum(replicas[0] == each.broker for replicas in placed.values()) for each in where]

    assert list(placed) == list(range(count))
    assert all(len(set(replicas)) == len(replicas) == factor for replicas in placed.values())
    assert max(leads) - min(leads) <= 1
    if None not in racks:
        of = {each.broker: each.rack for each in where}
        widest = min(factor, len(set(racks)))
        assert all(len({of[BrokerId(b)] for b in replicas}) == widest for replicas in placed.values())


@given(
    count=st.integers(2, 40), cut=st.integers(1, 39), start_index=st.integers(0, 9), with_racks=st.booleans()
)
def test_growing_places_as_if_all_had_been_made_at_once(
    count: int, cut: int, start_index: int, with_racks: bool
) -> None:
    """Partitions that are added later are placed as if all had been placed at once."""
    where = racked(RACKS) if with_racks else brokers(6)
    cut = min(cut, count - 1)
    whole = place(where, count, 3, start_index=start_index, shift=start_index)
    rest = place(where, count - cut, 3, first=cut, start_index=start_index, shift=start_index)

    assert {n: whole[n] for n in range(cut, count)} == rest
