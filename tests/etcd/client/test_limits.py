"""Tests of etcd's limits, set below their defaults, and of servers that are not etcd."""

from __future__ import annotations

import asyncio
from itertools import count
from pathlib import Path
from typing import NoReturn

import pytest

from etcd_cluster import QUICK, etcd_cluster
from fairlead_broker.coordination.etcd import EtcdCoordination, EtcdOptions, connect
from fairlead_broker.coordination.protocol import CoordinationUnavailable, TransactionTooLarge
from fairlead_broker.registry.store_writes import Put
from refusals import raises


async def fill(client: EtcdCoordination) -> NoReturn:
    """Write until a write fails."""
    for n in count():
        await client.transact((), (Put(f"/k/{n}", bytes(100_000)),))
    raise AssertionError


async def test_lower_limits_of_the_store_are_reported(tmp_path: Path) -> None:
    """An etcd with lower limits reports its limits and applies nothing, and the caller sends fewer operations."""
    async with etcd_cluster(tmp_path, arguments=("--max-txn-ops=10", "--max-request-bytes=10000")) as cluster:
        client = cluster.client()
        with pytest.raises(TransactionTooLarge):
            await client.transact((), [Put(f"/k/{n}", b"") for n in range(11)])
        with pytest.raises(TransactionTooLarge):
            await client.transact((), (Put("/k", bytes(20_000)),))
        with pytest.raises(TransactionTooLarge):
            await client.transact((), (Put("/k", bytes(1_400_000)),))

        assert (await client.list("/")).items == ()


async def test_a_full_store_is_reported(tmp_path: Path) -> None:
    """A full store applies no write, and the error contains etcd's message."""
    async with etcd_cluster(tmp_path, arguments=("--quota-backend-bytes=200000",)) as cluster:
        client = cluster.client()
        async with asyncio.timeout(60):
            with raises(CoordinationUnavailable, "exceeded"):
                await fill(client)


async def test_another_server_than_etcd_is_refused() -> None:
    """A server that is not etcd is refused after a limited time."""
    server = await asyncio.start_server(lambda reader, writer: writer.close(), "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with asyncio.timeout(2 * QUICK.call_seconds):
        with raises(CoordinationUnavailable, url):
            await connect(EtcdOptions((url,), patience=QUICK))
    server.close()
