"""Answers to Kafka's producers whose batches are refused."""

from __future__ import annotations

import asyncio

import pytest
from aiokafka.record.default_records import DefaultRecordBatchBuilder

from fairlead_broker.kafka.protocol.apis import ApiKey
from fairlead_broker.kafka.protocol.errors import KafkaError
from kafka_kit import StartBroker, kafka_address, produced
from kafka_wire import KafkaConnection

UNKNOWN_PRODUCER = 7_000


def batch(producer: int, sequence: int) -> bytes:
    """Return a batch with one record of an idempotent producer."""
    builder = DefaultRecordBatchBuilder(2, 0, False, producer, 0, sequence, 1 << 20)
    builder.append(0, 1, None, b"value", [])
    return bytes(builder.build())


@pytest.mark.parametrize(
    ("records", "error"),
    [
        (batch(UNKNOWN_PRODUCER, 5), KafkaError.UNKNOWN_PRODUCER_ID),
        (b"no batch", KafkaError.INVALID_RECORD),
    ],
    ids=["unknown", "malformed"],
)
async def test_a_refused_batch_names_the_log_start(
    start: StartBroker, records: bytes, error: KafkaError
) -> None:
    """The answer to a refused batch names the log start, so that a producer can restart its sequences."""
    address = kafka_address(await start())
    await asyncio.to_thread(produced, address, "orders", [{"value": b"first"}, {"value": b"second"}])
    partition = {"partition_index": 0, "offset": 1}
    async with KafkaConnection.open(address) as connection:
        deleted = await connection.ask(
            ApiKey.DELETE_RECORDS,
            2,
            topics=[{"name": "orders", "partitions": [partition]}],
            timeout_ms=10_000,
        )
        answer = await connection.ask(
            ApiKey.PRODUCE,
            8,
            transactional_id=None,
            acks=-1,
            timeout_ms=10_000,
            topic_data=[{"name": "orders", "partition_data": [{"index": 0, "records": records}]}],
        )

    assert deleted.topics[0].partitions[0].low_watermark == 1
    [response] = answer.responses[0].partition_responses
    assert response.error_code == error
    assert (response.base_offset, response.log_start_offset) == (-1, 1)
