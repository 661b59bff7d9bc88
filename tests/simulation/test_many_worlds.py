"""Large sets of worlds violate no invariant, and for each dropped rule some new world violates an invariant.

Both tests are part of `make prove`.
"""

from __future__ import annotations

import pytest

from simulator.search import CLASSIC, GROUPS, LINKS, PARTITIONS, QUORUMS, TRANSACTIONS, Suite, first_found
from test_virtual_time import run_worlds

pytestmark = pytest.mark.scenario

SETS = (
    (PARTITIONS, range(200, 10_000)),
    (QUORUMS, range(200, 10_000)),
    (GROUPS, range(200, 3_000)),
    (CLASSIC, range(200, 3_000)),
    (TRANSACTIONS, range(200, 10_000)),
    (LINKS, range(200, 10_000)),
)
FRESH_FROM = 100_000
"""First seed of the search for dropped rules, outside the recorded seeds."""
SWITCHES = [(play, switch.name) for play, _ in SETS for switch in play.switches]


@pytest.mark.parametrize(("play", "seeds"), SETS, ids=str)
def test_no_world_breaks_an_invariant(play: Suite, seeds: range) -> None:
    """No world of a large set violates an invariant, and the cluster in each world comes to rest."""
    verdicts = (play.run(seed) for seed in seeds)

    assert [f"{each.seed}: {each.violation!r}" for each in verdicts if each.violation is not None] == []


@pytest.mark.parametrize(("play", "name"), SWITCHES, ids=str)
def test_a_dropped_rule_is_found_in_fresh_worlds(play: Suite, name: str) -> None:
    """With a dropped rule, some world with a new seed violates an invariant."""
    assert first_found(play, play.by_name[name], FRESH_FROM) is not None


def test_whole_brokers_break_no_promise() -> None:
    """Additional worlds of whole brokers keep every guarantee."""
    done = run_worlds("--seed", "3", "--worlds", "60")

    assert done.returncode == 0, done.stdout + done.stderr
