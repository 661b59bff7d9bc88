"""The plugin that holds the tests to their budgets does fail a run."""

from __future__ import annotations

import pytest

import checkout
import time_budget

# The plugin measures time, so a test of it must let some pass.
SLOW_TEST = """
import threading

def test_waits():
    threading.Event().wait(0.2)
"""


@pytest.fixture
def folder(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """Give a folder of tests whose group `tests/unit` takes 0.2 seconds."""
    monkeypatch.setenv("PYTHONPATH", str(checkout.ROOT / "tests/plugins"))
    unit = pytester.mkdir("tests") / "unit"
    unit.mkdir()
    (unit / "test_slow.py").write_text(SLOW_TEST)
    return pytester


def run(folder: pytest.Pytester, minutes: float, *arguments: str) -> pytest.RunResult:
    """Run the folder with a budget for its group in a process of its own."""
    folder.makeini(f"[pytest]\ntime_budgets = unit = {minutes}\n")
    return folder.runpytest_subprocess("-p", "time_budget", "-p", "no:randomly", *arguments)


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [(), ("-n", "1")], ids=["alone", "in workers"])
def test_a_group_over_twice_its_budget_fails(folder: pytest.Pytester, arguments: tuple[str, ...]) -> None:
    """All tests pass, yet the run fails and names the group; the workers of a parallel run count too."""
    result = run(folder, 0.05 / 60, *arguments)

    assert result.ret == time_budget.OVER_BUDGET
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["unit *more than twice its budget"])


@pytest.mark.slow
def test_a_group_within_its_budget_passes(folder: pytest.Pytester) -> None:
    """The same tests pass with a budget that fits."""
    assert run(folder, 10).ret == pytest.ExitCode.OK


@pytest.mark.slow
def test_a_budget_of_another_form_is_refused(folder: pytest.Pytester) -> None:
    """A line that is not `folder = minutes` stops the run before any test."""
    folder.makeini("[pytest]\ntime_budgets = unit: soon\n")

    assert folder.runpytest_subprocess("-p", "time_budget").ret == pytest.ExitCode.USAGE_ERROR


@pytest.mark.parametrize(
    ("node_id", "group"),
    [
        ("tests/unit/log/test_segment.py::test_rolls", "unit"),
        ("tests/unit/api/bodies/test_frames.py::test_a[1/2]", "unit/api"),
        ("tests/other/test_x.py::test_y", None),
    ],
)
def test_the_longest_name_decides(node_id: str, group: str | None) -> None:
    """A budget of a folder wins over that of the folder around it."""
    assert time_budget.group_of(node_id, {"unit": 1.0, "unit/api": 1.0}) == group
