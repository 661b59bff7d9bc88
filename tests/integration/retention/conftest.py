"""Fixtures: a real broker that checks retention continuously and whose clock the test moves, and its clients."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pyreqwest.client import Client, ClientBuilder

from broker_kit import BrokerProgram
from fairlead import Admin
from fairlead_api.identifiers import TimestampUs
from fairlead_broker.clock import SystemClock
from fairlead_broker.settings import BrokerSettings
from fairlead_broker.wiring.start import RunningBroker, start_broker
from waiting import pause

DEADLINE_SECONDS = 5.0
"""Seconds within which every change of configuration must apply."""
OFTEN = {"log.retention.check.interval.ms": 20}
LIMITS = {"checkpoint_interval_seconds": 0.02, "sync_interval_seconds": 1000.0}
"""Limits without background syncs, so that only configuration causes a sync."""


class MovedClock(SystemClock):
    """System clock, moved ahead by the test."""

    def __init__(self) -> None:
        self.ahead_us = 0

    def now_us(self) -> TimestampUs:
        """Return the broker's wall time in µs."""
        return TimestampUs(super().now_us() + self.ahead_us)

    def move(self, seconds: float) -> None:
        """Move the clock ahead at once."""
        self.ahead_us += int(seconds * 1_000_000)


async def until(condition: Callable[[], Awaitable[bool]], seconds: float = DEADLINE_SECONDS) -> None:
    """Wait until the condition holds; raise `TimeoutError` at the time limit."""
    async with asyncio.timeout(seconds):
        while not await condition():
            await pause(0.01)


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to a request."""

    status: int
    json: Any


class Api:
    """Plain HTTP requests to one broker, and its admin client."""

    def __init__(self, client: Client, admin: Admin, running: RunningBroker) -> None:
        self._client = client
        self.admin = admin
        self.running = running
        self.url = f"http://{running.addresses.data}"

    async def call(self, method: str, path: str, body: object = None) -> Answer:
        """Send a request with a JSON body and return the JSON answer, if there is one."""
        request = self._client.request(method, self.url + path)
        if body is not None:
            request = request.headers({"content-type": "application/json"}).body_bytes(
                msgspec.json.encode(body)
            )
        answer = await request.build().send()
        content = bytes(await answer.bytes())
        return Answer(answer.status, json.loads(content) if content else None)

    async def produce(
        self, topic: str, *values: str, timestamp: int | None = None, partition: int = 0
    ) -> Answer:
        """Produce one batch of JSON records."""
        time = {} if timestamp is None else {"timestamp": timestamp}
        records = [{"value": value, **time} for value in values]
        return await self.call(
            "POST", f"/v1/topics/{topic}/partitions/{partition}/records", {"records": records}
        )

    async def fetch(self, topic: str, offset: int | str, partition: int = 0) -> Answer:
        """Fetch all records from an offset on as JSON, without waiting for more."""
        query = f"offset={offset}&max_bytes=100000000&max_wait_ms=0"
        return await self.call("GET", f"/v1/topics/{topic}/partitions/{partition}/records?{query}")

    async def offsets_read(self, topic: str) -> list[int]:
        """Return the offsets of all records that can be read from the earliest offset on."""
        read: list[int] = []
        answer = await self.fetch(topic, "earliest")
        while answer.status == 200:
            read += [record["offset"] for record in answer.json["records"]]
            answer = await self.fetch(topic, answer.json["next_offset"])
        assert answer.status == 204, answer
        return read

    async def start_and_end(self, topic: str) -> tuple[int, int]:
        """Return the log start offset and the log end offset of partition 0."""
        found = await self.admin.offsets(topic, 0)
        return found.log_start_offset, found.log_end_offset

    async def looks(self) -> None:
        """Run the checks of segments and of retention once."""
        parts = self.running.broker
        await parts.upkeep.look_after_segments()
        await parts.retention.check()

    async def until(self, condition: Callable[[], Awaitable[bool]]) -> None:
        """Wait until the condition holds; raise `TimeoutError` after the time allowed for a change."""
        await until(condition)

    async def begins_at(self, topic: str, offset: int) -> None:
        """Wait until partition 0 begins at an offset."""

        async def begins() -> bool:
            return (await self.start_and_end(topic))[0] == offset

        await until(begins)


class Lives:
    """Starts brokers over one data directory, one after another."""

    def __init__(self, data: Path, clock: MovedClock, stack: AsyncExitStack) -> None:
        self.data = data
        self.clock = clock
        self._stack = stack

    async def start(self, config_values: dict[str, object] | None = None) -> Api:
        """Start a broker that checks retention fifty times a second, unless `config_values` change that."""
        running = await start_broker(
            BrokerSettings(
                data=self.data,
                listen="127.0.0.1:0",
                peer_listen="127.0.0.1:0",
                ops_listen="127.0.0.1:0",
                config_values=OFTEN if config_values is None else config_values,
                limits=LIMITS,
            ),
            clock=self.clock,
        )
        self._stack.push_async_callback(running.stop)
        client = await self._stack.enter_async_context(ClientBuilder().http2_prior_knowledge().build())
        admin = await self._stack.enter_async_context(Admin(f"http://{running.addresses.data}"))
        return Api(client, admin, running)

    def segments(self, topic_id: str) -> list[Path]:
        """Return the batch files of partition 0, oldest first."""
        return sorted((self.data / topic_id / "0").glob("*.log"))


@pytest.fixture
def clock() -> MovedClock:
    """Return the broker's clock."""
    return MovedClock()


@pytest.fixture
async def lives(tmp_path: Path, clock: MovedClock) -> AsyncIterator[Lives]:
    """Yield a `Lives`, with which tests start brokers themselves."""
    async with AsyncExitStack() as stack:
        yield Lives(tmp_path / "data", clock, stack)


@pytest.fixture
async def api(lives: Lives) -> Api:
    """Return a broker with an empty data directory."""
    return await lives.start()


@pytest.fixture
async def process(tmp_path: Path) -> AsyncIterator[BrokerProgram]:
    """Yield a broker process that is ready."""
    broker = BrokerProgram(tmp_path / "killed")
    await broker.start()
    try:
        yield broker
    finally:
        broker.kill()
