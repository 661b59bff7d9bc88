"""Fixtures: one broker with real listeners in `enforce` or in `open` mode, and the audit log."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from audit_kit import Lines, audit_lines
from broker_kit import Calls
from cluster_kit import Cluster
from security_kit import Secured


@pytest.fixture
def lines() -> Iterator[Lines]:
    """Yield the audit log lines of all brokers of the test."""
    with audit_lines() as found:
        yield found


@pytest.fixture
async def secured(tmp_path: Path) -> AsyncIterator[Secured]:
    """Yield a broker in `enforce` mode."""
    cluster = await Cluster.open(tmp_path)
    file = tmp_path / "admin.token"
    try:
        await cluster.start(1, security="enforce", admin_token_file=file)
        address = cluster.brokers[1].addresses.data
        assert address is not None
        async with Calls(address) as calls:
            yield Secured(cluster, calls, file.read_text().strip())
    finally:
        await cluster.close()


@pytest.fixture
async def open_(tmp_path: Path) -> AsyncIterator[Secured]:
    """Yield a broker in `open` mode, whose superuser is `user:root`."""
    cluster = await Cluster.open(tmp_path)
    try:
        await cluster.start(1, superusers="user:root")
        async with Calls(str(cluster.brokers[1].addresses.data)) as calls:
            made = await calls.post("/v1/tokens", {"principal": "user:root"})
            yield Secured(cluster, calls, made.json["token"])
    finally:
        await cluster.close()
