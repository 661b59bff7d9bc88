"""The simulator finds each dropped rule in the world of a recorded seed.

The page docs/explanation/simulation.md records the first seed that finds each dropped rule. A change to the simulator
changes the seeds: `make sim SIM="--switches --write"` records the seeds of partitions again, with `--groups` those of
groups, with `--classic` those of classic groups, with `--transactions` those of
transactions, and with `--links` those of links.
"""

from __future__ import annotations

import re

import pytest

from simulator.search import CLASSIC, END, GROUPS, LINKS, PAGE, PARTITIONS, QUORUMS, TRANSACTIONS, Suite

TABLE_LINE = re.compile(r"^\| .+ \| `([\w-]+)` \| \w+ \| \d+ \| (\d+) \|$", re.MULTILINE)
PLAYS = (PARTITIONS, QUORUMS, GROUPS, CLASSIC, TRANSACTIONS, LINKS)


def known_seeds(play: Suite) -> dict[str, int]:
    """Return the first seed of each switch from the page."""
    table = PAGE.read_text().partition(play.begin)[2].partition(END)[0]
    return {name: int(seed) for name, seed in TABLE_LINE.findall(table)}


@pytest.mark.parametrize("play", PLAYS, ids=str)
def test_every_switch_was_found(play: Suite) -> None:
    """The page has a seed for each dropped rule."""
    assert set(known_seeds(play)) == set(play.by_name)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("play", "name", "seed"),
    [(play, name, seed) for play in PLAYS for name, seed in sorted(known_seeds(play).items())],
    ids=str,
)
def test_a_dropped_rule_is_found(play: Suite, name: str, seed: int) -> None:
    """The world of a recorded seed violates an invariant when its rule is dropped, and otherwise none."""
    switch = play.by_name[name]
    with switch.drop():
        without = play.run(seed)

    assert without.violation is not None, f"{switch.rule}: measure the switches again"
    assert play.run(seed).violation is None


@pytest.mark.parametrize("play", PLAYS, ids=str)
def test_a_switch_leaves_nothing_behind(play: Suite) -> None:
    """A run is unchanged after all switches have been opened and closed."""
    before = play.run(5).digest
    for switch in play.switches:
        with switch.drop():
            pass

    assert play.run(5).digest == before
