"""The runner of the tests adds up what its runs of pytest say, hides no failure, and names what failed once."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, Any

import pytest

import checkout

if TYPE_CHECKING:
    from pathlib import Path


# Fails the first time, and passes wherever the mark that it left is found.
FAILS_ONCE = """
import pathlib
def test_once():
    mark = pathlib.Path(__file__).with_name("mark")
    seen = mark.exists()
    mark.touch()
    assert seen
def test_good(): pass
"""


@pytest.fixture
def program(tmp_path: Path) -> Any:
    """Load .ci/test.py as a module, which keeps its notes in a folder of the test."""
    spec = importlib.util.spec_from_file_location("ci_test", checkout.ROOT / ".ci/test.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    vars(module)["CACHES"] = tmp_path / "caches"
    return module


@pytest.fixture
def runner(program: Any) -> Any:
    """Give a runner that runs nothing twice."""
    return program.TestRun()


def written(folder: Path, text: str) -> str:
    """Write a test file that a run can be pointed at."""
    path = folder / "test_written.py"
    path.write_text(text)
    return str(path)


@pytest.mark.slow
def test_counts_of_several_runs_are_added(runner: Any, tmp_path: Path) -> None:
    """Two runs of a passing, a failing and a skipped test close as one line, and the failure stays."""
    text = "import pytest\ndef test_a(): pass\ndef test_b(): assert 0\ndef test_c(): pytest.skip('so')\n"
    for _ in range(2):
        runner.run("pytest", "-c", "/dev/null", "-p", "no:cacheprovider", written(tmp_path, text))

    assert runner.failed
    assert " 2 failed, 2 passed, 2 skipped in " in runner.closing_line()


@pytest.mark.slow
def test_a_failed_run_is_named_though_its_tests_passed(runner: Any, tmp_path: Path) -> None:
    """What fails without a failing test, such as a missed branch, is said by its command and exit code."""
    path = written(tmp_path, "import atexit, os\ndef test_a(): atexit.register(os._exit, 7)\n")
    options = ("-c", "/dev/null", "-p", "no:cacheprovider", "-p", "no:faulthandler")
    runner.run("pytest", *options, path)

    assert " 1 passed in " in runner.closing_line()
    assert runner.failures == [f"exit code 7: pytest {' '.join(options)} {path}"]


@pytest.mark.slow
def test_a_run_that_selects_nothing_fails_unless_that_is_fine(runner: Any, tmp_path: Path) -> None:
    """Collecting no test is a failure, but for a selection that may be empty."""
    path = written(tmp_path, "")
    runner.run("pytest", "-c", "/dev/null", "-p", "no:cacheprovider", path, none_is_fine=True)
    fine = runner.failed
    runner.run("pytest", "-c", "/dev/null", "-p", "no:cacheprovider", path)

    assert not fine
    assert runner.failed


@pytest.mark.slow
@pytest.mark.parametrize(
    "before", [("pytest",), ("coverage", "run", "-m", "pytest")], ids=["plain", "coverage"]
)
def test_a_test_that_passes_alone_is_named(
    program: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: tuple[str, ...]
) -> None:
    """A test that fails beside others and passes alone is counted as passed, and said to have run twice."""
    monkeypatch.setenv("COVERAGE_FILE", str(tmp_path / "coverage"))
    runner = program.TestRun(second_chances=1)
    path = written(tmp_path, FAILS_ONCE)
    runner.run(*before, "-c", "/dev/null", "--rootdir", str(tmp_path), "-n", "1", path)

    assert runner.rerun == ["test_written.py::test_once"]
    assert not runner.failed
    assert " 2 passed, 1 rerun in " in runner.closing_line()


@pytest.mark.slow
def test_what_fails_twice_has_failed(program: Any, tmp_path: Path) -> None:
    """A test that fails again when it runs alone fails the run, and is counted once."""
    runner = program.TestRun(second_chances=1)
    path = written(tmp_path, "def test_a(): assert 0\ndef test_b(): pass\n")
    runner.run("pytest", "-c", "/dev/null", "--rootdir", str(tmp_path), path)

    assert runner.failed
    assert " 1 failed, 1 passed, 1 rerun in " in runner.closing_line()


@pytest.mark.slow
def test_second_chances_are_those_of_all_runs(program: Any, tmp_path: Path) -> None:
    """More failures than there are second chances left are not chance: nothing is run again."""
    runner = program.TestRun(second_chances=1)
    options = ("-c", "/dev/null", "--rootdir", str(tmp_path))
    runner.run("pytest", *options, written(tmp_path, FAILS_ONCE))
    (tmp_path / "mark").unlink()
    runner.run("pytest", *options, written(tmp_path, FAILS_ONCE))

    assert runner.failed
    assert " 1 failed, 3 passed, 1 rerun in " in runner.closing_line()
