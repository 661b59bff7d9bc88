"""Short searches for wrong decisions and accepted forgeries (V4, V5); `access_searches.py` takes other counts."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).with_name("access_searches.py")


@pytest.mark.parametrize(
    ("search", "count", "outcomes"),
    [
        ("rule-sets", 1000, {"allowed", "denied", "allowed prefixes"}),
        ("api-tokens", 5000, {"refused", "malformed", "the same token"}),
        ("signed-tokens", 1500, {"refused", "another form", "the same token"}),
        ("headers", 1000, {"401"}),
    ],
)
def test_a_search_finds_nothing(search: str, count: int, outcomes: set[str]) -> None:
    """Random rule sets are decided as by a naive walk, and no mutation of a valid token or header is accepted."""
    command = [sys.executable, str(PROGRAM), search, "--count", str(count), "--seed", "1"]
    finished = subprocess.run(command, capture_output=True, text=True, check=False, timeout=100)
    assert finished.returncode in (0, 1), finished.stderr[-2000:]
    report = json.loads(finished.stdout)

    assert report["found"] is None
    assert outcomes <= report["outcomes"].keys()
