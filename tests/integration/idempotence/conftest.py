"""Fixtures of brokers for tests of idempotence."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from broker_kit import FREE, BrokerProgram, Calls
from fairlead_broker.clock import Clock
from fairlead_broker.settings import BrokerSettings
from fairlead_broker.wiring.start import RunningBroker, start_broker

StartBroker = Callable[..., Awaitable[RunningBroker]]


@pytest.fixture
async def start(tmp_path: Path) -> AsyncIterator[StartBroker]:
    """Start brokers in this process, over one data directory, and stop the last broker at the end."""
    running: list[RunningBroker] = []

    async def begin(clock: Clock | None = None, **settings: object) -> RunningBroker:
        """Start a broker after stopping the previous broker."""
        for before in running:
            await before.stop()
        running.clear()
        given = {"data": tmp_path / "data", "listen": FREE, "peer_listen": FREE, "ops_listen": FREE}
        running.append(await start_broker(BrokerSettings(**{**given, **settings}), clock=clock))  # type: ignore[arg-type]
        return running[0]

    yield begin
    for broker in running:
        await broker.stop()


@pytest.fixture
async def connect() -> AsyncIterator[Callable[[str], Awaitable[Calls]]]:
    """Yield a function that opens connections, which are closed at the end."""
    async with AsyncExitStack() as stack:

        async def opened(address: str) -> Calls:
            """Open one connection."""
            return await stack.enter_async_context(Calls(address))

        yield opened


@pytest.fixture
async def api(start: StartBroker, connect: Callable[[str], Awaitable[Calls]]) -> Calls:
    """Return a connection to a new broker."""
    address = (await start()).addresses.data
    assert address is not None
    return await connect(address)


@pytest.fixture
def program(tmp_path: Path) -> Iterator[BrokerProgram]:
    """Yield a broker in a separate process that has not been started yet."""
    broker = BrokerProgram(tmp_path / "program")
    yield broker
    broker.kill()
