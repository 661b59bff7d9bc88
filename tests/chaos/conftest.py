"""The tests of this folder run clusters of real processes, and build etcd first if they need it.

`make chaos CHAOS=--scenarios` runs the tests that are marked `scenario`.
"""

from __future__ import annotations

from pathlib import Path

import pytest

FOLDER = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of this folder as slow."""
    for item in items:
        if item.path.is_relative_to(FOLDER):
            item.add_marker(pytest.mark.slow)
