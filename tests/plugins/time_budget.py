"""Reports the time of each group of tests and its budget in minutes, so that the growth of the suite is noticed.

A group is a folder below `tests/`, and its budget is in pyproject.toml (`time_budgets`); the longest matching name
decides. A budget counts the time of the group's tests, summed over the workers of a parallel run. A group over its
budget is reported and does not fail the run, because a test takes three times as long on a busy machine. The plugin is
loaded by tests/conftest.py and independent of the tests' subjects.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

INI_NAME = "time_budgets"
TESTS_FOLDER = "tests"
SECONDS_PER_MINUTE = 60.0


def parse_budgets(lines: Sequence[str]) -> dict[str, float]:
    """Parse `group = minutes` lines into seconds by group; raise `pytest.UsageError` for a line of any other form."""
    budgets = {}
    for line in lines:
        group, separator, minutes = line.partition("=")
        try:
            budgets[group.strip()] = float(minutes) * SECONDS_PER_MINUTE
        except ValueError:
            separator = ""
        if not separator:
            message = f"{INI_NAME}: {line!r} is not of the form 'folder = minutes'"
            raise pytest.UsageError(message)
    return budgets


def group_of(node_id: str, budgets: Mapping[str, float]) -> str | None:
    """Return the most specific group with a budget that a test belongs to; None without a budget."""
    parts = node_id.split("::", 1)[0].split("/")
    if parts[0] == TESTS_FOLDER:
        parts = parts[1:]
    candidates = ("/".join(parts[:length]) for length in range(len(parts), 0, -1))
    return next((name for name in candidates if name in budgets), None)


class TimeBudget:
    """Seconds of each group, and their report."""

    def __init__(self, budgets: Mapping[str, float]) -> None:
        """Start with zero seconds for each group; `budgets` maps each group to its allowed seconds."""
        self._budgets = budgets
        self._spent_seconds: defaultdict[str, float] = defaultdict(float)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Add set-up, call and tear-down of a test, even when another worker ran it."""
        group = group_of(report.nodeid, self._budgets)
        if group is not None:
            self._spent_seconds[group] += report.duration

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print the time of each group next to its budget when the time is at least a tenth of the budget."""
        lines = []
        for group, spent in sorted(self._spent_seconds.items()):
            budget = self._budgets[group]
            if spent < budget / 10:
                continue
            verdict = "over" if spent > budget else "ok"
            lines.append(f"{group:24} {spent:7.1f} s of {budget:5.0f} s  {verdict}")
        if lines:
            terminalreporter.section("time budgets")
            for line in lines:
                terminalreporter.write_line(line)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare the ini option of the budgets."""
    parser.addini(INI_NAME, "lines of 'folder below tests = minutes'", type="linelist", default=[])


def pytest_configure(config: pytest.Config) -> None:
    """Register the budget in the process that receives every report; a worker receives only its own reports."""
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(TimeBudget(parse_budgets(config.getini(INI_NAME))), "time-budget")
