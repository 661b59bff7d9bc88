"""Fixtures of a real broker, in this process or in a process of its own, and the address for the SDK."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from fairlead import Admin
from fairlead_broker.settings import BrokerSettings, Endpoint
from fairlead_broker.wiring.start import start_broker
from warm_programs import WarmProcess, start

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


class BrokerProcess:
    """A broker in a process of its own, which a test can kill and start again at the same address."""

    def __init__(self, data: Path) -> None:
        self._data = data
        self._listen = "127.0.0.1:0"
        self._process: WarmProcess | None = None
        self.url = ""

    async def start(self) -> None:
        """Start the process and return when the broker is ready."""
        environment = {**os.environ, "FAIRLEAD_LOG_LEVEL": "error"}
        words = ["broker", "start", "--output", "json", "--data", str(self._data), "--listen", self._listen]
        words += ["--peer-listen", "127.0.0.1:0", "--ops-listen", "127.0.0.1:0"]
        self._process = await asyncio.to_thread(start, *words, environment=environment)
        assert self._process.stdout is not None
        async with asyncio.timeout(30):
            ready = json.loads(await asyncio.to_thread(self._process.stdout.readline))
        self.url = ready["brokers"][0]["data"]
        self._listen = self.url.removeprefix("http://")

    async def kill(self) -> None:
        """Kill the process."""
        await self._end(signal.SIGKILL)

    async def stop(self) -> None:
        """Stop the process gracefully."""
        await self._end(signal.SIGTERM)

    async def _end(self, number: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.send_signal(number)
            await asyncio.to_thread(process.wait)
            assert process.stdout is not None
            process.stdout.close()


@pytest.fixture
async def process(tmp_path: Path) -> AsyncIterator[BrokerProcess]:
    """Yield a broker process that is ready."""
    broker = BrokerProcess(tmp_path / "data")
    await broker.start()
    try:
        yield broker
    finally:
        await broker.kill()
