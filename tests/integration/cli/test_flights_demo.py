"""`make demo` as a test: the flights of 2013 through a broker and two groups, checked against the file."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

DEMO = Path(__file__).parents[3] / "docs" / "tutorial" / "flights.py"


@pytest.mark.slow
def test_the_demo_ends_by_itself_with_the_right_numbers(shell_environment: dict[str, str]) -> None:
    """Sixteen carriers, the totals of the file, a killed member, rates, a curl line and the metrics address."""
    done = subprocess.run(
        [sys.executable, str(DEMO)],
        env=shell_environment,
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    assert "336,776 flights, 8,255 missing" in done.stdout
    assert "│ UA      │  58,665 │                      12.11 │" in done.stdout
    assert "a member of board is killed after" in done.stdout
    assert "group board counted 336,776 flights, each once" in done.stdout
    assert "group archive counted 336,776 flights, each once" in done.stdout
    assert "curl -H" in done.stdout
    assert "/metrics" in done.stdout
