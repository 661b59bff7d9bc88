"""What the tests of the log are handed: batches, a data directory, and a disk that can fail."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from log_kit import BatchMaker, FaultyStorage, LogBox


@pytest.fixture
def make() -> BatchMaker:
    """Make stamped batches."""
    return BatchMaker()


@pytest.fixture
def box(tmp_path: Path) -> Iterator[LogBox]:
    """Hold a data directory with one partition."""
    box = LogBox(tmp_path / "data")
    yield box
    box.kill()


@pytest.fixture
def faults(box: LogBox) -> FaultyStorage:
    """Put a disk that can fail under the data directory."""
    storage = FaultyStorage()
    box.storage = storage
    return storage
