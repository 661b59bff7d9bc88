"""Each rule of groups, once dropped, is missed: the simulator sees what the rule is for.

The seeds are those at which a dropped rule was found first, in docs/explanation/simulation.md. A change of the
simulator moves them: measure again then, by `make sim SIM="--groups --switches --write"`.
"""

from __future__ import annotations

import re

import pytest

from groups.switches import BY_NAME, Switch
from groups.world import run
from simulator.search import END, GROUPS, PAGE, first_found

SEEDS_MAX = 1_000
"""Where a change of the simulator has moved the known seeds."""
TABLE_LINE = re.compile(r"^\| .+ \| `([\w-]+)` \| \w+ \| \d+ \| (\d+) \|$", re.MULTILINE)
TABLE = PAGE.read_text().partition(GROUPS.begin)[2].partition(END)[0]
KNOWN_SEEDS = {name: int(seed) for name, seed in TABLE_LINE.findall(TABLE)}


def test_every_switch_of_groups_was_found() -> None:
    """The page has each dropped rule with a seed at which it is missed."""
    assert set(KNOWN_SEEDS) == set(BY_NAME)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(KNOWN_SEEDS))
def test_a_dropped_rule_of_groups_is_found(name: str) -> None:
    """The world of the known seed breaks an invariant without the rule, and none with it."""
    switch: Switch = BY_NAME[name]
    seed = KNOWN_SEEDS[name]
    with switch.drop():
        without = run(seed)

    found = without if without.violation is not None else first_found(GROUPS, switch, most=SEEDS_MAX)
    assert found is not None, f"{switch.rule}: nothing found within {SEEDS_MAX} seeds"
    assert run(found.seed).violation is None


def test_a_switch_of_groups_leaves_nothing_behind() -> None:
    """After each switch has been open and closed a run is what it was."""
    before = run(5).digest
    for switch in BY_NAME.values():
        with switch.drop():
            pass

    assert run(5).digest == before
