"""A real broker without its listeners: real log, real embedded coordination, real batches."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
import structlog

from fairlead_broker.clock import SystemClock
from fairlead_broker.log.segments.storage import Storage
from fairlead_broker.runtime import Broker
from fairlead_broker.settings import BrokerSettings
from fairlead_broker.telemetry import Telemetry
from fairlead_broker.wiring.broker import open_broker
from runtime_kit import TopicClient, new_id, topic

StartRuntime = Callable[..., Awaitable[Broker]]


@pytest.fixture
async def start_runtime(tmp_path: Path) -> AsyncIterator[StartRuntime]:
    """Start runtimes, by default on the same directory, and stop them at the end of the test."""
    async with AsyncExitStack() as stack:

        async def start(storage: Storage | None = None, **settings: object) -> Broker:
            broker = await open_broker(
                BrokerSettings(**{"data": tmp_path / "data", **settings}),  # type: ignore[arg-type]
                Telemetry(structlog.wrap_logger(structlog.ReturnLogger(), processors=[])),
                SystemClock(),
                release="test",
                new_id=new_id,
                storage=storage,
            )
            stack.push_async_callback(broker.stop)
            return broker

        yield start


@pytest.fixture
async def runtime(start_runtime: StartRuntime) -> Broker:
    """Return a started broker on an empty directory."""
    return await start_runtime()


@pytest.fixture
def make_topic(runtime: Broker) -> Callable[..., Awaitable[TopicClient]]:
    """Create topics in the runtime of the test."""

    async def make(name: str = "flights", partitions: int = 1, **config: object) -> TopicClient:
        return await topic(runtime, name, partitions, **config)

    return make
