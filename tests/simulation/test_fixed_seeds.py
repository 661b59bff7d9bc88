"""A fixed set of worlds holds every invariant, and a run is the same every time.

`make sim` runs as many others as there is time for.
"""

from __future__ import annotations

import pytest

from simulator.plan import Drill, Fault
from simulator.world import World, run

WORLDS = 2_000
SLICES = 8
STORMS = 200
REPEATED = range(0, 400, 10)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(SLICES))
def test_no_world_breaks_an_invariant(part: int) -> None:
    """Safety through the storm, and rest afterwards, in every world of the fixed set."""
    size = WORLDS // SLICES
    verdicts = [run(seed) for seed in range(part * size, (part + 1) * size)]

    broken = [f"{each.seed}: {each.violation!r}" for each in verdicts if each.violation is not None]
    assert not broken, f"see each with `make sim SIM='--seed N --trace'`: {broken}"


def test_a_seed_is_a_run() -> None:
    """The same seed twice gives the same run, down to the state of chance, traced or not."""
    first = [run(seed).digest for seed in REPEATED]
    second = [run(seed, traced=True).digest for seed in REPEATED]

    assert first == second
    assert len(set(first)) == len(first)


def test_the_storm_does_something() -> None:
    """Elections, truncations, lost cells, joins and shrinks happen: worlds without them would prove nothing."""
    counts: dict[str, int] = {}
    for seed in range(STORMS):
        for name, count in run(seed).counts.items():
            counts[name] = counts.get(name, 0) + count

    for fault in Fault:
        assert counts[f"fault {fault.value}"], f"{fault}: never in {STORMS} worlds"
    for drill in Drill:
        assert counts[f"drill {drill.value}"], f"{drill}: never in {STORMS} worlds"
    assert counts["torn tails"]
    for name in (
        "leaders",
        "truncations",
        "cells lost",
        "isr shrinks",
        "isr expands",
        "acknowledged",
        "read",
    ):
        assert counts[name] >= 20, f"{name}: {counts[name]} in {STORMS} worlds"


def test_a_trace_names_its_steps() -> None:
    """A traced run says who led and what was written."""
    trace = "\n".join(World(3, traced=True).run().trace)

    assert "leads:" in trace
    assert "controller writes:" in trace
