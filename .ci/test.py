"""Runs the tests in an order that fits the machine, and prints one closing line for all tests.

`all` first runs the tests of the pure packages with branch coverage, which fail below 100%. The tests of whole systems
run next. Three groups then run at the same time: Kubernetes tests, Spark tests, and the generated calls together with
the demo. Tests that measure time run last, while nothing else runs. The programs of the test Kubernetes are built in
the background during the first runs. `fast` is one run without the slow tests. Other arguments are passed to pytest,
for one run without coverage. The Makefile calls this program.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Lock

PURE_PACKAGES = (
    "access",
    "api",
    "compaction",
    "controller",
    "credentials",
    "groups",
    "links",
    "operator/plan",
    "operator/render",
    "producers",
    "quotas",
    "registry",
    "replication",
    "spark",
    "transactions",
)
PURE_TESTS = tuple(f"tests/unit/{package}" for package in PURE_PACKAGES)
PURE_WORKERS = "2"
# Folders in which every test has a mark named after the folder; they take a quarter of the collection time.
SPARK_TESTS = "tests/spark"
KUBERNETES_TESTS = "tests/kubernetes"
# The generated calls run in one process, since every process would generate Schemathesis' cases, which takes ten
# seconds.
MADE_UP_CALLS = "tests/openapi"
# The demo runs a broker, two groups and Spark, which keep both cores busy for half a minute.
DEMO = "tests/integration/cli/test_flights_demo.py"
# `make check` runs the tests that only read the sources.
STATIC_TESTS = ("tests/architecture", "tests/typing")
# Tests of whole systems spend half of their time waiting for leases and processes, and Kubernetes tests wait for
# elections and probes. Two cores can therefore run four tests at a time. Each Spark worker starts a Java process.
WORKERS = "4"
KUBERNETES_WORKERS = "2"
SPARK_WORKERS = "1"
CLOSING_LINE = re.compile(r"^=+ (.*) in [\d.]+s.*=+$")
COUNT = re.compile(r"(\d+) (passed|failed|errors?|skipped|xfailed|xpassed|deselected|warnings?)")
Lane = Sequence[tuple[str, ...]]
"""Commands, each of which starts when the previous one has ended."""
ORDER = ("failed", "error", "passed", "skipped", "xfailed", "xpassed")


class TestRun:
    """Summary of all runs of pytest so far: the sums of their counts, and the commands that failed."""

    def __init__(self) -> None:
        """Create an empty summary."""
        self.counts: Counter[str] = Counter()
        self.failures: list[str] = []
        self._begun = time.monotonic()
        self._lock = Lock()

    def run(self, *command: str, quiet: bool = False) -> None:
        """Run a command, print its output, and add up the counts in pytest's closing line.

        The output is printed as it is written, or when the command ends if `quiet`.
        """
        print("+", *command, flush=True)
        lines: list[str] = []
        with subprocess.Popen([sys.executable, "-m", *command], stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None, "a pipe was asked for"
            for line in process.stdout:
                lines.append(line)
                if not quiet:
                    print(line, end="", flush=True)
        with self._lock:
            if quiet:
                print("+", *command, "has ended:", flush=True)
                print(*lines, sep="", end="", flush=True)
            for line in lines:
                self._count(line)
            if process.returncode:
                self.failures.append(f"exit code {process.returncode}: {' '.join(command)}")

    def run_together(self, *lanes: Lane) -> None:
        """Run lanes concurrently. Each lane runs its commands in order, and prints the output of each when it ends."""

        def run_lane(lane: Lane) -> None:
            for command in lane:
                self.run(*command, quiet=True)

        with ThreadPoolExecutor(len(lanes)) as threads:
            for end in [threads.submit(run_lane, lane) for lane in lanes]:
                end.result()

    @property
    def failed(self) -> bool:
        """Whether a run failed; a run in which all tests pass also fails if a branch is not covered."""
        return bool(self.failures)

    def _count(self, line: str) -> None:
        closing = CLOSING_LINE.match(line.rstrip())
        if closing is None:
            return
        for number, outcome in COUNT.findall(closing[1]):
            self.counts[outcome.removesuffix("s")] += int(number)

    def closing_line(self) -> str:
        """Return the counts of all runs in the format of pytest's closing line."""
        outcomes = ", ".join(f"{self.counts[name]} {name}" for name in ORDER if self.counts[name])
        seconds = time.monotonic() - self._begun
        return f" {outcomes or 'no tests ran'} in {seconds:.2f}s ".center(100, "=")


def build_kubernetes() -> subprocess.Popen[bytes]:
    """Build the programs of the test Kubernetes and the images in the background, unless they are already built.

    Without cached files, the build takes a quarter of an hour. After a failed build, the tests that need its result
    build again and report the error.
    """
    python = sys.executable
    orders = f"{python} tests/kubernetes/box/go_programs.py; {python} .ci/image.py fairlead etcd"
    # The build has the lowest priority, since the tests that run at the same time have deadlines.
    command = ["nice", "-n", "19", "sh", "-c", orders]
    with Path("build/kubernetes.log").open("wb") as log:
        return subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)


def serial_files() -> list[str]:
    """Return the files that contain tests marked `serial`, so that pytest collects no other file."""
    return sorted(str(path) for path in Path("tests").rglob("test_*.py") if "mark.serial" in path.read_text())


def run_all(tests: TestRun) -> None:
    """Run every test that exists."""
    Path("build/coverage").mkdir(parents=True, exist_ok=True)
    # All tests of a file run in one worker, so that they share brokers and the Spark session. Files are started in the
    # order of tests/conftest.py, which puts the files with the longest tests first.
    by_file = ("--dist", "loadfile", "--no-loadscope-reorder")
    with build_kubernetes() as building:
        tests.run("coverage", "erase")
        tests.run("coverage", "run", "-m", "pytest", "-n", PURE_WORKERS, "-m", "not serial", *PURE_TESTS)
        later = (MADE_UP_CALLS, DEMO, SPARK_TESTS, KUBERNETES_TESTS)
        ignored = [f"--ignore={path}" for path in (*PURE_TESTS, *STATIC_TESTS, *later)]

        tests.run("pytest", "-n", WORKERS, *by_file, "-m", "not serial", *ignored)
        print("+ wait for the programs of the test Kubernetes (build/kubernetes.log)", flush=True)
        building.wait()
    # These groups of tests run at the same time, but only after the tests of whole systems: with all workers on two
    # cores, tests would exceed their deadlines.
    tests.run_together(
        [("pytest", "-n", KUBERNETES_WORKERS, "-m", "not serial", KUBERNETES_TESTS)],
        # Spark tests run in a pytest process of their own, because their session-scoped clusters suppress logs that
        # other tests capture.
        [("pytest", "-n", SPARK_WORKERS, *by_file, "-m", "not serial", SPARK_TESTS)],
        [("pytest", MADE_UP_CALLS, DEMO)],
        # The coverage report of the pure packages takes seconds on one core, and has no deadline.
        [("coverage", "combine", "--quiet"), ("coverage", "report")],
    )
    # Scenarios are excluded by their marker, because pytest would run the scenarios of a named file.
    tests.run("pytest", "-m", "serial and not scenario", *serial_files())


def main(arguments: list[str]) -> int:
    """Run `all` or `fast`, or one run with the given arguments for pytest; return 0 if every run passed."""
    kind, *further = arguments
    # Bytecode is cached, since tests start many Python processes and pytest compiles every test with its own
    # assertions.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    os.environ["PYTHONPYCACHEPREFIX"] = str(Path("build/bytecode").resolve())
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
