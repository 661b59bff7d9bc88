"""Deadlines of sessions: each heartbeat moves a deadline, and the earliest deadline can be looked up."""

from __future__ import annotations

from random import Random

import pytest

from fairlead_broker.groups.pacing import Deadlines

MEMBERS = ("m1", "m2", "m3", "m4")


@pytest.mark.parametrize("seed", range(20))
def test_the_first_end_is_that_of_a_plain_table(seed: int) -> None:
    """The earliest deadline equals that of a plain table after any sequence of sets, moves and drops."""
    chance, deadlines, table = Random(seed), Deadlines(), dict[str, float]()
    for step in range(300):
        member = chance.choice(MEMBERS)
        if chance.random() < 0.3:
            deadlines.drop(member)
            table.pop(member, None)
        else:
            table[member] = float(step + chance.choice((1, 5, 5, 20)))
            deadlines.set(member, table[member])
        first = deadlines.next() if chance.random() < 0.7 else None

        assert first is None or (first[0], table[first[1]]) == (min(table.values()), first[0])
        assert sorted(deadlines.over(lambda ends_at, now=step: ends_at <= now)) == sorted(
            each for each, ends_at in table.items() if ends_at <= step
        )
    assert len(deadlines._heap) <= 2 * len(MEMBERS)


def test_a_member_that_comes_again_and_again_takes_one_place() -> None:
    """A member that restarts repeatedly under the same id has one entry."""
    deadlines = Deadlines()
    for now in range(1000):
        deadlines.set("m1", now + 45.0)
        deadlines.set("m2", now + 40.0)
        deadlines.drop("m1")
        deadlines.next()
    deadlines.set("m1", 1050.0)

    assert deadlines.next() == (1039.0, "m2")
    assert len(deadlines._heap) == 2
