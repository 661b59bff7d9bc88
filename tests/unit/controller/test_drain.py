"""Replicas of draining brokers move to other brokers."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from fairlead_api.identifiers import BrokerId, PartitionIndex, Revision
from fairlead_broker.controller.drain import (
    drained,
    draining_that_begin_again,
    has_nowhere_to_go,
    places_of,
    taken_back,
)
from fairlead_broker.controller.partition_changes import ClusterView
from fairlead_broker.controller.reassignment import Target, target
from fairlead_broker.registry.keys import PartitionKey
from fairlead_broker.registry.records import PartitionRecord
from partition_kit import KEY, R1, R2, R3, TOPIC_ID, brokers, record, registered

NO_LOAD: Mapping[BrokerId, int] = {}


def view_of(*draining: int, cordoned: tuple[int, ...] = (), there: str = "1234") -> ClusterView:
    """Return a view of running brokers, in which draining brokers are also cordoned."""
    going = frozenset(map(BrokerId, draining))
    running = {BrokerId(int(n)): registered(int(n), 10 + int(n)) for n in there}
    return ClusterView(running, cordoned=going.union(map(BrokerId, cordoned)), draining=going)


def asked(found: PartitionRecord, view: ClusterView, load: Mapping[BrokerId, int] = NO_LOAD) -> str | None:
    """Return the target replicas of the move as a string of broker ids, or None if no move begins."""
    begun = drained(KEY, found, Revision(90), view, load)
    return None if begun is None else "".join(map(str, target(begun)))


def test_the_draining_broker_is_replaced_in_its_place() -> None:
    """The target takes the position of the draining broker, so that the preferred leader stays the same."""
    begun = drained(KEY, record(1, "123"), Revision(90), view_of(2), NO_LOAD)

    assert begun is not None
    assert target(begun) == (1, 4, 3)
    assert (begun.adding, begun.removing) == ((4,), (2,))


@pytest.mark.parametrize(
    ("found", "view"),
    [
        pytest.param(record(1, "123"), view_of(4), id="it keeps nothing of this partition"),
        pytest.param(record(1, "123"), view_of(2, cordoned=(4,)), id="the only spare broker is cordoned"),
        pytest.param(record(1, "123"), view_of(2, there="123"), id="there is no spare broker"),
        pytest.param(record(None, "23"), view_of(2), id="nobody leads"),
        pytest.param(record(1, "123"), view_of(2, there="234"), id="the leader is gone"),
        pytest.param(
            record(1, "123", replicas="1234", adding=(BrokerId(4),)), view_of(2), id="a move is under way"
        ),
    ],
)
def test_nothing_begins(found: PartitionRecord, view: ClusterView) -> None:
    """No move begins if no replica must leave, or if no added replica could catch up."""
    assert asked(found, view) is None


@pytest.mark.parametrize(
    ("found", "view", "stuck"),
    [
        pytest.param(record(1, "123"), view_of(2), False, id="broker 4 can be given it"),
        pytest.param(record(1, "123"), view_of(2, there="123"), True, id="there is no spare broker"),
        pytest.param(record(1, "123"), view_of(2, cordoned=(4,)), True, id="the spare broker is cordoned"),
        pytest.param(record(1, "123"), view_of(2, 4), True, id="the spare broker is drained too"),
        pytest.param(
            record(1, "123", replicas="1234", adding=(BrokerId(4),), removing=(BrokerId(2),)),
            view_of(2),
            False,
            id="it is on its way",
        ),
    ],
)
def test_a_drain_that_cannot_end_is_known(found: PartitionRecord, view: ClusterView, stuck: bool) -> None:
    """A drain without a possible target is reported."""
    assert has_nowhere_to_go(BrokerId(2), found, view, NO_LOAD) is stuck


def test_a_broker_that_is_gone_can_be_drained() -> None:
    """A stopped broker can be drained, so that its replicas are copied elsewhere."""
    assert asked(record(1, "12"), view_of(3, there="124")) == "124"


MOVING = record(1, "123", replicas="1432", adding=(BrokerId(4),), removing=(BrokerId(2),))


def test_a_move_to_a_broker_that_is_gone_and_drained_is_taken_back() -> None:
    """A move to a stopped, draining broker is cancelled, and the drains of both brokers begin again."""
    back = taken_back(KEY, MOVING, view_of(2, 4, there="123"))

    assert back is not None
    assert target(back) == (1, 3, 2)
    assert (back.adding, back.removing, back.leader_epoch) == ((), (), MOVING.leader_epoch)


@pytest.mark.parametrize(
    ("found", "view"),
    [
        pytest.param(MOVING, view_of(2, 4), id="it lives, and catches up"),
        pytest.param(MOVING, view_of(2, there="123"), id="it may come back"),
        pytest.param(record(1, "123"), view_of(4, there="123"), id="nothing is moved"),
        pytest.param(
            record(None, "23", replicas="1432", adding=(BrokerId(4),), removing=(BrokerId(2),)),
            view_of(2, 4, there="23"),
            id="nobody leads",
        ),
        pytest.param(
            record(
                5,
                "125",
                replicas="4512",
                adding=(BrokerId(4), BrokerId(5)),
                removing=(BrokerId(1), BrokerId(2)),
            ),
            view_of(1, 2, 4, there="125"),
            id="the leader is one that was added",
        ),
    ],
)
def test_other_moves_go_on(found: PartitionRecord, view: ClusterView) -> None:
    """A drain does not change other moves."""
    assert taken_back(KEY, found, view) is None


@pytest.mark.parametrize(
    ("found", "view", "expected"),
    [
        pytest.param(MOVING, view_of(2), (2,), id="a drain wants it"),
        pytest.param(MOVING, view_of(), (), id="nobody drains"),
        pytest.param(MOVING, view_of(2, cordoned=(4,)), (), id="it would stay"),
        pytest.param(MOVING, view_of(2, cordoned=(4,), there="12345"), (), id="it would go elsewhere"),
        pytest.param(MOVING, view_of(3, there="12345"), (), id="a drain wants another move"),
        pytest.param(
            record(1, "123", replicas="1234", adding=(BrokerId(4),)),
            view_of(2),
            (),
            id="it grows, a drain does not",
        ),
        pytest.param(record(1, "123"), view_of(2), (), id="nothing is moved"),
    ],
)
def test_moves_that_drains_would_begin_again_are_known(
    found: PartitionRecord, view: ClusterView, expected: tuple[int, ...]
) -> None:
    """A move that a drain would begin again is recognised, because its cancellation would repeat the copy."""
    assert draining_that_begin_again(found, view, NO_LOAD) == expected


def test_the_replica_under_way_is_no_reason_to_go_elsewhere() -> None:
    """The replica being copied does not add to the load of its target, so a drain would choose that target again."""
    view = view_of(2, there="12345")

    assert draining_that_begin_again(MOVING, view, {BrokerId(4): 3, BrokerId(5): 2}) == (2,)
    assert draining_that_begin_again(MOVING, view, {BrokerId(4): 3, BrokerId(5): 1}) == ()


def test_the_broker_that_keeps_least_takes_over() -> None:
    """The broker with the fewest replicas becomes the target, as far as the racks allow."""
    view = view_of(2, there="12345")

    assert asked(record(1, "123"), view, {BrokerId(4): 7, BrokerId(5): 6}) == "153"
    assert asked(record(1, "123"), view, {BrokerId(4): 6, BrokerId(5): 6}) == "143"


def test_the_rack_of_the_leaving_broker_is_free_again() -> None:
    """The rack of the draining broker counts as free, even if another broker has fewer replicas."""
    there = {
        BrokerId(n): registered(n, 10 + n, rack=rack) for n, rack in ((1, "a"), (2, "b"), (4, "a"), (5, "b"))
    }
    view = ClusterView(there, cordoned=frozenset({BrokerId(2)}), draining=frozenset({BrokerId(2)}))

    assert asked(record(1, "12", replicas="12"), view, {BrokerId(4): 0, BrokerId(5): 9}) == "15"


def test_partitions_go_round_the_directories_of_a_broker() -> None:
    """Partitions are spread over the directories of a broker."""
    view = ClusterView({BrokerId(4): registered(4, 14, directories=("x", "y"))})
    taken = [places_of((BrokerId(4),), PartitionIndex(n), view)[0].directory for n in range(4)]

    assert taken == ["x", "y", "x", "y"]


def test_of_a_broker_that_is_gone_or_without_a_disk_no_directory_is_named() -> None:
    """A broker that has stopped or has no directory gets no directory in the plan."""
    view = ClusterView({BrokerId(4): registered(4, 14, directories=())})
    wanted = places_of((BrokerId(4), BrokerId(9)), PartitionIndex(0), view)

    assert wanted == (Target(BrokerId(4), ""), Target(BrokerId(9), ""))


def test_the_directory_follows_from_the_partition() -> None:
    """The directory of a partition depends on its index."""
    there = brokers(R1, R2, R3) | {BrokerId(4): registered(4, 14, directories=("x", "y"))}
    view = ClusterView(there, cordoned=frozenset({BrokerId(2)}), draining=frozenset({BrokerId(2)}))
    key = PartitionKey(TOPIC_ID, PartitionIndex(1))
    begun = drained(key, record(1, "123"), Revision(90), view, NO_LOAD)

    assert begun is not None
    assert [replica.directory for replica in begun.replicas] == ["d1", "y", "d3", "d2"]
