"""Results of tests in the integration suites of clients, and the report on a suite."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class Outcome(StrEnum):
    """Outcome of one test."""

    PASSED = "passed"
    SKIPPED = "skipped"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Result:
    """Result of one test."""

    name: str
    outcome: Outcome
    message: str = ""
    """Reason of a skipped test, or the first line about a failure."""


def report(suite: str, version: str, results: Sequence[Result], allowed: dict[str, str]) -> dict[str, Any]:
    """Return the report on a suite. `allowed`: reason for each test that may fail."""

    def of(outcome: Outcome) -> list[Result]:
        return [each for each in results if each.outcome is outcome]

    passed = {each.name for each in of(Outcome.PASSED)}
    return {
        "suite": suite,
        "version": version,
        "passed": len(passed),
        "skipped": {each.name: each.message for each in of(Outcome.SKIPPED)},
        "failed": {
            each.name: {"message": each.message, "reason": allowed.get(each.name)}
            for each in of(Outcome.FAILED)
        },
        "passed_unexpectedly": sorted(allowed.keys() & passed),
    }


def is_good(found: dict[str, Any]) -> bool:
    """Return whether tests of a suite passed, every failure has a reason, and no test with a reason passed."""
    reasons = [each["reason"] for each in found["failed"].values()]
    return bool(found["passed"]) and None not in reasons and not found["passed_unexpectedly"]
