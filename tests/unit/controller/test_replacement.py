"""Replicas on leaving brokers are moved to other brokers."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fairlead_api.identifiers import BrokerId
from fairlead_broker.controller.replacement import replace_replicas
from fairlead_broker.controller.round_robin import PlaceableBroker


def replaced(
    replicas: list[int],
    leaving: set[int],
    racks: dict[int, str | None],
    load: dict[int, int] | None = None,
) -> tuple[int, ...]:
    """Return the replicas after a replacement as plain numbers. Brokers with a rack entry can get replicas."""
    placed = replace_replicas(
        [BrokerId(n) for n in replicas],
        {BrokerId(n) for n in leaving},
        [PlaceableBroker(BrokerId(n), rack) for n, rack in racks.items()],
        {BrokerId(n): rack for n, rack in racks.items()},
        {BrokerId(n): count for n, count in (load or {}).items()},
    )
    return tuple(map(int, placed))


def test_without_leaving_brokers_nothing_changes() -> None:
    """If no broker leaves, the replicas stay where they are."""
    assert replaced([1, 2], set(), {1: None, 2: None, 3: None}) == (1, 2)


def test_the_one_with_least_to_keep_comes_in_the_place_of_the_leaving_one() -> None:
    """A leaving broker is replaced by the broker with the fewest replicas, or on a tie by the lowest broker id."""
    nowhere = dict.fromkeys((1, 2, 3, 4, 5))

    assert replaced([1, 2], {1}, nowhere, {3: 5, 4: 2, 5: 2}) == (4, 2)


def test_a_rack_without_a_replica_comes_first() -> None:
    """A broker in a rack without a replica comes first, regardless of its number of replicas."""
    racks: dict[int, str | None] = {1: "a", 2: "b", 3: "a", 4: "c"}

    assert replaced([1, 2], {2}, racks, {3: 0, 4: 100}) == (1, 4)


def test_the_leaving_ones_own_rack_counts_as_free() -> None:
    """The rack of the leaving broker counts as free."""
    racks: dict[int, str | None] = {1: "a", 2: "b", 3: "a", 4: "b"}

    assert replaced([1, 2], {2}, racks, {3: 0, 4: 100}) == (1, 4)


def test_two_that_leave_get_two_different_ones_of_different_racks() -> None:
    """Two leaving brokers are replaced by two brokers in different racks."""
    racks: dict[int, str | None] = {1: "a", 2: "b", 3: "c", 4: "c", 5: "d"}

    assert replaced([1, 2], {1, 2}, racks) == (3, 5)


def test_without_another_broker_the_replica_stays() -> None:
    """If no broker can take a replica, the replica stays on the leaving broker."""
    assert replaced([1, 2], {1, 2}, {1: None, 2: None, 3: None}) == (3, 2)


@given(
    st.lists(st.integers(0, 7), min_size=1, max_size=5, unique=True),
    st.sets(st.integers(0, 7)),
    st.dictionaries(st.integers(0, 7), st.sampled_from(["a", "b", None])),
    st.dictionaries(st.integers(0, 7), st.integers(0, 5)),
)
def test_as_many_distinct_brokers_and_staying_ones_keep_their_position(
    replicas: list[int], leaving: set[int], racks: dict[int, str | None], load: dict[int, int]
) -> None:
    """A replacement has as many distinct brokers as the replicas that it replaces.

    The replicas after a replacement are on as many distinct brokers as before.
    """
    placed = replaced(replicas, leaving, racks, load)

    assert len(placed) == len(set(placed)) == len(replicas)
    for before, after in zip(replicas, placed, strict=True):
        if before not in leaving:
            assert after == before
        elif after == before:
            assert set(racks) <= set(placed) | leaving
        else:
            assert after in racks
            assert after not in leaving
