"""Runs the tests in the order the machine needs, and closes with one line for all of them.

The runs of pytest that make `all`: the pure rooms with branch coverage (fails below 100%), whole systems, then Spark
and Kubernetes side by side, since both wait more than they compute, then alone the tests that judge time. The first
runs build the programs of the Kubernetes in the background. `fast` is one run without the slow tests. Further arguments go to pytest, in one run
without coverage. Called by the Makefile.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

PURE_ROOMS = (
    "api",
    "controller",
    "groups",
    "operator/plan",
    "operator/render",
    "producers",
    "registry",
    "replication",
    "spark",
)
PURE_TESTS = tuple(f"tests/unit/{room}" for room in PURE_ROOMS)
PURE_WORKERS = "2"
# Tests of whole systems wait for leases and processes for half of their time.
WORKERS = "4"
# They wait for leases, elections and probes as long as they compute.
KUBERNETES_WORKERS = "3"
NO_TESTS_COLLECTED = 5
CLOSING_LINE = re.compile(r"^=+ (.*) in ([\d.]+)s.*=+$")
COUNT = re.compile(r"(\d+) (passed|failed|errors?|skipped|xfailed|xpassed|deselected|warnings?)")
ORDER = ("failed", "error", "passed", "skipped", "xfailed", "xpassed")


class TestRun:
    """The runs of pytest so far: the sum of their counts, and the commands that failed."""

    def __init__(self) -> None:
        """Start with no run."""
        self.counts: Counter[str] = Counter()
        self.failures: list[str] = []
        self._seconds = 0.0

    def run(self, *command: str, none_is_fine: bool = False) -> None:
        """Run a command, pass its output on, and add the counts of pytest's closing line."""
        print("+", *command, flush=True)
        with subprocess.Popen([sys.executable, "-m", *command], stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None, "a pipe was asked for"
            for line in process.stdout:
                print(line, end="", flush=True)
                self._count(line)
        fine = {0, NO_TESTS_COLLECTED} if none_is_fine else {0}
        if process.returncode not in fine:
            self.failures.append(f"exit code {process.returncode}: {' '.join(command)}")

    @property
    def failed(self) -> bool:
        """Whether a run failed; tests that all passed may still miss a branch or a budget."""
        return bool(self.failures)

    def _count(self, line: str) -> None:
        closing = CLOSING_LINE.match(line.rstrip())
        if closing is None:
            return
        self._seconds += float(closing[2])
        for number, outcome in COUNT.findall(closing[1]):
            self.counts[outcome.removesuffix("s")] += int(number)

    def closing_line(self) -> str:
        """Return the counts of all runs in the form of pytest's closing line."""
        outcomes = ", ".join(f"{self.counts[name]} {name}" for name in ORDER if self.counts[name])
        return f" {outcomes or 'no tests ran'} in {self._seconds:.2f}s ".center(100, "=")


def build_kubernetes() -> subprocess.Popen[bytes]:
    """Build the programs of the test Kubernetes and the images, behind the tests; nothing to do in most runs.

    A quarter of an hour where nothing is cached. What fails is built again, and told, before the tests that need it.
    """
    python = sys.executable
    orders = f"{python} tests/kubernetes/go_programs.py; {python} .ci/image.py"
    # As low as can be: the tests beside it have deadlines.
    command = ["nice", "-n", "19", "sh", "-c", orders]
    with Path("build/kubernetes.log").open("wb") as log:
        return subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)


def run_all(tests: TestRun) -> None:
    """Run every test that exists."""
    Path("build/coverage").mkdir(parents=True, exist_ok=True)
    with build_kubernetes() as building:
        run_without_kubernetes(tests)
        print("+ wait for the programs of the test Kubernetes (build/kubernetes.log)", flush=True)
        building.wait()
    tests.run("pytest", "-n", KUBERNETES_WORKERS, "-m", "kubernetes and not serial", "tests/kubernetes")
    tests.run("pytest", "-m", "serial", none_is_fine=True)


def run_without_kubernetes(tests: TestRun) -> None:
    """Run the tests that need no Kubernetes and judge no time."""
    pure = [path for path in PURE_TESTS if Path(path).is_dir()]
    tests.run("coverage", "erase")
    tests.run("coverage", "run", "-m", "pytest", "-n", PURE_WORKERS, "-m", "not serial", *pure)
    tests.run("coverage", "combine", "--quiet")
    tests.run("coverage", "report")
    ignored = [f"--ignore={path}" for path in pure]
    # A file always in one worker, in the order of tests/conftest.py: the files with the longest tests begin, and the
    # tests of a file share its brokers and its session of Spark.
    by_file = ("--dist", "loadfile", "--no-loadscope-reorder")
    tests.run(
        "pytest", "-n", WORKERS, *by_file, "-m", "not serial and not kubernetes and not spark", *ignored
    )
    # In processes of their own: the clusters of a session silence the log that other tests capture.
    folders = ("tests/spark", "tests/integration", "tests/observability", "tests/release")
    tests.run("pytest", "-n", PURE_WORKERS, *by_file, "-m", "spark and not serial", *folders)


def main(arguments: list[str]) -> int:
    """Run `all` or `fast`, or one run with the given arguments for pytest; 0 when everything passed."""
    kind, *further = arguments
    tests = TestRun()
    selection = ("-m", "not slow and not serial") if kind == "fast" else ()
    if further:
        tests.run("pytest", *selection, *further)
    elif kind == "fast":
        tests.run("pytest", "-n", WORKERS, *selection)
    else:
        run_all(tests)
    for failure in tests.failures:
        print("failed with", failure)
    print(tests.closing_line(), flush=True)
    return int(tests.failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
