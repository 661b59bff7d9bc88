"""Workers of a parallel run collect the same tests, whenever and with whatever hash seed each of them starts."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

import checkout


def collected(hash_seed: str) -> list[str]:
    """Collect every test in a process of its own."""
    command = (
        sys.executable,
        "-m",
        "pytest",
        "--collect-only",
        "-q",
        "-p",
        "no:randomly",
        "-p",
        "no:cacheprovider",
    )
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    output = subprocess.run(
        (*command, "tests"), cwd=checkout.ROOT, env=environment, check=True, capture_output=True, text=True
    ).stdout
    return [line for line in output.splitlines() if "::" in line]


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_names_of_tests_are_the_same_each_time() -> None:
    """No name holds a time, an address of memory or the order of a set: workers that differ run nothing at all."""
    # One after the other, so that both do not start within the same second.
    first, second = collected("1"), collected("2")

    assert len(first) > 1_000
    assert first == second
