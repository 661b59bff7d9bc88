"""Proposal of a Rebalance: the moves that reach its goal with as few copied replicas as possible.

Replicas are counted, not bytes, since the brokers report the size of a log only while it moves. Each replica of a
removed broker moves to the broker with the least load. Replicas move from the broker with the most load to the added
brokers, or with mode `Full` to any broker, until no two loads differ by more than one. After these moves, preferred
leaders are balanced without copying a replica. Except for the replicas of removed brokers, no move puts two replicas of
a partition that were in different racks into the same rack.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from fairlead_api.resources.rebalance import MOVES_MAX, RebalanceMode
from fairlead_operator.plan.findings import Finding
from fairlead_operator.plan.rebalancing.layout import Layout, Place, load_after
from fairlead_operator.plan.topic_observed import LiveTopics

NAMED_MAX: Final = 10
"""Maximum number of partitions that a message names."""


@dataclass(frozen=True, slots=True)
class Move:
    """Move of one partition, with its replicas before and after, the preferred leader first."""

    place: Place
    previous: tuple[int, ...]
    replicas: tuple[int, ...]

    @property
    def added(self) -> frozenset[int]:
        """The brokers that copy the partition."""
        return frozenset(self.replicas) - frozenset(self.previous)


@dataclass(frozen=True, slots=True)
class Load:
    """Load of a broker before and after the moves of a proposal."""

    broker: int
    replicas: int
    replicas_after: int
    leaders: int
    leaders_after: int


@dataclass(frozen=True, slots=True)
class Proposal:
    """Moves in order, and the load of each broker."""

    moves: tuple[Move, ...]
    loads: tuple[Load, ...]
    complete: bool
    """Whether the goal is reached after the moves; False if the number of moves reached its maximum."""


@dataclass(frozen=True, slots=True)
class Goal:
    """Mode of the Rebalance, and the added or removed brokers."""

    mode: RebalanceMode
    brokers: tuple[int, ...] = ()


def propose(goal: Goal, live: LiveTopics, moves_max: int = MOVES_MAX) -> Proposal | Finding:
    """Return the proposal, which has no moves if the goal is reached, or the reason why no proposal is possible."""
    placeable = [each.id for each in live.placeable]
    layout = Layout(live)
    if goal.mode == "RemoveBrokers":
        takers = [broker for broker in placeable if broker not in goal.brokers]
        stuck = _evacuate(layout, goal.brokers, takers, moves_max)
        if stuck:
            return _no_broker_left(stuck)
    else:
        closed = sorted(set(goal.brokers).difference(placeable))
        if closed:
            return Finding(
                "BrokersNotFound",
                f"broker {closed[0]} does not exist, does not run, or is cordoned or draining",
            )
        takers = [broker for broker in placeable if goal.mode == "Full" or broker in goal.brokers]
        _even_replicas(layout, takers, moves_max)
        _even_leaders(layout, takers, moves_max)
    moves = tuple(
        Move(place, layout.before(place), layout.of(place)) for place in sorted(layout.changed)[:moves_max]
    )
    return Proposal(moves, _loads(live, moves), complete=len(layout.changed) <= moves_max)


def _evacuate(
    layout: Layout, leaving: Collection[int], takers: Collection[int], moves_max: int
) -> list[Place]:
    """Move replicas off the leaving brokers; return the partitions that no other broker can take."""
    stuck = list[Place]()
    for giver in sorted(leaving):
        for place in sorted(layout.movable(giver)):
            free = [each for each in takers if each not in layout.of(place)]
            if not free:
                stuck.append(place)
            elif len(layout.changed) <= moves_max:
                # A broker in an unused rack comes first, then the broker with the least load.
                cost = {
                    each: (layout.shares_rack(place, giver, each), layout.load[each], each) for each in free
                }
                layout.replace(place, giver, min(free, key=cost.__getitem__))
    return stuck


def _even_replicas(layout: Layout, takers: Collection[int], moves_max: int) -> None:
    while len(layout.changed) <= moves_max:
        step = _next_replica(layout, takers)
        if step is None:
            return
        layout.replace(*step)


def _next_replica(layout: Layout, takers: Collection[int]) -> tuple[Place, int, int] | None:
    """Return a partition, and the source and target broker of its replica; None if no move makes loads more even."""
    for giver, taker in _uneven(layout.load, takers):
        place = _given(layout, giver, taker)
        if place is not None:
            return place, giver, taker
    return None


def _uneven(counts: Mapping[int, int], takers: Collection[int]) -> Iterator[tuple[int, int]]:
    """Yield pairs of brokers whose counts differ by more than one, the broker with the higher count first.

    Pairs are ordered by ascending count of the target, then by descending count of the source.
    """
    givers = sorted(counts, key=lambda each: (-counts[each], each))
    for taker in sorted(takers, key=lambda each: (counts[each], each)):
        yield from ((giver, taker) for giver in givers if counts[giver] - counts[taker] > 1)


def _given(layout: Layout, giver: int, taker: int) -> Place | None:
    """Return the partition whose replica is best moved from one broker to another; None if no replica may move.

    The best partition belongs to the most unevenly spread topic; its preferred leader moves if that balances leaders.
    """
    leads_more = layout.leaders[giver] > layout.leaders[taker]

    def rank(place: Place) -> tuple[int, bool, Place]:
        is_leader = layout.of(place)[0] == giver
        return -layout.unevenness(place.topic, giver, taker), is_leader != leads_more, place

    fitting = (
        place
        for place in layout.movable(giver)
        if taker not in layout.of(place) and layout.keeps_racks(place, giver, taker)
    )
    return min(fitting, key=rank, default=None)


def _even_leaders(layout: Layout, takers: Collection[int], moves_max: int) -> None:
    while len(layout.changed) <= moves_max:
        step = _next_leader(layout, takers)
        if step is None:
            return
        place, leader = step
        followers = (broker for broker in layout.of(place) if broker != leader)
        layout.put(place, (leader, *followers))


def _next_leader(layout: Layout, takers: Collection[int]) -> tuple[Place, int] | None:
    """Return a partition and its next preferred leader; None if no change makes the leaders more evenly spread."""
    for giver, taker in _uneven(layout.leaders, takers):
        shared = (
            place
            for place in layout.movable(giver)
            if layout.of(place)[0] == giver and taker in layout.of(place)
        )
        place = min(shared, default=None)
        if place is not None:
            return place, taker
    return None


def _loads(live: LiveTopics, moves: tuple[Move, ...]) -> tuple[Load, ...]:
    before, after = Layout(live), load_after(live, {move.place: move.replicas for move in moves})
    return tuple(
        Load(
            broker,
            before.load[broker],
            after.load[broker],
            before.leaders[broker],
            after.leaders[broker],
        )
        for broker in sorted(each.id for each in live.brokers)
    )


def _no_broker_left(stuck: list[Place]) -> Finding:
    names = ", ".join(map(str, sorted(stuck)[:NAMED_MAX]))
    more = f" and {len(stuck) - NAMED_MAX} more" if len(stuck) > NAMED_MAX else ""
    return Finding("NoBrokerLeft", f"no other broker can take a replica of {names}{more}")
