"""Whole brokers, server and SDK keep their guarantees in a world on virtual time.

A search runs in a separate process, because it replaces the parts below the brokers and fixes the hash seed, without
which a seed would not determine a world.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SEED = 15
"""Seed of a short world, in which a broker is killed and the coordination store is unreachable for a while.

`make sim` and `make prove` run more worlds, and run some worlds twice to check that both runs are equal.
"""


def run_worlds(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the search as `make sim` does."""
    return subprocess.run(
        [sys.executable, "-m", "simulator.search", "--brokers", "--seconds", "600", *arguments],
        cwd=Path(__file__).parent,
        env={**os.environ, "PYTHONHASHSEED": "0", "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.slow
def test_no_world_breaks_a_promise() -> None:
    """Every guarantee holds during the storm, at rest, and for a second read from the beginning."""
    done = run_worlds("--seed", str(SEED), "--worlds", "1")

    assert done.returncode == 0, done.stdout + done.stderr
    assert "acknowledged" in done.stdout
    assert "fault kill" in done.stdout
