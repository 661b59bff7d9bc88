"""Fixtures of the log's tests: batches, a data directory, and a disk that can fail."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest

from log_kit import BatchMaker, FaultyStorage, LogBox

MEMORY: Final = Path("/dev/shm")
MEMORY_BYTES: Final = 32 << 20
"""Free space that a search needs in `MEMORY`, in bytes."""


@pytest.fixture(scope="session")
def memory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[], Path]]:
    """Yield a function that makes empty folders in memory if there is room, for searches that do not test the disk.

    A search of 40 examples waits 20 s for an idle disk, and more than a minute for a busy disk.
    """
    has_room = MEMORY.is_dir() and shutil.disk_usage(MEMORY).free >= MEMORY_BYTES
    root = Path(tempfile.mkdtemp(dir=MEMORY)) if has_room else tmp_path_factory.mktemp("searches")
    made: list[Path] = []

    def make_folder() -> Path:
        # The folder of the previous example is not needed any longer.
        for folder in made[-1:]:
            shutil.rmtree(folder)
        made.append(root / str(len(made)))
        made[-1].mkdir()
        return made[-1]

    yield make_folder
    shutil.rmtree(root)


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
