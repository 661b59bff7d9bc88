"""Runs simulated worlds of one kind, and searches new worlds for each dropped rule.

`python proved_worlds.py --suite links --worlds 10000` prints a JSON report. The program exits with 1 if a world
violates an invariant, or if a dropped rule violates no invariant within the same number of worlds.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, Final

sys.path.extend(
    str(Path(__file__).parents[1] / folder)
    for folder in (
        "simulation",
        "plugins",
        "plugins/brokers",
        "plugins/programs",
        "faults",
        "checker",
        "chaos",
        "etcd",
    )
)

from simulator.search import SUITES, first_found

WORLDS_A_RUN: Final = 500
DROPPED_FROM: Final = 100_000
"""First seed of the search for dropped rules, outside the worlds that run with all rules."""


def run_worlds(first: int, suite: str, most: int) -> tuple[Counter[str], list[str]]:
    """Run worlds with all rules; return what happened in them, and the violations."""
    counts, broken = Counter[str](), []
    for seed in range(first, min(first + WORLDS_A_RUN, most)):
        verdict = SUITES[suite].run(seed)
        counts.update(verdict.counts)
        if verdict.violation is not None:
            broken.append(f"{seed}: {verdict.violation!r}")
    return counts, broken


def drop(name: str, suite: str, most: int) -> dict[str, Any] | None:
    """Return the violation that shows that a rule is dropped, and its seed; None if no world shows it."""
    found = first_found(SUITES[suite], SUITES[suite].by_name[name], DROPPED_FROM, most)
    return found and {"seed": found.seed, "violation": type(found.violation).__name__}


def main(arguments: list[str]) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--worlds", type=int, default=10_000)
    parser.add_argument("--suite", choices=sorted(SUITES), default="links")
    chosen = parser.parse_args(arguments)
    most: int = chosen.worlds
    run = partial(run_worlds, suite=chosen.suite, most=most)
    find = partial(drop, suite=chosen.suite, most=most)
    names = list(SUITES[chosen.suite].by_name)
    counts, broken = Counter[str](), []
    with ProcessPoolExecutor() as pool:
        for found, violations in pool.map(run, range(0, most, WORLDS_A_RUN)):
            counts.update(found)
            broken += violations
        dropped = dict(zip(names, pool.map(find, names), strict=True))
    report = {
        "worlds": most,
        "events": dict(sorted(counts.items())),
        "broken": broken,
        "dropped_rules": dropped,
    }
    sys.stdout.write(f"{json.dumps(report, indent=2)}\n")
    return int(bool(broken) or None in dropped.values())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
