"""Kafka's readers of committed records, offsets of the newest times, and fetch sessions of real clients."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

from confluent_kafka import Consumer, TopicPartition
from confluent_kafka import Producer as KafkaProducer
from confluent_kafka.admin import AdminClient, OffsetSpec

from broker_kit import Calls
from fairlead import Producer
from kafka_kit import SECONDS_MAX, StartBroker, kafka_address, produced, read_to_end


async def test_readers_of_committed_records_skip_aborted_transactions(start: StartBroker) -> None:
    """Only readers of uncommitted records get the records of an aborted transaction, even at the end of a log."""
    running = await start()
    address, bootstrap = f"http://{running.addresses.data}", kafka_address(running)
    async with Producer(address, transactional="loader") as producer:

        async def abort(topic: str) -> None:
            with suppress(ZeroDivisionError):
                async with producer.transaction() as transaction:
                    await transaction.send_and_wait(topic, b"never", partition=0)
                    _ = 1 // 0

        await abort("orders")
        async with producer.transaction() as transaction:
            await transaction.send_and_wait("orders", b"yes", partition=0)
        await abort("orders")
        await abort("nothing")

    async def read(topic: str, isolation: str, end: int) -> tuple[list[bytes | None], int]:
        """Read a topic, once a reader finds its end there; markers may be written after the answers."""
        async with asyncio.timeout(SECONDS_MAX):
            while (found := await asyncio.to_thread(read_to_end, bootstrap, topic, isolation))[1] < end:
                pass
        return found

    # Each transaction ends with a marker, which also takes an offset.
    assert await read("orders", "read_committed", 6) == ([b"yes"], 6)
    assert await read("orders", "read_uncommitted", 6) == ([b"never", b"yes", b"never"], 6)
    assert await read("nothing", "read_committed", 2) == ([], 2)


async def test_small_fetches_of_many_partitions_lose_nothing(start: StartBroker) -> None:
    """A reader whose fetches have room for one batch gets the records of all its partitions."""
    running = await start()
    bootstrap, partitions = kafka_address(running), 3
    assert running.addresses.data is not None
    async with Calls(running.addresses.data) as calls:
        await calls.create("orders", partitions=partitions)

    def produce_and_read() -> list[int]:
        producer = KafkaProducer({"bootstrap.servers": bootstrap, "batch.num.messages": 1})
        for number in range(60):
            producer.produce("orders", b"%03d" % number + b"x" * 500, partition=number % partitions)
        assert producer.flush(SECONDS_MAX) == 0
        consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": "unused",
                "fetch.max.bytes": 1000,
                "message.max.bytes": 1000,
            }
        )
        consumer.assign([TopicPartition("orders", each, 0) for each in range(partitions)])
        found: list[int] = []
        try:
            while len(found) < 60:
                message = consumer.poll(SECONDS_MAX)
                assert message is not None, f"{len(found)} records within {SECONDS_MAX} s"
                assert message.error() is None, message.error()
                found.append(int((message.value() or b"")[:3]))
        finally:
            consumer.close()
        return sorted(found)

    assert await asyncio.to_thread(produce_and_read) == list(range(60))


async def test_the_offset_of_the_newest_record_is_found(bootstrap: str) -> None:
    """The record with the latest time is found, although it is not the last record."""
    records: list[dict[str, Any]] = [
        {"value": b"v", "timestamp": 1_700_000_000_000 + time} for time in (1, 9_000, 5)
    ]
    await asyncio.to_thread(produced, bootstrap, "orders", records, **{"batch.num.messages": 1})
    admin = AdminClient({"bootstrap.servers": bootstrap})

    def newest() -> tuple[int, int]:
        [future] = admin.list_offsets({TopicPartition("orders", 0): OffsetSpec.max_timestamp()}).values()
        found = future.result(SECONDS_MAX)
        return found.offset, found.timestamp

    assert await asyncio.to_thread(newest) == (1, 1_700_000_009_000)
