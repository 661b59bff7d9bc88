"""librdkafka against a broker: produce with every codec, consume by assignment, look up and commit offsets."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from confluent_kafka import OFFSET_INVALID, Consumer, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from broker_kit import Calls
from kafka_kit import SECONDS_MAX, StartBroker, consumed, kafka_address, produced

RECORDS = 500
Headers = list[tuple[str, bytes | None]]
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


def records_of(codec: str) -> list[dict[str, Any]]:
    """Return records with and without keys, values and headers, at increasing times."""
    headers: Headers = [("a", b"1"), ("a", None), ("b", b"")]
    return [
        {
            "key": None if number % 3 == 0 else f"{codec}-{number}".encode(),
            "value": None if number % 5 == 0 else b"v" * (number % 200),
            "headers": headers if number % 2 else [],
            "timestamp": 1_700_000_000_000 + number,
        }
        for number in range(RECORDS)
    ]


@pytest.mark.parametrize("codec", CODECS)
async def test_records_come_back_as_they_were_produced(bootstrap: str, codec: str) -> None:
    """Keys, values, headers, times and offsets survive a round trip through the broker, with every codec."""
    records = records_of(codec)

    reports = await asyncio.to_thread(produced, bootstrap, "trip", records, **{"compression.type": codec})
    found = await asyncio.to_thread(consumed, bootstrap, "trip", RECORDS)

    assert [report.offset() for report in reports] == list(range(RECORDS))
    assert [
        {
            "key": each.key(),
            "value": each.value(),
            "headers": each.headers() or [],
            "timestamp": each.timestamp()[1],
        }
        for each in found
    ] == records


async def test_the_data_listener_reads_the_records_of_kafka_clients(start: StartBroker) -> None:
    """Records that a Kafka client produced are read over HTTP, at the same offsets."""
    running = await start()
    assert running.addresses.data is not None

    await asyncio.to_thread(
        produced, kafka_address(running), "shared", [{"value": b"one"}, {"value": b"two"}]
    )

    async with Calls(running.addresses.data) as calls:
        assert await calls.values("shared") == [b"one", b"two"]


async def test_offsets_are_found_by_time_and_at_both_ends(bootstrap: str) -> None:
    """A client learns the start, the end, and the first offset at or after a time; -1 stands for no such record."""
    records = [{"value": b"v", "timestamp": 1_700_000_000_000 + 1000 * number} for number in range(10)]
    await asyncio.to_thread(produced, bootstrap, "times", records)

    def look_up() -> tuple[tuple[int, int], list[int]]:
        consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "unused"})
        times = (1_700_000_000_000, 1_700_000_003_001, 1_800_000_000_000)
        try:
            ends = consumer.get_watermark_offsets(TopicPartition("times", 0), SECONDS_MAX)
            found = [
                consumer.offsets_for_times([TopicPartition("times", 0, time)], SECONDS_MAX)[0].offset
                for time in times
            ]
        finally:
            consumer.close()
        return ends, found

    ends, found = await asyncio.to_thread(look_up)

    assert ends == (0, 10)
    assert found == [0, 4, -1]


async def test_the_requests_of_one_connection_are_stored_in_order(bootstrap: str) -> None:
    """Batches that are slow and fast to translate keep their order, with many requests in flight."""
    mixed = [
        {"value": b"%06d" % number + b"x" * (60_000 if number % 7 == 0 else 10)} for number in range(700)
    ]

    await asyncio.to_thread(
        produced,
        bootstrap,
        "order",
        mixed,
        **{"linger.ms": 0, "batch.num.messages": 3, "max.in.flight": 50, "compression.type": "lz4"},
    )
    found = await asyncio.to_thread(consumed, bootstrap, "order", len(mixed))

    assert [int((each.value() or b"")[:6]) for each in found] == list(range(len(mixed)))


async def test_a_clean_stop_answers_what_is_under_way(start: StartBroker) -> None:
    """Records acknowledged before a stop are stored after a restart, and waiting fetches do not delay the stop."""
    address = kafka_address(await start())
    await asyncio.to_thread(produced, address, "kept", [{"value": b"v"}])
    consumer = Consumer({"bootstrap.servers": address, "group.id": "unused", "fetch.wait.max.ms": 30_000})
    consumer.assign([TopicPartition("kept", 0, 0)])
    first = await asyncio.to_thread(consumer.poll, SECONDS_MAX)

    async with asyncio.timeout(10):
        await start(kafka_listen=address)
    await asyncio.to_thread(consumer.close)

    assert first is not None
    assert first.value() == b"v"
    [found] = await asyncio.to_thread(consumed, address, "kept", 1)
    assert found.value() == b"v"


async def test_offsets_are_committed_without_members(bootstrap: str) -> None:
    """A program that assigns its own partitions commits and reads a group's offsets, including their metadata."""
    await asyncio.to_thread(produced, bootstrap, "committed", [{"value": b"v"}] * 5)

    def commit_and_read() -> tuple[list[TopicPartition], list[TopicPartition]]:
        consumer = Consumer(
            {"bootstrap.servers": bootstrap, "group.id": "billing", "enable.auto.commit": False}
        )
        place = TopicPartition("committed", 0, 3, "note")
        try:
            before = consumer.committed([TopicPartition("committed", 0)], SECONDS_MAX)
            consumer.commit(offsets=[place], asynchronous=False)
            return before, consumer.committed([TopicPartition("committed", 0)], SECONDS_MAX)
        finally:
            consumer.close()

    [before], [after] = await asyncio.to_thread(commit_and_read)

    assert before.offset == OFFSET_INVALID
    assert (after.offset, after.metadata) == (3, "note")


@pytest.mark.parametrize("idempotent", [False, True])
async def test_a_record_without_a_key_is_refused_by_a_compacted_topic(
    bootstrap: str, idempotent: bool
) -> None:
    """A batch with a record that has no key is refused as a whole, and the next batch of the same producer is stored.

    The client learns INVALID_RECORD, and a record with an empty key or a null value is stored.
    """
    topic = NewTopic("table", num_partitions=1, config={"cleanup.policy": "compact"})
    outcomes: list[tuple[bytes | None, int | None]] = []

    def delivered(error: KafkaError | None, message: Message) -> None:
        outcomes.append((message.key(), error.code() if error else None))

    def steps() -> list[tuple[bytes | None, bytes | None]]:
        admin = AdminClient({"bootstrap.servers": bootstrap})
        admin.create_topics([topic])["table"].result(SECONDS_MAX)
        producer = Producer(
            {"bootstrap.servers": bootstrap, "linger.ms": 200, "enable.idempotence": idempotent}
        )
        for batch in ([(b"a", b"1")], [(b"b", b"2"), (None, b"3")], [(b"", b"4"), (b"a", None)]):
            for key, value in batch:
                producer.produce("table", value, key, partition=0, on_delivery=delivered)
            assert producer.flush(SECONDS_MAX) == 0
        return [(each.key(), each.value()) for each in consumed(bootstrap, "table", 3)]

    stored = await asyncio.to_thread(steps)

    assert outcomes == [
        (b"a", None),
        (b"b", KafkaError.INVALID_RECORD),
        (None, KafkaError.INVALID_RECORD),
        (b"", None),
        (b"a", None),
    ]
    assert stored == [(b"a", b"1"), (b"", b"4"), (b"a", None)]


async def test_an_idempotent_producer_stores_each_record_once(bootstrap: str) -> None:
    """An idempotent producer gets an id and stores its records in order."""
    values = [{"value": b"%d" % number} for number in range(200)]

    await asyncio.to_thread(
        produced, bootstrap, "once", values, **{"enable.idempotence": True, "batch.num.messages": 7}
    )
    found = await asyncio.to_thread(consumed, bootstrap, "once", len(values))

    assert [each.value() for each in found] == [each["value"] for each in values]
