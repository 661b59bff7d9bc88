"""The search for violations, for `make sim`, and the measurement of how soon each dropped rule is found.

`python -m simulator.search --seconds 60 --seed 1` runs new worlds until the time has elapsed; `--seed 17 --trace` shows
one world; `--switches` writes the table. `--groups` simulates consumer groups instead of partitions, `--classic`
simulates groups of Kafka's classic protocol, `--transactions` simulates transactions, `--links` simulates a topic in
two clusters, and `--brokers` simulates whole brokers on virtual time. The exit code is 1 if an invariant was violated;
the output then contains the command that repeats the run.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import islice, pairwise, repeat
from pathlib import Path
from statistics import median

import classic.switches
import classic.world
import groups.switches
import groups.world
import linked.switches
import linked.world
import partitions.quorum_switches
import partitions.quorum_worlds
import partitions.switches
import partitions.world
import transactional.switches
import transactional.world
import virtual_time.world
from simulator.switches import Switch
from simulator.world import Verdict

SEEDS_MAX = 10_000
"""Number of seeds within which each dropped rule must be found."""
TABLE_FOUND = 3
"""Number of times a dropped rule is found, from which the median number of seeds in the table is computed."""
PAGE = Path(__file__).resolve().parents[3] / "docs" / "explanation" / "simulation.md"
END = "<!-- end of the table -->"
TABLE_HEAD = """| dropped rule | switch | found as | median seeds | first seed |
|---|---|---|---|---|"""
NOT_FOUND = "not found within"
DETERMINISM_EVERY = 50
"""Interval of seeds at which a world is run twice, to check that both runs are equal."""


@dataclass(frozen=True, slots=True, eq=False)
class Suite:
    """Worlds of one kind, and the rules that can be dropped in them."""

    name: str
    run: Callable[..., Verdict]
    switches: tuple[Switch, ...]
    option: str = ""
    """Option of the command line that selects the worlds of the suite."""

    def __str__(self) -> str:
        return self.name

    @property
    def begin(self) -> str:
        """Return the line of the page that precedes the table."""
        return f"<!-- made by: make sim SIM='{self.option}--switches --write' -->"

    @property
    def by_name(self) -> dict[str, Switch]:
        """Return the switches by name."""
        return {switch.name: switch for switch in self.switches}


PARTITIONS = Suite("partitions", partitions.world.run, partitions.switches.SWITCHES)
QUORUMS = Suite("quorums", partitions.quorum_worlds.run, partitions.quorum_switches.SWITCHES, "--quorums ")
GROUPS = Suite("groups", groups.world.run, groups.switches.SWITCHES, "--groups ")
CLASSIC = Suite("classic", classic.world.run, classic.switches.SWITCHES, "--classic ")
TRANSACTIONS = Suite(
    "transactions", transactional.world.run, transactional.switches.SWITCHES, "--transactions "
)
LINKS = Suite("links", linked.world.run, linked.switches.SWITCHES, "--links ")
BROKERS = Suite(
    "brokers",
    virtual_time.world.run,
    # Switches of shells replace parts of the simulator's twins, which worlds of whole brokers do not use.
    tuple(switch for switch in partitions.switches.SWITCHES if not switch.shell),
    "--brokers ",
)
SUITES = {suite.name: suite for suite in (PARTITIONS, QUORUMS, GROUPS, CLASSIC, TRANSACTIONS, LINKS, BROKERS)}


def findings(suite: Suite, switch: Switch, first: int = 0, most: int = SEEDS_MAX) -> Iterator[Verdict]:
    """Run seeds in order without a rule, and yield the violations that do not occur with the rule."""
    for seed in range(first, first + most):
        with switch.drop():
            verdict = suite.run(seed)
        if verdict.violation is not None and suite.run(seed).violation is None:
            yield verdict


def first_found(suite: Suite, switch: Switch, first: int = 0, most: int = SEEDS_MAX) -> Verdict | None:
    """Return the first run that finds a dropped rule."""
    return next(findings(suite, switch, first, most), None)


def search(suite: Suite, first: int, seconds: float, most: int | None = None) -> int:
    """Run new worlds for some time, and return the number of violations."""
    started = time.perf_counter()
    counts: Counter[str] = Counter()
    broken: list[Verdict] = []
    seed = first
    while time.perf_counter() - started < seconds and (most is None or seed < first + most):
        verdict = suite.run(seed)
        counts.update(verdict.counts)
        if verdict.violation is not None:
            broken.append(verdict)
            report(suite, verdict)
        if seed % DETERMINISM_EVERY == 0 and suite.run(seed).digest != verdict.digest:
            print(f"seed {seed}: two runs differ")
            broken.append(verdict)
        seed += 1
    runs, took = seed - first, time.perf_counter() - started
    print(
        f"{runs} worlds, seeds {first} to {seed - 1}, {runs / took * 60:.0f} a minute, {len(broken)} broken"
    )
    for name, count in sorted(counts.items()):
        print(f"  {name:24} {count}")
    return len(broken)


def report(suite: Suite, verdict: Verdict) -> None:
    """Print a violation, and the command that repeats it."""
    print(f"seed {verdict.seed}: {type(verdict.violation).__name__}: {str(verdict.violation)[:300]}")
    print(f"  again, with every step: make sim SIM='{suite.option}--seed {verdict.seed} --trace'")


def measure(suite_name: str, name: str, most: int) -> str:
    """Return the table row of a switch: the median number of seeds to each of the first findings."""
    suite = SUITES[suite_name]
    switch = suite.by_name[name]
    found = list(islice(findings(suite, switch, most=most), TABLE_FOUND))
    if not found:
        return f"| {switch.rule} | `{name}` | {NOT_FOUND} {most} | | |"
    kinds = Counter(type(verdict.violation).__name__ for verdict in found).most_common(1)[0][0]
    seeds = [verdict.seed for verdict in found]
    distances = [seed - before for before, seed in pairwise([-1, *seeds])]
    return f"| {switch.rule} | `{name}` | {kinds} | {median(distances):.0f} | {seeds[0]} |"


def write_table(suite: Suite, path: Path | None, names: list[str], most: int, processes: int) -> int:
    """Measure the switches, print the table, write it into the page, and return the number of switches not found."""
    chosen = names or [switch.name for switch in suite.switches]
    lines = []
    with ProcessPoolExecutor(processes) as pool:
        for line in pool.map(measure, repeat(suite.name), chosen, repeat(most)):
            print(line, flush=True)
            lines.append(line)
    if path is not None:
        before, _, rest = path.read_text().partition(suite.begin)
        _, _, after = rest.partition(END)
        path.write_text("\n".join((before + suite.begin, "", TABLE_HEAD, *lines, "", END + after)))
    return sum(NOT_FOUND in line for line in lines)


def main(arguments: list[str]) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="make sim SIM=...", description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60.0, help="how long to run fresh worlds")
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument("--trace", action="store_true", help="run one seed and print every step")
    parser.add_argument("--groups", action="store_true", help="worlds of consumer groups")
    parser.add_argument("--classic", action="store_true", help="worlds of groups of Kafka's classic protocol")
    parser.add_argument("--transactions", action="store_true", help="worlds of transactions")
    parser.add_argument("--quorums", action="store_true", help="worlds of partitions with a write quorum")
    parser.add_argument("--links", action="store_true", help="worlds of a topic in two clusters")
    parser.add_argument("--brokers", action="store_true", help="worlds of whole brokers on virtual time")
    parser.add_argument("--worlds", type=int, help="stop after this number of worlds")
    parser.add_argument("--drop", metavar="NAME", help="run with one rule dropped")
    parser.add_argument(
        "--switches", nargs="*", metavar="NAME", help="measure all switches, or the named ones"
    )
    parser.add_argument("--seeds", type=int, default=SEEDS_MAX, help="seeds for each switch")
    parser.add_argument("--write", action="store_true", help="put the table of switches into the docs")
    parser.add_argument("--processes", type=int, default=2, help="how many measure at a time")
    chosen = parser.parse_args(arguments)
    suites = (
        (chosen.brokers, BROKERS),
        (chosen.groups, GROUPS),
        (chosen.classic, CLASSIC),
        (chosen.links, LINKS),
        (chosen.quorums, QUORUMS),
        (chosen.transactions, TRANSACTIONS),
    )
    suite = next((each for is_chosen, each in suites if is_chosen), PARTITIONS)
    if chosen.drop is not None and chosen.drop not in suite.by_name:
        parser.error(f"no rule {chosen.drop!r}; there are {', '.join(sorted(suite.by_name))}")
    if chosen.switches is not None:
        page = PAGE if chosen.write else None
        return 1 if write_table(suite, page, chosen.switches, chosen.seeds, chosen.processes) else 0
    dropped: AbstractContextManager[None] = (
        suite.by_name[chosen.drop].drop() if chosen.drop else nullcontext()
    )
    with dropped:
        if chosen.trace:
            verdict = suite.run(chosen.seed, traced=True)
            print("\n".join(verdict.trace))
            if verdict.violation is not None:
                report(suite, verdict)
            return int(verdict.violation is not None)
        return 1 if search(suite, chosen.seed, chosen.seconds, chosen.worlds) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
