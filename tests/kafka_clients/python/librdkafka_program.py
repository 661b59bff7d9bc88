"""Runs librdkafka against brokers: idempotent produce with every codec, then members of both group protocols.

Usage: librdkafka_program.py BOOTSTRAP TOPIC GROUP COUNT. The program prints one line for each step, and exits with 1 on
an error.
"""

from __future__ import annotations

import sys
import time
from typing import Any

from confluent_kafka import Consumer, Message, Producer, TopicPartition

SECONDS_MAX = 90.0


def main(bootstrap: str, topic: str, group: str, count: int) -> None:
    """Produce `count` records for each codec, and consume all records with both group protocols."""
    wanted = set()
    for codec in ("none", "gzip", "snappy", "lz4", "zstd"):
        producer = Producer(
            {"bootstrap.servers": bootstrap, "enable.idempotence": True, "compression.type": codec}
        )
        errors: list[object] = []
        for number in range(count):
            key = f"{codec}-{number}"
            wanted.add(key)
            producer.produce(
                topic,
                f"value of {key}",
                key,
                headers=[("codec", codec.encode())],
                on_delivery=lambda error, _, errors=errors: errors.append(error) if error else None,
            )
        assert producer.flush(SECONDS_MAX) == 0, "records were not acknowledged"
        assert not errors, errors[0]
    print("idempotent produce with none, gzip, snappy, lz4 and zstd")

    for protocol in ("classic", "consumer"):
        settings = {
            "bootstrap.servers": bootstrap,
            "group.id": f"{group}-{protocol}",
            "group.protocol": protocol,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
        read_with_two_members(topic, wanted, settings)
        print(f"two members of a group with group.protocol={protocol}, each record once")
        check_committed_offsets(topic, settings)
    print("committed offsets and end offsets")


def read_with_two_members(topic: str, wanted: set[str], settings: dict[str, Any]) -> None:
    """Read every record exactly once with two members that commit what they read."""
    members = [Consumer(settings) for _ in range(2)]
    found: dict[str, int] = {}
    for member in members:
        member.subscribe([topic])
    deadline = time.monotonic() + SECONDS_MAX
    while len(found) < len(wanted) or not all(member.assignment() for member in members):
        assert time.monotonic() < deadline, f"{len(found)} of {len(wanted)} records"
        for member in members:
            messages = member.consume(500, 0.1)
            for message in messages:
                key = checked_key(message)
                found[key] = found.get(key, 0) + 1
            if messages:
                member.commit(asynchronous=False)
    for member in members:
        member.close()
    assert set(found.values()) == {1}, "a record was read twice"


def checked_key(message: Message) -> str:
    """Return the key of a record whose value and header belong to the key."""
    error = message.error()
    assert error is None, error
    key = (message.key() or b"").decode()
    assert message.value() == f"value of {key}".encode(), key
    assert len(message.headers() or []) == 1, key
    return key


def check_committed_offsets(topic: str, settings: dict[str, Any]) -> None:
    """Compare the group's committed offsets with the ends of the partitions."""
    consumer = Consumer(settings)
    numbers = consumer.list_topics(topic, SECONDS_MAX).topics[topic].partitions
    committed = consumer.committed([TopicPartition(topic, number) for number in numbers], SECONDS_MAX)
    for each in committed:
        _, end = consumer.get_watermark_offsets(each, SECONDS_MAX)
        assert end in {each.offset, 0}, f"partition {each.partition}: {each.offset} of {end}"
    consumer.close()


if __name__ == "__main__":
    main(*sys.argv[1:4], int(sys.argv[4]))
