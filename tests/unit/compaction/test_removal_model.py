"""A model of replicas that clean independently, die, return and are replaced: a deleted key never reappears.

The model has one key: its value at offset 0, its tombstone at offset 1, and other records after them. It searches all
states, breadth first, and decides with the shipped rule how a follower continues. If a part of the rule is switched
off, the search must find a leader that shows the deleted value.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import NamedTuple

import pytest

from fairlead_broker.compaction.removal import Copying, copying

END = 3
VALUE, TOMBSTONE = 0, 1
Rule = Callable[[int, int, int], Copying]


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


class State(NamedTuple):
    """All replicas, the leader, the high watermark, and the remaining number of deaths and replacements."""

    copies: tuple[Copy, ...]
    leader: int
    high_watermark: int
    deaths: int
    replacements: int


def with_copy(state: State, number: int, copy: Copy) -> State:
    """Return the state with one replica changed."""
    return state._replace(copies=(*state.copies[:number], copy, *state.copies[number + 1 :]))


def fetched(follower: Copy, leader: Copy, rule: Rule) -> Copy:
    """Return a follower after one answer from its leader."""
    if follower.end > leader.end:
        return follower.cut(leader.end)
    match rule(follower.end, follower.removed, leader.removed):
        case Copying.COPY_AGAIN:
            return Copy(removed=leader.removed)
        case Copying.LOWER:
            follower = follower._replace(removed=leader.removed)
    return follower.with_next(leader) if follower.end < leader.end else follower


def cleaned(state: State, number: int) -> Copy | None:
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
    return copy._replace(has_tombstone=False, removed=max(copy.removed, TOMBSTONE + 1))


def following(state: State, rule: Rule) -> Iterator[State]:
    """Yield every state that can follow."""
    leader = state.copies[state.leader]
    if leader.is_alive:
        if leader.end < END:
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
        if (step := cleaned(state, number)) is not None:
            yield with_copy(state, number, step)
        if number != state.leader and leader.is_alive:
            yield with_copy(state, number, fetched(copy, leader, rule))
        if not leader.is_alive and copy.end >= state.high_watermark:
            yield state._replace(leader=number)
        if state.deaths and sum(each.is_alive for each in state.copies) > 1:
            yield with_copy(state, number, copy._replace(is_alive=False))._replace(deaths=state.deaths - 1)


def shows_deleted(state: State) -> bool:
    """Return whether readers of the leader see the value of the deleted key."""
    leader = state.copies[state.leader]
    committed = leader.is_alive and min(leader.end, state.high_watermark) > TOMBSTONE
    return committed and leader.has_value and not leader.has_tombstone


def search(rule: Rule, replicas: int, deaths: int, replacements: int) -> tuple[int, State | None]:
    """Return the number of states, and the first state with a deleted value, or None if there is no such state."""
    begin = State((Copy(),) * replicas, 0, 0, deaths, replacements)
    seen, waiting = {begin}, deque([begin])
    while waiting:
        for state in following(waiting.popleft(), rule):
            if state not in seen:
                if shows_deleted(state):
                    return len(seen), state
                seen.add(state)
                waiting.append(state)
    return len(seen), None


def never_again(end: int, own: int, leader: int) -> Copying:
    """Append even when the rule would copy the log again."""
    how = copying(end, own, leader)
    return Copying.APPEND if how is Copying.COPY_AGAIN else how


def never_lowered(end: int, own: int, leader: int) -> Copying:
    """Keep `removed` even when the rule would lower it."""
    how = copying(end, own, leader)
    return Copying.APPEND if how is Copying.LOWER else how


@pytest.mark.parametrize(
    ("replicas", "deaths", "replacements"),
    [(2, 3, 1), pytest.param(3, 3, 1, marks=pytest.mark.scenario)],
)
def test_a_deleted_key_never_comes_back(replicas: int, deaths: int, replacements: int) -> None:
    """No sequence of cleanings, deaths, replacements and elections makes a leader show a deleted value."""
    states, found = search(copying, replicas, deaths, replacements)

    assert found is None
    assert states > 500


@pytest.mark.parametrize(
    ("rule", "replicas"), [(never_again, 2), pytest.param(never_lowered, 3, marks=pytest.mark.scenario)]
)
def test_each_part_of_the_rule_is_needed(rule: Rule, replicas: int) -> None:
    """If followers never copy again, or never lower `removed`, the search finds a deleted key that has reappeared."""
    _, found = search(rule, replicas, 4, 2)

    assert found is not None
