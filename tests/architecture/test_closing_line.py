"""The runner of the tests adds up what its runs of pytest say, and hides no failure."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, Any

import pytest

import checkout

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def runner() -> Any:
    """Load .ci/test.py as a module."""
    spec = importlib.util.spec_from_file_location("ci_test", checkout.ROOT / ".ci/test.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.TestRun()


def written(folder: Path, text: str) -> str:
    """Write a test file that a run can be pointed at."""
    path = folder / "test_written.py"
    path.write_text(text)
    return str(path)


def test_counts_of_several_runs_are_added(runner: Any, tmp_path: Path) -> None:
    """Two runs of a passing, a failing and a skipped test close as one line, and the failure stays."""
    text = "import pytest\ndef test_a(): pass\ndef test_b(): assert 0\ndef test_c(): pytest.skip('so')\n"
    for _ in range(2):
        runner.run("pytest", "-c", "/dev/null", "-p", "no:cacheprovider", written(tmp_path, text))

    assert runner.failed
    assert " 2 failed, 2 passed, 2 skipped in " in runner.closing_line()


def test_a_failed_run_is_named_though_its_tests_passed(runner: Any, tmp_path: Path) -> None:
    """What fails without a failing test, such as a missed branch, is said by its command and exit code."""
    path = written(tmp_path, "import atexit, os\ndef test_a(): atexit.register(os._exit, 7)\n")
    options = ("-c", "/dev/null", "-p", "no:cacheprovider", "-p", "no:faulthandler")
    runner.run("pytest", *options, path)

    assert " 1 passed in " in runner.closing_line()
    assert runner.failures == [f"exit code 7: pytest {' '.join(options)} {path}"]


def test_a_run_that_selects_nothing_fails_unless_that_is_fine(runner: Any, tmp_path: Path) -> None:
    """Collecting no test is a failure, but for a selection that may be empty."""
    path = written(tmp_path, "")
    runner.run("pytest", "-c", "/dev/null", "-p", "no:cacheprovider", path, none_is_fine=True)
    fine = runner.failed
    runner.run("pytest", "-c", "/dev/null", "-p", "no:cacheprovider", path)

    assert not fine
    assert runner.failed
