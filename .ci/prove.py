"""The long proofs: `make prove` runs all of them, `make prove PROVE="kills power-cuts"` some.

Every part is a program that can be run alone and prints a JSON report; here it gets its full counts, and what it found
is written to docs/proof/<part>.json. `--share 0.01` takes a hundredth of every count, to try the whole thing. A part
that fails does not keep the others from running.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

from proof_record import write_record

GIB: Final = 1 << 30
MUTANTS_A_RUN: Final = 50_000
MUTATIONS: Final = "tests/fuzz/batch_mutations.py"
REQUEST_MUTATIONS: Final = "tests/fuzz/request_mutations.py"

Outcome = tuple[bool, dict[str, Any]]
"""Whether the part passed, and its report."""


def power_cuts(share: float) -> Outcome:
    """2,000 cuts of the power under the log, and the three disks that must be noticed."""
    seed = _seed()
    cycles = _count(2000, share)
    program = "tests/faults/power_cuts.py"
    code, report = _run(program, "--cycles", str(cycles), "--seed", str(seed))
    found = {}
    for switch in ("file_sync", "folder_sync", "rename_order"):
        failed, broken = _run(program, "--cycles", str(cycles), "--seed", str(seed), "--without", switch)
        found[switch] = {"noticed": failed == 1, "after_cuts": broken["losses"]["cuts"]}
    passed = code == 0 and all(each["noticed"] for each in found.values())
    return passed, {**report, "disks_that_break_a_promise": found}


def kills(share: float) -> Outcome:
    """100 kills over 1 GiB of log, then 10 over 10 GiB."""
    passed, reports = True, {}
    for name, count, nbytes in (("1 GiB", 100, GIB), ("10 GiB", 10, 10 * GIB)):
        arguments = ("--kills", str(_count(count, share)), "--ballast-bytes", str(_count(nbytes, share)))
        code, reports[name] = _run("tests/faults/killed_brokers.py", *arguments, "--seed", str(_seed()))
        passed &= code == 0
    return passed, reports


def bit_flips(share: float) -> Outcome:
    """1,000 flipped bits and cut files."""
    code, report = _run(
        "tests/faults/bit_flips.py", "--trials", str(_count(1000, share)), "--seed", str(_seed())
    )
    return code == 0, report


def batch_fuzz(share: float) -> Outcome:
    """10 million mutated batches against the leader's validation, each run with a seed of its own."""
    mutants, first = _count(10_000_000, share), _seed()
    runs = -(-mutants // MUTANTS_A_RUN)
    done, refused, broken = 0, Counter[str](), []
    sealed = 0.0

    def run(number: int) -> tuple[int, dict[str, Any]]:
        arguments = ("--mutants", str(min(MUTANTS_A_RUN, mutants)), "--seed", str(first + number))
        return _run(MUTATIONS, *arguments)

    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        for code, report in pool.map(run, range(runs)):
            done += report.get("mutants", 0)
            sealed += report.get("sealed", 0.0) * report.get("mutants", 0)
            refused.update(report.get("refused", {}))
            if code:
                broken.append({"seed": report.get("seed"), "broken": report.get("broken", report)})
            _progress(f"{done:,} of {mutants:,} mutants")
    counts = {
        "mutants": done,
        "seeds": [first, first + runs - 1],
        "share_with_true_checksums": round(sealed / max(done, 1), 4),
        "share_refused_by_check": {
            name: round(each / max(done, 1), 6) for name, each in refused.most_common()
        },
        "broken": broken,
    }
    return not broken and done >= mutants, counts


def request_fuzz(share: float) -> Outcome:
    """A million mutated requests against a broker behind the application of its data listener."""
    mutants, first = _count(1_000_000, share), _seed()
    runs = -(-mutants // MUTANTS_A_RUN)
    statuses, broken = Counter[str](), []

    def run(number: int) -> tuple[int, dict[str, Any]]:
        arguments = ("--mutants", str(min(MUTANTS_A_RUN, mutants)), "--seed", str(first + number))
        return _run(REQUEST_MUTATIONS, *arguments)

    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        for code, report in pool.map(run, range(runs)):
            statuses.update(report.get("statuses", {}))
            if code:
                broken.append({"seed": report.get("seed"), "broken": report.get("broken", report)})
            _progress(f"{statuses.total():,} of {mutants:,} requests")
    done = statuses.total()
    counts = {
        "requests": done,
        "seeds": [first, first + runs - 1],
        "answers_by_status": dict(sorted(statuses.items())),
    }
    return not broken and done >= mutants, {**counts, "broken": broken}


def overload(share: float) -> Outcome:
    """Attacks and overload against a broker process, with their full numbers (`--share` below 1: the small ones)."""
    full = ("--hypothesis-profile", "prove", "--timeout", "600") if share >= 1 else ()
    code, found = _figures("-m", "prove or scenario", "tests/overload", *full)
    return code == 0, {"exit_code": code, **found}


def operator_edits(share: float) -> Outcome:
    """50 random edits of a Cluster and its Topics, operators killed, the API server failing; then 120 s of silence."""
    seed = _seed()
    settings = {"FAIRLEAD_EDITS": str(_count(50, share)), "FAIRLEAD_SEED": str(seed)}
    code, found = _figures("tests/kubernetes/test_random_edits.py", **settings)
    return code == 0, {"exit_code": code, "seed": seed, **found}


def operator_topics(share: float) -> Outcome:
    """500 Topics at once: ready within a minute, and the operator stays below 300 MiB."""
    del share
    code, found = _figures("tests/kubernetes/test_topics.py", "-k", "five_hundred")
    return code == 0, {"exit_code": code, **found}


def pods(share: float) -> Outcome:
    """Clusters on real pods under load: scale, lost disks, nodes and members of etcd, rolls that are held up."""
    del share
    files = [str(path) for path in sorted(Path("tests/kubernetes").glob("test_pods_*.py"))]
    code, found = _figures(*files, "tests/kubernetes/test_cluster_pods.py")
    return code == 0, {"exit_code": code, **found}


def recipes(share: float) -> Outcome:
    """100 crashes of every program of the page on delivery guarantees."""
    arguments = ("--crashes", str(_count(100, share)), "--seed", str(_seed()))
    code, report = _run("tests/recipes/recipe_crashes.py", *arguments)
    return code == 0, report


def spark_kills(share: float) -> Outcome:
    """50 kills of streaming queries, driver or Python worker: files and Delta table once, topic at least once."""
    arguments = ("--kills", str(_count(50, share)), "--seed", str(_seed()))
    code, report = _run("tests/spark/killed_queries.py", *arguments)
    return code == 0, report


def searches(share: float) -> Outcome:
    """The tests that search by hypothesis, with fifty times the examples and new ones each time."""
    del share
    command = [sys.executable, "-m", "pytest", "-n", "2", "-m", "hypothesis", "--hypothesis-profile", "prove"]
    command += ["--timeout", "1800", "-o", "time_budgets="]
    code = subprocess.run(command, check=False).returncode
    return code == 0, {"exit_code": code}


def scenarios(share: float) -> Outcome:
    """The tests marked `scenario`, except those of `make chaos` and of the part `pods`."""
    del share
    command = [sys.executable, "-m", "pytest", "-m", "scenario", "--timeout", "900", "-o", "time_budgets="]
    of_pods = (
        "--ignore=tests/kubernetes/test_cluster_pods.py",
        "--ignore-glob=tests/kubernetes/test_pods_*.py",
    )
    code = subprocess.run([*command, "--ignore=tests/chaos", *of_pods], check=False).returncode
    return code == 0, {"exit_code": code}


PARTS: Final[dict[str, Callable[[float], Outcome]]] = {
    "power-cuts": power_cuts,
    "bit-flips": bit_flips,
    "kills": kills,
    "batch-fuzz": batch_fuzz,
    "request-fuzz": request_fuzz,
    "operator-edits": operator_edits,
    "operator-topics": operator_topics,
    "overload": overload,
    "pods": pods,
    "recipes": recipes,
    "scenarios": scenarios,
    "searches": searches,
    "spark-kills": spark_kills,
}


def _run(program: str, *arguments: str) -> tuple[int, dict[str, Any]]:
    """Run a program of the tests; returns its exit code and the report it printed."""
    finished = subprocess.run(
        [sys.executable, program, *arguments], stdout=subprocess.PIPE, text=True, check=False
    )
    try:
        report: dict[str, Any] = json.loads(finished.stdout, strict=False)
    except ValueError:
        report = {"ended_with": finished.returncode, "said": finished.stdout[-2000:]}
    return finished.returncode, report


def _figures(*arguments: str, **settings: str) -> tuple[int, dict[str, Any]]:
    """Run tests with their full numbers; returns the exit code and the figures that they left."""
    command = [sys.executable, "-m", "pytest", *arguments, "-o", "time_budgets="]
    with tempfile.TemporaryDirectory() as folder:
        figures = Path(folder) / "figures.json"
        environment = {**os.environ, **settings, "FAIRLEAD_FIGURES": str(figures)}
        code = subprocess.run(command, check=False, env=environment).returncode
        found: dict[str, Any] = json.loads(figures.read_text()) if figures.exists() else {}
    return code, found


def _count(full: int, share: float) -> int:
    return max(1, round(full * share))


def _seed() -> int:
    return random.SystemRandom().randrange(1 << 31)


def _progress(text: str) -> None:
    sys.stderr.write(f"\r{text}" if sys.stderr.isatty() else f"{text}\n")
    sys.stderr.flush()


def main(arguments: list[str]) -> int:
    """Run the named parts, or all; 0 when every one of them passed."""
    parser = argparse.ArgumentParser(prog="make prove", description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="part", help=f"of {', '.join(PARTS)}")
    parser.add_argument("--share", type=float, default=1.0, help="of every count")
    wanted = parser.parse_args(arguments)
    unknown = [name for name in wanted.parts if name not in PARTS]
    if unknown:
        parser.error(f"no part is called {', '.join(unknown)}; there are {', '.join(PARTS)}")
    failed = []
    for name in wanted.parts or PARTS:
        print(f"+ {name}: {PARTS[name].__doc__}", flush=True)
        begun = time.monotonic()
        passed, counts = PARTS[name](wanted.share)
        path = write_record(name, passed=passed, counts=counts, seconds=time.monotonic() - begun)
        print(
            f"  {'passed' if passed else 'FAILED'} in {time.monotonic() - begun:.0f} s, see {path}",
            flush=True,
        )
        if not passed:
            failed.append(name)
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
