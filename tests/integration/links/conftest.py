"""Fixtures of this folder: two clusters in one process, each with its own store, brokers and addresses."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from cluster_kit import Cluster


@pytest.fixture
async def source(tmp_path: Path) -> AsyncIterator[Cluster]:
    """Yield a cluster of one broker from which links copy."""
    cluster = await Cluster.open(_folder(tmp_path, "source"))
    try:
        await cluster.start(1)
        yield cluster
    finally:
        await cluster.close()


@pytest.fixture
async def target(tmp_path: Path) -> AsyncIterator[Cluster]:
    """Yield a cluster of two brokers that has links."""
    cluster = await Cluster.open(_folder(tmp_path, "target"))
    try:
        await cluster.start(1, 2)
        yield cluster
    finally:
        await cluster.close()


def _folder(path: Path, name: str) -> Path:
    folder = path / name
    folder.mkdir()
    return folder
