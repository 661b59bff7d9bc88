"""A short mutation fuzz of the leader's validation; `batch_mutations.py` accepts larger counts."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

PROGRAM = Path(__file__).with_name("batch_mutations.py")
MUTANTS = 2_000
SEALED_SHARE_MIN = 0.9
REACHED_SHARES_MIN = {
    "sizes": 1.0,
    "checksum": 0.95,
    "header": 0.9,
    "declared size": 0.7,
    "number of records": 0.7,
    "opening": 0.7,
    "Arrow metadata": 0.65,
    "Arrow reading": 0.3,
    "Arrow validation": 0.3,
    "nulls": 0.15,
    "number of headers": 0.15,
    "timestamps": 0.15,
    "window": 0.1,
}
"""Minimum share of mutants that reach each check, so that the fuzz tests every check."""


def mutate(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the mutations in a separate process, which may crash."""
    command = [sys.executable, str(PROGRAM), "--mutants", str(MUTANTS), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=100)


@pytest.fixture(scope="module")
def report() -> dict[str, Any]:
    """Run the mutations and return their report; fail if a signal killed the process."""
    finished = mutate("--seed", "1")
    assert finished.returncode in (0, 1), f"the interpreter died of hostile bytes: {finished.stderr[-2000:]}"
    loaded: dict[str, Any] = json.loads(finished.stdout)
    return loaded


def test_every_mutant_is_refused_by_a_problem_or_sound(
    report: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    """A mutated batch is refused with a problem, or is valid and survives a round trip."""
    shares = ", ".join(f"{check} {share:.1%}" for check, share in report["reached"].items())
    with capsys.disabled():
        sys.stdout.write(
            f"\n{report['mutants']} mutants, {report['sealed']:.1%} resealed; reached: {shares}\n"
        )

    assert report["broken"] is None
    assert report["mutants"] == MUTANTS
    assert report["refused"]["accepted"] > 0
    assert min(report["refused"][f"number of {what}"] for what in ("records", "headers")) > 0


def test_every_mutant_of_a_source_is_refused_by_a_problem_or_sound() -> None:
    """A mutated batch in the answer of a link's source is refused with a problem, or every reader can decode it."""
    finished = mutate("--seed", "2", "--copied")
    assert finished.returncode in (0, 1), f"the interpreter died of hostile bytes: {finished.stderr[-2000:]}"
    found = json.loads(finished.stdout)

    assert found["broken"] is None
    assert found["mutants"] == MUTANTS
    assert found["refused"]["accepted"] > 0


@pytest.mark.slow
def test_the_mutants_get_past_the_checksum(report: dict[str, Any]) -> None:
    """Mutated batches have a valid checksum in nine of ten cases and reach every check."""
    assert report["sealed"] >= SEALED_SHARE_MIN
    assert {
        check: share for check, share in report["reached"].items() if share < REACHED_SHARES_MIN[check]
    } == {}


def test_leaving_validation_out_is_noticed() -> None:
    """When Arrow's full validation is skipped, some batch violates the guarantee or crashes the run."""
    finished = mutate("--seed", "1", "--without-validation")
    found = finished.returncode == 1 and "ArrowInvalid" in json.loads(finished.stdout)["broken"]["error"]
    died = finished.returncode < 0

    assert found or died
