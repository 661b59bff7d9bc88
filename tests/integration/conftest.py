"""Fixture for several folders: three brokers in one process, with real logs, real HTTP and one store."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from cluster_kit import Cluster


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    """Yield three brokers that are ready."""
    cluster = await Cluster.open(tmp_path)
    try:
        await cluster.start(1, 2, 3)
        yield cluster
    finally:
        await cluster.close()
