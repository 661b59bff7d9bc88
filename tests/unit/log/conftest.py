"""Fixtures of the log's tests: batches, a data directory, and a disk that can fail."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from log_kit import BatchMaker, FaultyStorage, LogBox


@pytest.fixture
def make() -> BatchMaker:
    """Return a maker of stamped batches."""
    return BatchMaker()


@pytest.fixture
def box(tmp_path: Path) -> Iterator[LogBox]:
    """Yield a data directory with one partition, whose log is killed after the test."""
    box = LogBox(tmp_path / "data")
    yield box
    box.kill()


@pytest.fixture
def faults(box: LogBox) -> FaultyStorage:
    """Return a disk that can fail and that contains the data directory."""
    storage = FaultyStorage()
    box.storage = storage
    return storage
