"""The producer against a real broker."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.sampling import Decision, Sampler, SamplingResult

from fairlead import Admin, Consumer, Producer, Record
from fairlead.errors import (
    BatchTooLargeError,
    ClosedError,
    InvalidRecordError,
    PartitionNotFoundError,
    TopicNotFoundError,
)
from fairlead_api.partitioning import partition_for_key
from fairlead_broker.settings import BrokerSettings, Endpoint
from fairlead_broker.wiring.start import start_broker
from refusals import raises

if TYPE_CHECKING:
    from opentelemetry.context import Context


async def read_all(bootstrap: str, topic: str) -> list[Record]:
    """Return all records of a topic, partition by partition."""
    async with Consumer(bootstrap) as consumer:
        await consumer.assign(topic=topic)
        records = [record async for record in consumer.records(until=await consumer.end_offsets())]
    return sorted(records, key=lambda record: (record.partition, record.offset))


@pytest.mark.parametrize("compression", ["none", "lz4", "zstd"])
@pytest.mark.parametrize("acks", ["all", 1])
async def test_records_come_back_as_they_were_sent(
    bootstrap: str, admin: Admin, compression: str, acks: str | int
) -> None:
    """Records are read back byte for byte and in order, even with null or empty keys, values and headers."""
    await admin.create_topic("flights")
    moment = datetime(2013, 1, 1, 5, 15, 0, 250_001, tzinfo=UTC)
    sent: list[tuple[bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...]]] = [
        (b"k", b"v", ()),
        (None, b"", (("a", b"1"), ("a", b"2"), ("b", None))),
        (b"", None, ()),
        (bytes(range(256)), bytes(range(256)), (("\u00e9", b"\xff"),)),
    ]
    async with Producer(bootstrap, compression=compression, acks=acks) as producer:
        deliveries = [
            await producer.send("flights", v, key=k, headers=h, timestamp=moment) for k, v, h in sent
        ]
        stored = [await delivery for delivery in deliveries]

    assert [metadata.offset for metadata in stored] == [0, 1, 2, 3]
    assert all(metadata.append_time_us > 1_600_000_000_000_000 for metadata in stored)
    read = await read_all(bootstrap, "flights")
    assert [(r.key, r.value, tuple(r.headers)) for r in read] == sent
    assert {record.timestamp for record in read} == {moment}


async def test_keys_decide_the_partition_alike_for_records_and_tables(bootstrap: str, admin: Admin) -> None:
    """A key gets the same partition in a record as in a table row, and each partition keeps the order of sending."""
    await admin.create_topic("flights", partitions=5)
    keys = [f"carrier {row % 17}".encode() for row in range(500)]
    values = [str(row).encode() for row in range(500)]
    async with Producer(bootstrap) as producer:
        for key, value in zip(keys, values, strict=True):
            await producer.send("flights", value, key=key)
        await producer.flush()
        await producer.send_batch("flights", pa.table({"key": keys, "value": values}))
    read = await read_all(bootstrap, "flights")

    for partition in range(5):
        mine = [v for k, v in zip(keys, values, strict=True) if partition_for_key(k, 5) == partition]
        assert [record.value for record in read if record.partition == partition] == mine * 2


async def test_records_without_a_key_are_spread_evenly(bootstrap: str, admin: Admin) -> None:
    """Batches without keys rotate over the partitions."""
    await admin.create_topic("flights", partitions=4)
    async with Producer(bootstrap, batch_bytes=2_000) as producer:
        for row in range(2_000):
            await producer.send("flights", str(row).encode())
    counts = [(await admin.offsets("flights", partition)).high_watermark for partition in range(4)]

    assert sum(counts) == 2_000
    assert max(counts) - min(counts) <= 200


async def test_a_large_table_arrives_whole(bootstrap: str, admin: Admin) -> None:
    """A large table is split into many batches and requests, and every row is stored once."""
    await admin.create_topic("flights", partitions=3)
    table = pa.table({"value": [str(row).encode().ljust(100) for row in range(100_000)]})
    async with Producer(bootstrap, columnar_batch_bytes=200_000, request_bytes_max=500_000) as producer:
        deliveries = await producer.send_batch("flights", table)
        stored = [await delivery for delivery in deliveries]

    assert sum(metadata.record_count for metadata in stored) == 100_000
    read = await read_all(bootstrap, "flights")
    assert sorted(record.value or b"" for record in read) == sorted(table.column("value").to_pylist())


async def test_without_acks_the_records_are_stored(bootstrap: str, admin: Admin) -> None:
    """Records with acks=0 get no offset, and are stored unless a failure occurs."""
    await admin.create_topic("flights")
    async with Producer(bootstrap, acks=0) as producer:
        metadata = await producer.send_and_wait("flights", b"fire")
        assert metadata.offset == -1
        await producer.send_and_wait("flights", b"forget")
    async with Consumer(bootstrap) as consumer:
        await consumer.assign(topic="flights")
        values: list[bytes | None] = []
        while len(values) < 2:
            batch = await consumer.next_batch(timeout="10s")
            assert batch is not None
            values += batch.values

    assert values == [b"fire", b"forget"]


async def test_the_broker_refuses_invalid_batches(bootstrap: str, admin: Admin) -> None:
    """A batch above the topic's limit and a record too far in the future fail with typed errors and are not stored."""
    await admin.create_topic("flights", config={"max.message.bytes": 10_000})
    async with Producer(bootstrap) as producer:
        with raises(BatchTooLargeError, "flights-0"):
            await producer.send_and_wait("flights", b"x" * 20_000)
        with raises(InvalidRecordError, "flights-0"):
            await producer.send_and_wait("flights", b"x", timestamp=datetime(2100, 1, 1, tzinfo=UTC))
        with pytest.raises(PartitionNotFoundError):
            await producer.send("flights", b"x", partition=1)
        assert (await producer.send_and_wait("flights", b"good")).offset == 0


async def test_an_unknown_topic_is_refused_at_once(bootstrap: str, admin: Admin) -> None:
    """An unknown topic is refused at once, and nothing is created, in a cluster without automatic creation."""
    async with Producer(bootstrap) as producer:
        with raises(TopicNotFoundError, "trains"):
            await producer.send("trains", b"x")

    assert await admin.list_topics() == []


async def test_unknown_topics_are_created_by_setting(tmp_path: Path) -> None:
    """An unknown topic is created by its first record with `auto.create.topics.enable`."""
    anywhere = Endpoint("127.0.0.1", 0)
    settings = BrokerSettings(
        data=tmp_path, listen=anywhere, peer_listen=anywhere, ops_listen=anywhere,
        config_values={"auto.create.topics.enable": True},
    )  # fmt: skip
    broker = await start_broker(settings)
    try:
        async with Producer(f"http://{broker.addresses.data}") as producer:
            assert (await producer.send_and_wait("trains", b"x")).offset == 0
    finally:
        await broker.stop()


async def test_grown_partitions_are_used(bootstrap: str, admin: Admin) -> None:
    """New partitions of a topic are used after the next refresh of metadata, without a restart."""
    await admin.create_topic("flights", partitions=1)
    async with Producer(bootstrap) as producer:
        await producer.send_and_wait("flights", b"x")
        await admin.alter_topic("flights", partitions=3)
        await producer.refresh_metadata()
        stored = await producer.send_and_wait("flights", b"y", partition=2)

    assert (stored.partition, stored.offset) == (2, 0)


async def test_a_recreated_topic_is_another_one(bootstrap: str, admin: Admin) -> None:
    """A producer finds a topic that was deleted and created again, and continues with the new topic."""
    await admin.create_topic("flights")
    async with Producer(bootstrap) as producer:
        await producer.send_and_wait("flights", b"old")
        await admin.delete_topic("flights")
        await admin.create_topic("flights")
        stored = await producer.send_and_wait("flights", b"new")

    assert stored.offset == 0
    assert [record.value for record in await read_all(bootstrap, "flights")] == [b"new"]


async def test_a_topic_that_is_recreated_with_fewer_partitions_has_no_others(
    bootstrap: str, admin: Admin
) -> None:
    """When a topic is recreated with fewer partitions, records for missing partitions fail, and keys use the rest."""
    keys = [b"%d" % number for number in range(20)]
    await admin.create_topic("flights", partitions=6)
    async with asyncio.timeout(30), Producer(bootstrap) as producer:
        await producer.send_and_wait("flights", b"old", partition=5)
        await admin.delete_topic("flights")
        await admin.create_topic("flights", partitions=2)
        with raises(PartitionNotFoundError, "flights-5"):
            await producer.send_and_wait("flights", b"lost", partition=5)
        deliveries = [await producer.send("flights", b"new", key=key) for key in keys]
        partitions = [(await delivery).partition for delivery in deliveries]
        with pytest.raises(PartitionNotFoundError):
            await producer.send("flights", b"lost", partition=5)
        await admin.alter_topic("flights", partitions=6)
        await producer.refresh_metadata()
        assert (await producer.send_and_wait("flights", b"again", partition=5)).offset == 0

    assert partitions == [partition_for_key(key, 2) for key in keys]


class BrokenSampler(Sampler):
    """Sampler, as configured by a program, that raises an error for requests."""

    def should_sample(
        self, parent_context: Context | None, trace_id: int, name: str, *args: object, **more: object
    ) -> SamplingResult:
        """Raise an error for requests."""
        if name.startswith("send"):
            raise LookupError(name)
        return SamplingResult(Decision.RECORD_AND_SAMPLE)

    def get_description(self) -> str:
        """Return the name of the sampler."""
        return "broken"


async def test_a_failed_sender_fails_all_deliveries(
    monkeypatch: pytest.MonkeyPatch, bootstrap: str, admin: Admin
) -> None:
    """A producer whose sender failed fails unsent records and later sends with the cause."""
    await admin.create_topic("flights")
    provider = TracerProvider(sampler=BrokenSampler())
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: provider)
    producer = await Producer(bootstrap).start()
    async with asyncio.timeout(10):
        with trace.get_tracer("test").start_as_current_span("work"):
            first = await producer.send("flights", b"x")
        with pytest.raises(ClosedError) as failed:
            await first
        with pytest.raises(ClosedError) as refused:
            await producer.send("flights", b"x")
        with pytest.raises(ExceptionGroup):
            await producer.close()

    for raised in (failed, refused):
        assert isinstance(raised.value.__cause__, ExceptionGroup)
        assert isinstance(raised.value.__cause__.exceptions[0], LookupError)
