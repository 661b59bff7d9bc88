"""Choice of the partition for records without a key."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fairlead.producer import TopicRoute

if TYPE_CHECKING:
    from collections.abc import Callable

    from fairlead.connection.metadata import Picture


def test_the_turn_goes_around_all_partitions(picture: Callable[[list[int | None]], Picture]) -> None:
    """Records without a key are sent to all partitions in turn, batch by batch."""
    route = TopicRoute("flights", 3, chance=0.0)

    assert [route.advance(picture([1, 1, 2])).partition for _ in range(4)] == [1, 2, 0, 1]


def test_the_first_turn_is_by_chance() -> None:
    """The first partition is random, so that producers that start together do not all use partition 0."""
    assert [TopicRoute("t", 4, chance).sticky.partition for chance in (0.0, 0.3, 0.999)] == [0, 1, 3]


def test_the_turn_leaves_out_partitions_without_a_leader(
    picture: Callable[[list[int | None]], Picture],
) -> None:
    """Records without a key skip partitions without a leader."""
    route = TopicRoute("flights", 3, chance=0.0)

    assert [route.advance(picture([1, None, 2])).partition for _ in range(3)] == [2, 0, 2]


def test_batches_over_the_partitions_with_a_leader_differ_by_one_at_most(
    picture: Callable[[list[int | None]], Picture],
) -> None:
    """Partitions with a leader differ by at most one batch, whichever partition is first."""
    for chance in (0.0, 0.5, 0.99):
        route = TopicRoute("flights", 5, chance)
        batches = dict.fromkeys((0, 2, 3), 0)
        for _ in range(100):
            batches[route.advance(picture([1, None, 2, 1, None])).partition] += 1
            assert max(batches.values()) - min(batches.values()) <= 1


def test_without_any_leader_the_turn_still_moves(picture: Callable[[list[int | None]], Picture]) -> None:
    """The next partition is chosen in turn, even if no partition has a leader."""
    route = TopicRoute("flights", 2, chance=0.0)

    assert [route.advance(picture([None, None])).partition for _ in range(2)] == [1, 0]


def test_grown_partitions_are_taken_in_and_none_goes_away() -> None:
    """A topic with added partitions keeps its queues and gets queues for the new partitions."""
    route = TopicRoute("flights", 2, chance=0.0)
    before = list(route.queues)
    route.grow(4)
    route.grow(3)

    assert route.queues[:2] == before
    assert [queue.partition for queue in route.queues] == [0, 1, 2, 3]
    assert route.holds(3)
    assert not route.holds(4)
    assert not route.holds(-1)
