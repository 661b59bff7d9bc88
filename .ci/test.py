"""Runs the tests in the order the machine needs, and closes with one line for all of them.

Four runs of pytest make `all`: the pure rooms in one process with branch coverage (fails below 100%), everything
else two at a time, then what needs a Kubernetes three at a time, then alone the tests that judge time. What the third
needs is built while the first two run. A few tests that fail in `all` are run once more, alone, and named before the
closing line: what fails twice has failed. `fast` is one run without the slow tests. Further arguments go to pytest, in
one run without coverage. Called by the Makefile.
"""

from __future__ import annotations

import json
import re
import shutil
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
WORKERS = "2"
# They wait for leases, elections and probes as long as they compute.
KUBERNETES_WORKERS = "3"
TESTS_FAILED = 1
NO_TESTS_COLLECTED = 5
# Tests of all runs together that may fail once and pass alone: about one in a thousand. More is not chance.
SECOND_CHANCES = 6
CACHES = Path("build/pytest")
CLOSING_LINE = re.compile(r"^=+ (.*) in ([\d.]+)s.*=+$")
COUNT = re.compile(r"(\d+) (passed|failed|errors?|skipped|xfailed|xpassed|deselected|warnings?)")
ORDER = ("failed", "error", "passed", "rerun", "skipped", "xfailed", "xpassed")


class TestRun:
    """The runs of pytest so far: their counts added up, and which of them were not good."""

    def __init__(self, second_chances: int = 0) -> None:
        """Start with nothing run; `second_chances` is how many failed tests may be run once more in all."""
        self.counts: Counter[str] = Counter()
        self.failures: list[str] = []
        self.rerun: list[str] = []
        self._second_chances = second_chances
        self._seconds = 0.0

    def run(self, *command: str, none_is_fine: bool = False) -> None:
        """Run a command and count what its closing line says; tests that failed may get a second chance."""
        before = self.counts.copy()
        cache = CACHES / str(len(list(CACHES.glob("*"))))
        code = self._run(*command, *cached_in(cache, command))
        failed = failed_tests(cache) if code == TESTS_FAILED else []
        if 0 < len(failed) <= self._second_chances - len(self.rerun):
            self.rerun += failed
            broken = self.counts - before
            # What the second run says of them is what counts.
            self.counts -= Counter(failed=broken["failed"], error=broken["error"])
            self.counts["rerun"] += len(failed)
            code = self._run(*alone(command), "--last-failed", *cached_in(cache, command))
        fine = {0, NO_TESTS_COLLECTED} if none_is_fine else {0}
        if code not in fine:
            self.failures.append(f"exit code {code}: {' '.join(command)}")

    def _run(self, *command: str) -> int:
        """Run a command, pass its output on as it comes; its exit code."""
        print("+", *command, flush=True)
        with subprocess.Popen([sys.executable, "-m", *command], stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None, "a pipe was asked for"
            for line in process.stdout:
                print(line, end="", flush=True)
                self._count(line)
        return process.returncode

    @property
    def failed(self) -> bool:
        """Whether any run was not good; tests that all passed may still miss a branch or a budget."""
        return bool(self.failures)

    def _count(self, line: str) -> None:
        closing = CLOSING_LINE.match(line.rstrip())
        if closing is None:
            return
        self._seconds += float(closing[2])
        for number, outcome in COUNT.findall(closing[1]):
            self.counts[outcome.removesuffix("s")] += int(number)

    def closing_line(self) -> str:
        """Say in pytest's form what all runs did together."""
        outcomes = ", ".join(f"{self.counts[name]} {name}" for name in ORDER if self.counts[name])
        return f" {outcomes or 'no tests ran'} in {self._seconds:.2f}s ".center(100, "=")


def cached_in(cache: Path, command: tuple[str, ...]) -> tuple[str, ...]:
    """Let a run of pytest note what failed in a folder of its own; nothing for another command."""
    return ("-o", f"cache_dir={cache.resolve()}") if "pytest" in command else ()


def failed_tests(cache: Path) -> list[str]:
    """Name the tests, or the files that could not be collected, that failed in the run noted in `cache`."""
    noted = cache / "v/cache/lastfailed"
    return sorted(json.loads(noted.read_text())) if noted.exists() else []


def alone(command: tuple[str, ...]) -> tuple[str, ...]:
    """Turn a run into one of one test at a time, whose coverage is added to what there is."""
    if command[:2] == ("coverage", "run"):
        command = ("coverage", "run", "--append", *command[2:])
    return (*command, "-n", "0")


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
    tests.run("coverage", "run", "-m", "pytest", "-m", "not serial", *pure)
    tests.run("coverage", "report")
    ignored = [f"--ignore={path}" for path in pure]
    tests.run("pytest", "-n", WORKERS, "-m", "not serial and not kubernetes and not spark", *ignored)
    # A file always in one worker: one session of Spark for each of both, and what a file's tests share.
    folders = ("tests/spark", "tests/integration", "tests/observability", "tests/release")
    tests.run("pytest", "-n", WORKERS, "--dist", "loadfile", "-m", "spark and not serial", *folders)


def main(arguments: list[str]) -> int:
    """Run `all` or `fast`, or one run with the given arguments for pytest; 0 when everything passed."""
    kind, *further = arguments
    shutil.rmtree(CACHES, ignore_errors=True)
    tests = TestRun(SECOND_CHANCES if kind == "all" and not further else 0)
    selection = ("-m", "not slow and not serial") if kind == "fast" else ()
    if further:
        tests.run("pytest", *selection, *further)
    elif kind == "fast":
        tests.run("pytest", "-n", WORKERS, *selection)
    else:
        run_all(tests)
    for test in tests.rerun:
        print("run a second time:", test)
    for failure in tests.failures:
        print("failed with", failure)
    print(tests.closing_line(), flush=True)
    return int(tests.failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
