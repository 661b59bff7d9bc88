"""librdkafka as a client of a broker: produce to and consume from one partition, for tests of the Kafka listener."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition

from fairlead_broker.wiring.start import RunningBroker

SECONDS_MAX = 30.0
StartBroker = Callable[..., Awaitable[RunningBroker]]
"""Function that starts a broker with settings by name."""


def kafka_address(running: RunningBroker) -> str:
    """Return the Kafka address of a broker."""
    assert running.addresses.kafka is not None
    return running.addresses.kafka


def produced(bootstrap: str, topic: str, records: list[dict[str, Any]], **settings: object) -> list[Message]:
    """Produce records to partition 0 and return the delivery reports, in order; raise the first error."""
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 5, **settings})
    reports: list[Message] = []

    def delivered(error: KafkaError | None, message: Message) -> None:
        assert error is None, error
        reports.append(message)

    for record in records:
        producer.produce(topic, partition=0, on_delivery=delivered, **record)
        producer.poll(0)
    assert producer.flush(SECONDS_MAX) == 0
    return reports


def consumed(bootstrap: str, topic: str, count: int, offset: int = 0, **settings: object) -> list[Message]:
    """Consume records of partition 0 from an offset by assignment."""
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "unused", "enable.auto.commit": False, **settings}
    )
    consumer.assign([TopicPartition(topic, 0, offset)])
    found: list[Message] = []
    try:
        while len(found) < count:
            messages = consumer.consume(count - len(found), SECONDS_MAX)
            assert messages, f"{len(found)} of {count} records within {SECONDS_MAX} s"
            for message in messages:
                assert message.error() is None, message.error()
                found.append(message)
    finally:
        consumer.close()
    return found


def read_to_end(bootstrap: str, topic: str, isolation: str) -> tuple[list[bytes | None], int]:
    """Return the values of partition 0 up to its end, and the offset at which the reader found the end."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "unused",
            "isolation.level": isolation,
            "enable.partition.eof": True,
        }
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    values: list[bytes | None] = []
    try:
        while True:
            message = consumer.poll(SECONDS_MAX)
            assert message is not None, f"no end within {SECONDS_MAX} s"
            error = message.error()
            if error is None:
                values.append(message.value())
            else:
                assert error.code() == KafkaError._PARTITION_EOF, error
                return values, int(message.offset() or 0)
    finally:
        consumer.close()
