"""Runs of programs and tests for the proofs, with the figures and outcomes in their reports. Used by `prove.py`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Final
from xml.etree import ElementTree as ET

NOT_PASSED: Final = ("failure", "error", "skipped")


def run_program(program: str, *arguments: str) -> tuple[int, dict[str, Any]]:
    """Run a program of the tests; return its exit code and its report."""
    finished = subprocess.run(
        [sys.executable, program, *arguments], stdout=subprocess.PIPE, text=True, check=False
    )
    try:
        report: dict[str, Any] = json.loads(finished.stdout, strict=False)
    except ValueError:
        report = {"ended_with": finished.returncode, "said": finished.stdout[-2000:]}
    return finished.returncode, report


def prove_tests(*arguments: str, **settings: str) -> tuple[bool, dict[str, Any]]:
    """Run tests that prove a guarantee; return whether every test has run and passed, with counts and figures.

    A skipped test proves nothing, although pytest then ends with 0, so it fails the proof.
    """
    code, report = run_tests(*arguments, with_figures=True, **settings)
    passed = code == 0 and report["passed"] > 0 and not any(each in report for each in NOT_PASSED)
    return passed, {"exit_code": code, **report}


def run_figures(*arguments: str, **settings: str) -> tuple[int, dict[str, Any]]:
    """Run tests with full counts; return the exit code and the figures that the tests wrote."""
    command = [sys.executable, "-m", "pytest", *arguments, "-o", "time_budgets="]
    with tempfile.TemporaryDirectory() as folder:
        figures = Path(folder) / "figures.json"
        environment = {**os.environ, **settings, "FAIRLEAD_FIGURES": str(figures)}
        code = subprocess.run(command, check=False, env=environment).returncode
        found: dict[str, Any] = json.loads(figures.read_text()) if figures.exists() else {}
    return code, found


def run_tests(*arguments: str, with_figures: bool = False, **settings: str) -> tuple[int, dict[str, Any]]:
    """Run tests; return the exit code, the number of passed tests, and the names of the other tests by outcome.

    `with_figures`: also return the figures that the tests wrote; `settings`: environment variables of the tests.
    """
    with tempfile.TemporaryDirectory() as folder:
        results = Path(folder) / "results.xml"
        code, figures = run_figures("-q", *arguments, f"--junit-xml={results}", **settings)
        cases = list(ET.parse(results).iter("testcase")) if results.exists() else []  # noqa: S314 - pytest has just written the file
    counts: dict[str, Any] = {"passed": 0}
    for case in cases:
        outcome = next((each for each in NOT_PASSED if case.find(each) is not None), None)
        if outcome is None:
            counts["passed"] += 1
        else:
            counts.setdefault(outcome, []).append(f"{case.get('classname')}.{case.get('name')}")
    return code, {**counts, "figures": figures} if with_figures else counts
