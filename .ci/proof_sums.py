"""Adds the counts of several runs of one proof, so that a proof of many hours can be split over several runs.

Used by `prove.py`. A series contains the report of each run, with its commit, and the sum of the counts of all runs.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final

from proof_record import commit

LEFT_OUT: Final = ("seed", "kills_wanted", "inputs_wanted", "kills_a_second", "inputs_a_second", "folder")
"""Entries of a report that describe a single run, which the sum leaves out."""
EQUAL: Final = ("clusters", "memory_bytes_bound", "apis", "versions")
"""Entries with the same number in every run."""
LARGEST: Final = ("memory_bytes_first", "memory_bytes_most", "slowest_answer_ms")
"""Entries for which the sum contains the largest number of all reports instead of the total."""

Series = dict[str, Any]
"""Requested and reached count, the sum of all reports, and the reports."""


def continued(
    earlier: Series | None, counted: str, wanted: int, run: Callable[[int], tuple[int, dict[str, Any]]]
) -> tuple[bool, Series]:
    """Run a program for the part of a count that earlier runs did not reach; return whether all runs passed.

    `earlier`: the counts of the earlier record, which are dropped if they contain no runs. `counted`: the entry of a
    report that is counted. `run` receives the remaining count, and returns the exit code and the report.
    """
    runs = list((earlier or {}).get("runs", ()))
    remaining = wanted - sum(each[counted] for each in runs)
    if remaining > 0:
        about: Series = {"commit": commit(), "begun_at": datetime.now(UTC).isoformat(timespec="seconds")}
        begun = time.monotonic()
        code, report = run(remaining)
        about["seconds"] = round(time.monotonic() - begun, 1)
        runs.append({**about, "passed": code == 0, counted: 0, **report})
    totals = total(runs)
    series = {"wanted": wanted, "reached": totals[counted], "totals": totals, "runs": runs}
    return all(each["passed"] for each in runs), series


def total(reports: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the sums of all numbers in reports, by name, and of the numbers in tables inside the reports."""
    names = dict.fromkeys(name for report in reports for name in report)
    found = {name: [report[name] for report in reports if name in report] for name in names}
    return {name: _sum(name, values) for name, values in found.items() if _is_summed(name, values[0])}


def _is_summed(name: str, value: object) -> bool:
    return (
        name not in LEFT_OUT and isinstance(value, (int, float, dict, list)) and not isinstance(value, bool)
    )


def _sum(name: str, values: list[Any]) -> Any:
    if isinstance(values[0], dict):
        return total(values)
    if name in (*EQUAL, *LARGEST):
        return max(values)
    if isinstance(values[0], list):
        return [each for value in values for each in value]
    return round(sum(values), 1)
