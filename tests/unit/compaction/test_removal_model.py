"""A model of replicas that clean independently, die, return and are replaced: a deleted key never reappears.

The model has one key: its value at offset 0, its tombstone at offset 1, and other records after them. It searches all
states, breadth first, and decides with the shipped rule how a follower continues. Replicas die any number of times. If
a part of the rule is switched off, the search must find a leader that shows the deleted value, or a follower that
copies its leader's log for ever.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import NamedTuple

import pytest

from fairlead_broker.compaction.removal import Copying, copying
from figures import record

VALUE, TOMBSTONE = 0, 1
BACK = "a deleted key is back"
FOR_EVER = "a follower copies for ever"


class Copy(NamedTuple):
    """One replica."""

    end: int = 0
    has_value: bool = False
    has_tombstone: bool = False
    removed: int = 0
    is_alive: bool = True

    def with_next(self, source: Copy) -> Copy:
        """Return the replica with the next offset of its source, which may lack the record."""
        return self._replace(
            end=self.end + 1,
            has_value=source.has_value if self.end == VALUE else self.has_value,
            has_tombstone=source.has_tombstone if self.end == TOMBSTONE else self.has_tombstone,
        )

    def cut(self, end: int) -> Copy:
        """Return the replica without its last offset."""
        return self._replace(
            end=end,
            has_value=self.has_value and end > VALUE,
            has_tombstone=self.has_tombstone and end > TOMBSTONE,
        )


class Rules(NamedTuple):
    """Rules of cleaning and copying, each of which a test can switch off."""

    copying: Callable[[int, int, int], Copying] = copying
    """How a follower continues."""
    notes_removed: bool = True
    """Whether a replica raises `removed` before it removes a tombstone."""
    takes_removed: bool = True
    """Whether a follower that copies again takes its leader's `removed`."""


class World(NamedTuple):
    """Size of the model."""

    replicas: int
    end: int
    """Largest end offset of a log."""
    replacements: int
    """Number of times that a dead replica is replaced by an empty one."""


class State(NamedTuple):
    """All replicas, the leader, the high watermark, and the remaining number of replacements."""

    copies: tuple[Copy, ...]
    leader: int
    high_watermark: int
    replacements: int


def with_copy(state: State, number: int, copy: Copy) -> State:
    """Return the state with one replica changed."""
    return state._replace(copies=(*state.copies[:number], copy, *state.copies[number + 1 :]))


def fetched(follower: Copy, leader: Copy, rules: Rules) -> Copy:
    """Return a follower after one answer from its leader."""
    if follower.end > leader.end:
        return follower.cut(leader.end)
    match rules.copying(follower.end, follower.removed, leader.removed):
        case Copying.COPY_AGAIN:
            return Copy(removed=leader.removed if rules.takes_removed else 0)
        case Copying.LOWER:
            follower = follower._replace(removed=leader.removed)
    return follower.with_next(leader) if follower.end < leader.end else follower


def cleaned(state: State, number: int, rules: Rules) -> Copy | None:
    """Return a replica after its next cleaning step, or None if no record may be removed."""
    copy, leader = state.copies[number], state.copies[state.leader]
    if not copy.has_tombstone or min(copy.end, state.high_watermark) <= TOMBSTONE:
        return None
    if copy.has_value:
        return copy._replace(has_value=False)
    present = [each.end for each in state.copies if each.is_alive]
    limit = min(state.high_watermark, *present) if number == state.leader else leader.removed
    if limit <= TOMBSTONE:
        return None
    removed = max(copy.removed, TOMBSTONE + 1) if rules.notes_removed else copy.removed
    return copy._replace(has_tombstone=False, removed=removed)


def following(state: State, rules: Rules, end: int) -> Iterator[State]:
    """Yield every state that can follow."""
    leader = state.copies[state.leader]
    if leader.is_alive:
        if leader.end < end:
            yield with_copy(state, state.leader, leader.with_next(Copy(has_value=True, has_tombstone=True)))
        least = min(each.end for each in state.copies if each.is_alive)
        if least > state.high_watermark:
            yield state._replace(high_watermark=least)
    for number, copy in enumerate(state.copies):
        if not copy.is_alive:
            yield with_copy(state, number, copy._replace(is_alive=True))
            if state.replacements:
                fresh = with_copy(state, number, Copy())
                yield fresh._replace(replacements=state.replacements - 1)
            continue
        if (step := cleaned(state, number, rules)) is not None:
            yield with_copy(state, number, step)
        if number != state.leader and leader.is_alive:
            yield with_copy(state, number, fetched(copy, leader, rules))
        if not leader.is_alive and copy.end >= state.high_watermark:
            yield state._replace(leader=number)
        if sum(each.is_alive for each in state.copies) > 1:
            yield with_copy(state, number, copy._replace(is_alive=False))


def shows_deleted(state: State) -> bool:
    """Return whether readers of the leader see the value of the deleted key."""
    leader = state.copies[state.leader]
    committed = leader.is_alive and min(leader.end, state.high_watermark) > TOMBSTONE
    return committed and leader.has_value and not leader.has_tombstone


def copies_for_ever(state: State, rules: Rules) -> bool:
    """Return whether an answer leaves a follower as it was, although its leader has more records."""
    leader = state.copies[state.leader]
    return leader.is_alive and any(
        copy.is_alive and copy.end < leader.end and fetched(copy, leader, rules) == copy
        for copy in state.copies
    )


class Found(NamedTuple):
    """Result of a search."""

    states: int
    steps: int
    depth: int
    """Number of steps to the last state that was reached."""
    violation: str | None = None


def search(rules: Rules, world: World) -> Found:
    """Search all states, up to the first that shows a deleted value or a follower that copies for ever."""
    begin = State((Copy(),) * world.replicas, 0, 0, world.replacements)
    depths, waiting, steps = {begin: 0}, deque([begin]), 0
    while waiting:
        before = waiting.popleft()
        for state in following(before, rules, world.end):
            steps += 1
            if state in depths:
                continue
            depths[state] = depths[before] + 1
            if shows_deleted(state):
                return Found(len(depths), steps, depths[state], BACK)
            if copies_for_ever(state, rules):
                return Found(len(depths), steps, depths[state], FOR_EVER)
            waiting.append(state)
    return Found(len(depths), steps, max(depths.values()))


def never_again(end: int, own: int, leader: int) -> Copying:
    """Append even when the rule would copy the log again."""
    how = copying(end, own, leader)
    return Copying.APPEND if how is Copying.COPY_AGAIN else how


def never_lowered(end: int, own: int, leader: int) -> Copying:
    """Keep `removed` even when the rule would lower it."""
    how = copying(end, own, leader)
    return Copying.APPEND if how is Copying.LOWER else how


WORLDS = {
    World(2, 3, 0): Found(672, 1_874, 16),
    World(2, 3, 1): Found(1_920, 5_760, 19),
    World(3, 2, 0): Found(3_822, 15_069, 19),
    World(3, 2, 1): Found(11_676, 51_096, 21),
    World(3, 3, 0): Found(20_622, 88_665, 22),
    World(3, 3, 2): Found(107_310, 540_909, 25),
}
"""Worlds that are searched completely. The numbers change only with the model or with the shipped rule."""
DROPPED = {
    "copy again": (Rules(never_again), World(2, 2, 0), Found(190, 437, 11, BACK)),
    "removed": (Rules(notes_removed=False), World(2, 2, 0), Found(187, 429, 11, BACK)),
    "least": (Rules(never_lowered), World(3, 2, 0), Found(4_272, 16_180, 19, BACK)),
    "takes removed": (Rules(takes_removed=False), World(2, 2, 0), Found(99, 193, 7, FOR_EVER)),
}
"""Rules that are switched off, each with a search that finds a violation after the fewest steps."""


@pytest.mark.parametrize("world", WORLDS, ids=lambda world: "-".join(map(str, world)))
def test_a_deleted_key_never_comes_back(world: World) -> None:
    """No sequence of cleanings, deaths, replacements and elections makes a leader show a deleted value.

    Every follower that is behind its leader advances with the next answer.
    """
    found = search(Rules(), world)
    record(f"replicas {world.replicas}, offsets {world.end}, replaced {world.replacements}", found._asdict())

    assert found == WORLDS[world]


@pytest.mark.parametrize("name", DROPPED)
def test_each_part_of_the_rule_is_needed(name: str) -> None:
    """If a part of the rule is switched off, a deleted key reappears, or a follower copies for ever."""
    rules, world, expected = DROPPED[name]
    found = search(rules, world)
    record(f"without {name}", found._asdict())

    assert found == expected
