"""Implementations of coordination that must all pass the tests of this folder.

A new implementation adds a factory to `FACTORIES`: an async context manager that takes a folder and yields a `Bench`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from etcd_cluster import etcd_cluster
from fairlead_api.identifiers import TimestampUs
from fairlead_broker.coordination.embedded import EmbeddedCoordination
from fairlead_broker.coordination.protocol import (
    Coordination,
)


@dataclass(frozen=True, slots=True)
class Bench:
    """One store under test."""

    client: Coordination
    connect: Callable[[], Awaitable[Coordination]]
    """Function that creates another client of the same store."""
    let_pass: Callable[[float], Awaitable[None]]
    """Function that waits until the leases that expire within the given seconds have expired."""


class ManualClock:
    """A clock that only the test advances."""

    def __init__(self) -> None:
        """Start the clock at an arbitrary time."""
        self.seconds = 1000.0

    def now_us(self) -> TimestampUs:
        """Return the wall time in microseconds."""
        return TimestampUs(int(self.seconds * 1_000_000))

    def monotonic(self) -> float:
        """Return the seconds since an arbitrary start."""
        return self.seconds


@asynccontextmanager
async def embedded(folder: Path) -> AsyncIterator[Bench]:
    """Yield the SQLite store, whose leases use a clock that the test advances."""
    clock = ManualClock()
    client = await EmbeddedCoordination.open(folder / "coordination.sqlite", clock)

    async def connect() -> Coordination:
        other = client.connect()
        clients.append(other)
        return other

    async def let_pass(seconds: float) -> None:
        clock.seconds += seconds
        await client.expire_leases()

    clients = [client]
    try:
        yield Bench(client, connect, let_pass)
    finally:
        for each in reversed(clients):
            await each.close()


@asynccontextmanager
async def etcd(folder: Path) -> AsyncIterator[Bench]:
    """Yield a new etcd with one member, whose leases use etcd's own clock."""
    async with etcd_cluster(folder) as cluster:

        async def connect() -> Coordination:
            return cluster.client()

        async def let_pass(seconds: float) -> None:
            # Only etcd decides when a lease has expired, and a test cannot advance the clock of etcd.
            await asyncio.sleep(seconds)  # noqa: TID251

        yield Bench(await connect(), connect, let_pass)


Factory = Callable[[Path], AbstractAsyncContextManager[Bench]]
FACTORIES: dict[str, Factory] = {"embedded": embedded, "etcd": etcd}
MARKS = {"etcd": (pytest.mark.etcd, pytest.mark.slow)}


@pytest.fixture(
    params=[pytest.param(make, id=name, marks=MARKS.get(name, ())) for name, make in FACTORIES.items()]
)
async def bench(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Bench]:
    """Yield a fresh store of each implementation."""
    async with request.param(tmp_path) as made:
        yield made


@pytest.fixture
def client(bench: Bench) -> Coordination:
    """Return the first client of the store."""
    return bench.client


@pytest.fixture
async def other(bench: Bench) -> Coordination:
    """Return a second client of the same store."""
    return await bench.connect()
