"""Tests that a proof runs: each must run and pass, and its counts and figures are in the report."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

import checkout

PASSED = """
def test_passed():
    import json, os
    from pathlib import Path
    Path(os.environ["FAIRLEAD_FIGURES"]).write_text(json.dumps({"load": {"lost": 0, "setting": os.environ["SETTING"]}}))
"""
SKIPPED = """
import pytest
def test_skipped():
    pytest.skip("a program is missing")
"""
FAILED = "def test_failed():\n    assert False\n"


@pytest.fixture(scope="module")
def proof_tests() -> ModuleType:
    """Load .ci/proof_tests.py as a module."""
    spec = importlib.util.spec_from_file_location("proof_tests", checkout.ROOT / ".ci/proof_tests.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("tests", "passed", "outcomes"),
    [
        (PASSED, True, {"passed": 1}),
        (PASSED + SKIPPED, False, {"passed": 1, "skipped": ["test_made.test_skipped"]}),
        (PASSED + FAILED, False, {"passed": 1, "failure": ["test_made.test_failed"]}),
        ("", False, {"passed": 0}),
    ],
    ids=["passed", "skipped", "failed", "none"],
)
def test_each_test_of_a_proof_must_pass(
    proof_tests: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    tests: str,
    passed: bool,
    outcomes: dict[str, object],
) -> None:
    """A proof fails if a test fails, is skipped, or is missing; the report has counts, names and figures."""
    (tmp_path / "test_made.py").write_text(tests)
    monkeypatch.chdir(tmp_path)
    proved, report = proof_tests.prove_tests("test_made.py", SETTING="kept")
    figures = {"load": {"lost": 0, "setting": "kept"}} if tests else {}

    assert proved is passed
    assert {**outcomes, "figures": figures}.items() <= report.items()
    assert (report["exit_code"] == 0) is ("test_failed" not in tests and bool(tests))
