"""Fixtures for tests on a real etcd."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from etcd_cluster import EtcdCluster, etcd_cluster

FOLDER = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Add the marks `etcd` and `slow`, since `make test-fast` runs without Go."""
    for item in items:
        if item.path.is_relative_to(FOLDER):
            item.add_marker(pytest.mark.etcd)
            item.add_marker(pytest.mark.slow)


@pytest.fixture
async def alone(tmp_path: Path) -> AsyncIterator[EtcdCluster]:
    """Yield a cluster of one member."""
    async with etcd_cluster(tmp_path) as cluster:
        yield cluster


@pytest.fixture
async def three(tmp_path: Path) -> AsyncIterator[EtcdCluster]:
    """Yield a cluster of three members."""
    async with etcd_cluster(tmp_path, 3) as cluster:
        yield cluster
