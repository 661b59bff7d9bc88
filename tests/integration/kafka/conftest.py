"""Brokers with a Kafka listener, in the process of the test."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from broker_kit import FREE
from fairlead_broker.settings import BrokerSettings
from fairlead_broker.wiring.start import RunningBroker, start_broker
from kafka_kit import StartBroker, kafka_address


@pytest.fixture
async def start(tmp_path: Path) -> AsyncIterator[StartBroker]:
    """Yield a function that replaces the running broker with one that has the given settings; stop it at the end."""
    running: list[RunningBroker] = []

    async def begin(**settings: object) -> RunningBroker:
        for before in running:
            await before.stop()
        running.clear()
        given = {
            "data": tmp_path / "data",
            "listen": FREE,
            "peer_listen": FREE,
            "ops_listen": FREE,
            "kafka_listen": FREE,
            "config_values": {"auto.create.topics.enable": True},
        }
        running.append(await start_broker(BrokerSettings(**{**given, **settings})))  # type: ignore[arg-type]
        return running[0]

    yield begin
    for broker in running:
        await broker.stop()


@pytest.fixture
async def bootstrap(start: StartBroker) -> str:
    """Kafka address of a new broker, which creates topics on demand."""
    return kafka_address(await start())
