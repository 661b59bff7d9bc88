"""A short mutation fuzz of whole requests; `request_mutations.py` accepts larger counts."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).with_name("request_mutations.py")
MUTANTS = 1_500


@pytest.mark.slow
def test_every_request_is_answered_and_stored_records_stay() -> None:
    """A mutated request is answered with success or a catalogued problem, and other records are read back unchanged."""
    command = [sys.executable, str(PROGRAM), "--mutants", str(MUTANTS), "--seed", "1"]
    finished = subprocess.run(command, capture_output=True, text=True, check=False, timeout=100)
    assert finished.returncode in (0, 1), f"the broker died of a request: {finished.stderr[-2000:]}"
    report = json.loads(finished.stdout)

    assert report["broken"] is None
    assert report["mutants"] == MUTANTS
    # Enough mutants are stored and read, so that the fuzz tests these paths too.
    assert report["statuses"]["200"] > MUTANTS // 10
