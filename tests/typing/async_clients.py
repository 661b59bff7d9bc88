"""A program that uses all of the async SDK; type checkers read the program, and no test runs it."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import assert_type

import pyarrow as pa

from fairlead import (
    Acks,
    Admin,
    BatchDelivery,
    BatchMetadata,
    CommitMode,
    Consumer,
    ConsumerBatch,
    Delivery,
    Membership,
    OffsetAndTimestamp,
    OffsetPolicy,
    Producer,
    ProducerMetrics,
    Record,
    RecordMetadata,
    TopicPartition,
)
from fairlead_api.bodies.metadata import TopicDescription


async def produce() -> None:
    """Produce with settings of each type: numbers, text with a unit, durations and members of enumerations."""
    async with Producer(
        "http://127.0.0.1:9520",
        acks=Acks.ALL,
        linger_ms=2.5,
        compression="zstd",
        delivery_timeout=timedelta(minutes=1),
        request_timeout="10s",
        retries_max=None,
        name="billing",
    ) as producer:
        assert_type(producer, Producer)
        assert_type(producer.metrics, ProducerMetrics)
        assert_type(producer.metrics.waited_seconds, float)
        delivery = await producer.send("flights", b"1545", key=b"UA", headers=[("a", b"b")], partition=1)
        assert_type(delivery, Delivery)
        assert_type(delivery.done, bool)
        stored = await delivery
        assert_type(stored, RecordMetadata)
        assert_type(stored.offset, int)
        assert_type(stored.timestamp, datetime)
        assert_type(await producer.send_and_wait("flights", None), RecordMetadata)
        pieces = await producer.send_batch("flights", pa.table({"value": [b"a"]}))
        assert_type(pieces, list[BatchDelivery])
        assert_type(await pieces[0], BatchMetadata)
        await producer.flush()


async def consume() -> None:
    """Consume batches, iterate over their records, and use a batch as Arrow data."""
    async with Consumer(
        ["http://a:9520", "http://b:9520"],
        group="readers",
        topics="flights",
        start="10m",
        commit=CommitMode.AFTER,
        processing_timeout=timedelta(minutes=5),
        offset_policy=OffsetPolicy.EARLIEST,
        on_assigned=on_assigned,
        on_revoked=lambda places: None,
    ) as consumer:
        async for batch in consumer:
            assert_type(batch, ConsumerBatch)
            assert_type(batch.to_arrow(), pa.RecordBatch)
            assert_type(batch.values, list[bytes | None])
            for record in batch:
                assert_type(record, Record)
                assert_type(record.key, bytes | None)
                assert_type(record.timestamp, datetime)
            await consumer.commit({batch.topic_partition: batch.next_offset})
        async for record in consumer.records():
            assert_type(record.offset, int)
        assert_type(await consumer.next_batch("1s"), ConsumerBatch | None)
        assert_type(consumer.assignment, frozenset[TopicPartition])
        assert_type(consumer.membership, Membership)
        assert_type(await consumer.committed(), dict[TopicPartition, int | None])


async def on_assigned(places: frozenset[TopicPartition]) -> None:
    """A callback that is a coroutine."""
    assert_type(places, frozenset[TopicPartition])


async def read_a_topic() -> None:
    """Read a topic without a group by `assign`, and request log ends."""
    async with Consumer() as consumer:
        assert_type(await consumer.assign(topic="flights", start="latest"), frozenset[TopicPartition])
        ends = await consumer.end_offsets()
        assert_type(ends, dict[TopicPartition, int])
        async for batch in consumer.batches(until=ends):
            assert_type(batch.record_count, int)
        place = TopicPartition("flights", 0)
        found = await consumer.offsets_for_times({place: 0})
        assert_type(found, dict[TopicPartition, OffsetAndTimestamp | None])


async def administer() -> None:
    """Use typed answers and their fields."""
    async with Admin() as admin:
        topic = await admin.create_topic("flights", partitions=3, config={"compression.type": "zstd"})
        assert_type(topic, TopicDescription)
        assert_type(topic.partitions, int)
        assert_type(await admin.list_topics(), list[TopicDescription])
        lag = await admin.group_lag("readers")
        assert_type(lag.total_records, int)
