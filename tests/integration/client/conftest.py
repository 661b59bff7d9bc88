"""Fixtures of a real broker, in this process or in a separate process, and the address for the SDK."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from broker_kit import BrokerProgram
from fairlead import Admin
from fairlead_broker.settings import BrokerSettings, Endpoint
from fairlead_broker.wiring.start import start_broker

ANY_PORT = Endpoint("127.0.0.1", 0)


@pytest.fixture
async def bootstrap(tmp_path: Path) -> AsyncIterator[str]:
    """Yield the address of a broker in this process with an empty data directory."""
    settings = BrokerSettings(
        data=tmp_path / "data",
        listen=ANY_PORT,
        peer_listen=ANY_PORT,
        ops_listen=ANY_PORT,
        config_values={"auto.create.topics.enable": False},
    )
    broker = await start_broker(settings)
    try:
        yield f"http://{broker.addresses.data}"
    finally:
        await broker.stop()


@pytest.fixture
async def admin(bootstrap: str) -> AsyncIterator[Admin]:
    """Yield an admin client of the broker."""
    async with Admin(bootstrap) as admin:
        yield admin


@pytest.fixture
async def process(tmp_path: Path) -> AsyncIterator[BrokerProgram]:
    """Yield a broker process that is ready."""
    broker = BrokerProgram(tmp_path / "data")
    await broker.start()
    try:
        yield broker
    finally:
        broker.kill()
