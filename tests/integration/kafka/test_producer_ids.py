"""Kafka's idempotent producers while the store that allocates their ids is unavailable."""

from __future__ import annotations

import pytest

from fairlead_broker.coordination.protocol import CoordinationUnavailable
from fairlead_broker.kafka.protocol.apis import APIS, ApiKey
from fairlead_broker.kafka.protocol.errors import KafkaError
from kafka_kit import StartBroker, kafka_address
from kafka_wire import KafkaConnection


class StoreAway:
    """Store that does not answer."""

    async def transact(self, *_: object) -> None:
        """Fail like a store that cannot be reached."""
        raise CoordinationUnavailable("away")


@pytest.mark.parametrize("version", [0, APIS[ApiKey.INIT_PRODUCER_ID].last])
async def test_a_producer_without_an_id_asks_again_when_the_store_is_back(
    start: StartBroker, monkeypatch: pytest.MonkeyPatch, version: int
) -> None:
    """A producer gets an error that all clients retry, and an id once the store answers."""
    running = await start()
    fields = {
        "transactional_id": None,
        "transaction_timeout_ms": 1000,
        "producer_id": -1,
        "producer_epoch": -1,
    }
    async with KafkaConnection.open(kafka_address(running)) as connection:
        with monkeypatch.context() as patch:
            patch.setattr(running.broker.producer_registry, "_coordination", StoreAway())
            refused = await connection.ask(ApiKey.INIT_PRODUCER_ID, version, **fields)
        answered = await connection.ask(ApiKey.INIT_PRODUCER_ID, version, **fields)

    assert refused.error_code == KafkaError.COORDINATOR_LOAD_IN_PROGRESS
    assert answered.error_code == KafkaError.NONE
    assert answered.producer_id >= 0
