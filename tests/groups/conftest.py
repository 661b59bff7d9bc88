"""A cluster of brokers in this process over one embedded store, for tests of consumer groups."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from cluster_kit import Cluster


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    """Yield a cluster without brokers, and stop all its brokers at the end."""
    opened = await Cluster.open(tmp_path)
    try:
        yield opened
    finally:
        await opened.close()
