"""A fixed set of worlds of consumer groups holds every invariant, and a run is the same every time.

`make sim SIM=--groups` runs as many others as there is time for.
"""

from __future__ import annotations

import pytest

from groups.plan import Fault
from groups.world import World, run

WORLDS = 500
SLICES = 4
REPEATED = range(0, 100, 10)
COUNTED = 150


@pytest.mark.slow
@pytest.mark.parametrize("part", range(SLICES))
def test_no_world_of_groups_breaks_an_invariant(part: int) -> None:
    """Safety through the storm, and every partition owned in the end, in every world of the fixed set."""
    size = WORLDS // SLICES
    verdicts = [run(seed) for seed in range(part * size, (part + 1) * size)]

    broken = [f"{each.seed}: {each.violation!r}" for each in verdicts if each.violation is not None]
    assert not broken, f"see each with `make sim SIM='--groups --seed N --trace'`: {broken}"


def test_a_seed_is_a_run_of_a_group() -> None:
    """The same seed twice gives the same run, down to the state of chance, traced or not."""
    first = [run(seed).digest for seed in REPEATED]
    second = [run(seed, traced=True).digest for seed in REPEATED]

    assert first == second
    assert len(set(first)) == len(first)


def test_the_storm_does_something_to_groups() -> None:
    """Take-overs, fences, expiries, moves and returns happen: worlds without them would prove nothing."""
    counts: dict[str, int] = {}
    for seed in range(COUNTED):
        for name, count in run(seed).counts.items():
            counts[name] = counts.get(name, 0) + count

    for fault in Fault:
        assert counts[f"fault {fault.value}"], f"{fault}: never in {COUNTED} worlds"
    for name in ("take-overs", "changes", "expired", "given up", "committed", "static returns"):
        assert counts.get(name, 0) >= 5, f"{name}: {counts.get(name)} in {COUNTED} worlds"


def test_a_trace_of_a_group_names_its_steps() -> None:
    """A traced run says who claimed and who was given what."""
    trace = "\n".join(World(3, traced=True).run().trace)

    assert "claims:" in trace
    assert "assigned" in trace
