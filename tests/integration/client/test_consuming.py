"""The consumer against a real broker."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest

from fairlead import Admin, Consumer, Producer, TopicPartition
from fairlead.errors import (
    ClosedError,
    OffsetOutOfRangeError,
    PartitionNotFoundError,
    SettingError,
    TopicNotFoundError,
)
from refusals import raises

START = datetime(2013, 1, 1, tzinfo=UTC)


def at(partition: int, topic: str = "flights") -> TopicPartition:
    """Return a partition of the topic that these tests use."""
    return TopicPartition(topic, partition)


async def fill(bootstrap: str, count: int, partition: int = 0, first: int = 0) -> None:
    """Store records `first` to `first + count`, ten per batch, one per second from START on."""
    async with Producer(bootstrap) as producer:
        for base in range(first, first + count, 10):
            rows = range(base, min(base + 10, first + count))
            table = pa.table(
                {
                    "value": [str(row).encode() for row in rows],
                    "timestamp": [START + timedelta(seconds=row) for row in rows],
                }
            )
            await producer.send_batch("flights", table, partition=partition)


async def read(consumer: Consumer) -> list[int]:
    """Return the values between the positions and the end offsets, as numbers."""
    until = await consumer.end_offsets()
    return [int(record.value or b"") async for record in consumer.records(until=until)]


@pytest.fixture(autouse=True)
async def topic(admin: Admin) -> None:
    """Create the topic `flights` with two partitions."""
    await admin.create_topic("flights", partitions=2)


async def test_a_reader_without_partitions_is_refused(bootstrap: str) -> None:
    """A consumer without partitions is refused instead of waiting forever, as is a topic name given as partitions."""
    async with Consumer(bootstrap) as consumer:
        with pytest.raises(SettingError) as empty:
            await consumer.next_batch()
        assert (empty.value.name, empty.value.value) == ("assignment", None)
        for wrong in ("flights", [("flights", 0)]):
            with pytest.raises(SettingError) as refused:
                await consumer.assign(wrong)  # type: ignore[arg-type]
            assert refused.value.name == "partitions"
        await consumer.assign([])

        assert await consumer.next_batch("10ms") is None


async def test_a_topic_is_read_from_its_beginning(bootstrap: str) -> None:
    """Records of all partitions of a topic are read from the beginning, in order within each partition."""
    await fill(bootstrap, 50, partition=0)
    await fill(bootstrap, 30, partition=1, first=100)
    async with Consumer(bootstrap) as consumer:
        assert await consumer.assign(topic="flights") == {at(0), at(1)}
        values = await read(consumer)

    assert [value for value in values if value < 100] == list(range(50))
    assert [value for value in values if value >= 100] == list(range(100, 130))


async def test_arrow_batches_have_their_offsets(bootstrap: str) -> None:
    """Arrow batches are the stored batches, with offset, key, value, timestamp and headers."""
    await fill(bootstrap, 25)
    async with Consumer(bootstrap) as consumer:
        await consumer.assign([at(0)])
        batches = [batch async for batch in consumer.batches(until=await consumer.end_offsets())]

    assert [(batch.base_offset, batch.next_offset, batch.record_count) for batch in batches] == [
        (0, 10, 10), (10, 20, 10), (20, 25, 5),
    ]  # fmt: skip
    table = pa.Table.from_batches([batch.to_arrow() for batch in batches])
    assert table.column("offset").to_pylist() == list(range(25))
    assert table.column("value").to_pylist() == [str(row).encode() for row in range(25)]
    assert table.column("timestamp").to_pylist()[3] == START + timedelta(seconds=3)


@pytest.mark.slow
@pytest.mark.parametrize("offset", [0, 3, 10, 19, 20, 24, 25])
async def test_reading_begins_exactly_at_the_offset(bootstrap: str, offset: int) -> None:
    """Records below the offset at which reading begins are not delivered, even inside a batch."""
    await fill(bootstrap, 25)
    async with Consumer(bootstrap) as consumer:
        await consumer.assign([at(0)])
        await consumer.seek(at(0), offset)

        assert await read(consumer) == list(range(offset, 25))
        assert consumer.position(at(0)) == 25


async def test_seeking_by_time_finds_the_first_record_at_or_after_it(bootstrap: str) -> None:
    """A seek to a time, exact to the microsecond, finds the first record at or after the time, or the log's end."""
    await fill(bootstrap, 25)
    async with Consumer(bootstrap) as consumer:
        await consumer.assign([at(0)])

        assert await consumer.seek(at(0), START + timedelta(seconds=12)) == 12
        assert await consumer.seek(at(0), START + timedelta(seconds=11, microseconds=1)) == 12
        assert await consumer.seek(at(0), START - timedelta(days=1)) == 0
        assert await consumer.seek(at(0), START + timedelta(days=1)) == 25
        found = await consumer.offsets_for_times({at(0): START + timedelta(seconds=7)})
        answer = found[at(0)]
        assert answer is not None
        assert (answer.offset, answer.timestamp) == (7, START + timedelta(seconds=7))


async def test_seeking_to_the_ends(bootstrap: str) -> None:
    """A seek to earliest or latest works in both directions during a prefetch."""
    await fill(bootstrap, 100)
    async with Consumer(bootstrap) as consumer:
        await consumer.assign([at(0)])
        assert len(await read(consumer)) == 100
        assert await consumer.seek(at(0), "earliest") == 0
        batch = await consumer.next_batch(timeout="10s")
        assert batch is not None
        assert batch.base_offset == 0
        assert await consumer.seek(at(0), "latest") == 100
        assert await read(consumer) == []
        assert await consumer.seek(at(0), 90) == 90
        assert await read(consumer) == list(range(90, 100))


async def test_reading_stops_at_the_end_of_its_start(bootstrap: str) -> None:
    """Records that are stored after the read began are left for the next read, and the position is the next offset."""
    await fill(bootstrap, 20)
    async with Consumer(bootstrap) as consumer:
        await consumer.assign(topic="flights")
        until = await consumer.end_offsets()
        await fill(bootstrap, 20, first=20)

        assert [int(r.value or b"") async for r in consumer.records(until=until)] == list(range(20))
        assert consumer.position(at(0)) == 20
        assert await read(consumer) == list(range(20, 40))


async def test_reading_stops_in_the_middle_of_a_batch(bootstrap: str) -> None:
    """An end offset between two records of one batch is respected exactly."""
    await fill(bootstrap, 30)
    async with Consumer(bootstrap) as consumer:
        await consumer.assign([at(0)])

        first = [int(r.value or b"") async for r in consumer.records(until={at(0): 13})]
        assert first == list(range(13))
        assert await read(consumer) == list(range(13, 30))


async def test_new_records_wake_a_waiting_reader(bootstrap: str) -> None:
    """A long poll ends when a record is stored, long before its timeout."""
    async with Consumer(bootstrap, fetch_wait_max="60s") as consumer:
        await consumer.assign(topic="flights", start="latest")
        async with asyncio.TaskGroup() as tasks, asyncio.timeout(10):
            waiting = tasks.create_task(consumer.next_batch())
            await fill(bootstrap, 1, partition=1)
            batch = await waiting

    assert batch is not None
    assert (batch.partition, batch.values) == (1, [b"0"])


async def test_a_quiet_partition_does_not_delay_a_busy_one(bootstrap: str) -> None:
    """A long poll of a quiet partition does not delay records of other partitions."""
    await fill(bootstrap, 2_000, partition=0)
    async with Consumer(bootstrap, fetch_wait_max="60s", partition_fetch_bytes_max=20_000) as consumer:
        await consumer.assign(topic="flights")
        async with asyncio.timeout(20):
            assert len(await read(consumer)) == 2_000


async def test_a_small_prefetch_still_reads_everything(bootstrap: str) -> None:
    """A small prefetch limit reduces memory use, and all records are still read."""
    await fill(bootstrap, 500, partition=0)
    await fill(bootstrap, 500, partition=1, first=500)
    async with Consumer(
        bootstrap, prefetch_bytes=1, fetch_bytes_max=1, partition_fetch_bytes_max=1
    ) as consumer:
        await consumer.assign(topic="flights")

        assert sorted(await read(consumer)) == list(range(1_000))


@pytest.mark.parametrize("way", ["pause", "until"])
async def test_fetched_records_of_other_partitions_do_not_block_a_partition(bootstrap: str, way: str) -> None:
    """Prefetched records of a paused or unread partition do not block other partitions."""
    for partition in range(2):
        await fill(bootstrap, 100, partition, first=100 * partition)
    async with Consumer(bootstrap, prefetch_bytes=1, partition_fetch_bytes_max=2_000) as consumer:
        await consumer.assign(topic="flights")
        await filled(consumer)
        if way == "pause":
            consumer.pause(at(1))
        async with asyncio.timeout(30):
            got = [int(record.value or b"") async for record in consumer.records({at(0): 100})]
        assert got == list(range(100))
        consumer.resume()
        assert await read(consumer) == list(range(100, 200))


async def filled(consumer: Consumer) -> None:
    """Wait until records of both partitions are prefetched."""
    async with asyncio.timeout(30):
        while not all(cursor.buffered_bytes for cursor in consumer._prefetch.cursors.values()):
            await consumer.end_offsets()


async def test_pausing_takes_effect_at_the_next_record(bootstrap: str) -> None:
    """A pause takes effect at the next record, and the rest of the batch is delivered later, once and in order."""
    await fill(bootstrap, 20)
    async with Consumer(bootstrap) as consumer:
        await consumer.assign([at(0)])
        got: list[int] = []

        async def take_records() -> None:
            """Take records, and pause at the fourth record."""
            async for record in consumer.records():
                got.append(record.offset)
                if record.offset == 3:
                    consumer.pause(at(0))
                if record.offset == 19:
                    return

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(take_records())
            while consumer.position(at(0)) != 4:
                await consumer.end_offsets()
            assert got == [0, 1, 2, 3]
            consumer.resume(at(0))

    assert got == list(range(20))


async def test_an_empty_take_is_a_timeout(bootstrap: str) -> None:
    """A consumer returns None from `next_batch` after its timeout and continues."""
    async with Consumer(bootstrap) as consumer:
        await consumer.assign(topic="flights")
        assert await consumer.next_batch(timeout="50ms") is None
        await fill(bootstrap, 1)
        batch = await consumer.next_batch(timeout="10s")

    assert batch is not None


async def test_an_offset_outside_the_log_is_an_error_by_default(bootstrap: str) -> None:
    """A read at an offset outside the log fails with an error that names the remedy; a seek works afterwards."""
    await fill(bootstrap, 5)
    async with Consumer(bootstrap) as consumer:
        await consumer.assign([at(0)], start=99)
        with raises(OffsetOutOfRangeError, "flights-0", 99) as raised:
            await consumer.next_batch(timeout="10s")
        assert "offset_policy" in raised.value.__notes__[0]
        await consumer.seek(at(0), "earliest")

        assert await read(consumer) == list(range(5))


@pytest.mark.parametrize(("policy", "expected"), [("earliest", list(range(6))), ("latest", [5])])
async def test_an_offset_outside_the_log_follows_the_policy(
    bootstrap: str, policy: str, expected: list[int]
) -> None:
    """The policy resets an offset outside the log: to the log start (earliest) or to new records (latest)."""
    await fill(bootstrap, 5)
    async with Consumer(bootstrap, offset_policy=policy) as consumer:
        await consumer.assign([at(0)], start=99)
        values: list[int] = []
        await consumer.next_batch(timeout="0s")
        async with asyncio.timeout(10):
            while consumer.high_watermark(at(0)) is None:
                batch = await consumer.next_batch(timeout="20ms")
                values += [] if batch is None else [int(value or b"") for value in batch.values]
            await fill(bootstrap, 1, first=5)
            while values[-1:] != [5]:
                batch = await consumer.next_batch()
                assert batch is not None
                values += [int(value or b"") for value in batch.values]

    assert values == expected


async def test_a_failing_partition_is_reported_once_and_the_others_continue(bootstrap: str) -> None:
    """A partition whose offset is out of range is reported once and does not stop another partition."""
    await fill(bootstrap, 10, partition=1)
    async with Consumer(bootstrap) as consumer:
        await consumer.assign(topic="flights")
        await consumer.seek(at(0), 99)
        values: list[int] = []
        errors = 0
        async with asyncio.timeout(10):
            while len(values) < 10 or errors < 1:
                try:
                    batch = await consumer.next_batch()
                except OffsetOutOfRangeError:
                    errors += 1
                else:
                    assert batch is not None
                    values += [int(value or b"") for value in batch.values]

    assert (values, errors) == (list(range(10)), 1)


async def test_a_new_assignment_replaces_the_old_one(bootstrap: str) -> None:
    """Records of a partition that is no longer assigned are not delivered."""
    await fill(bootstrap, 20, partition=0)
    await fill(bootstrap, 20, partition=1, first=100)
    async with Consumer(bootstrap) as consumer:
        await consumer.assign([at(0)])
        await consumer.next_batch(timeout="10s")
        await consumer.assign([at(1)])

        assert await read(consumer) == list(range(100, 120))
        with pytest.raises(SettingError) as refused:
            consumer.position(at(0))
        assert (refused.value.name, refused.value.value) == ("partition", "flights-0")


async def test_partitions_that_a_topic_has_just_grown_are_found(bootstrap: str, admin: Admin) -> None:
    """New partitions of a topic can be assigned, and their offsets requested, before the metadata is refreshed."""
    async with Consumer(bootstrap) as consumer:
        await consumer.assign(topic="flights")
        await admin.alter_topic("flights", partitions=3)
        assert await consumer.assign([at(2)]) == {at(2)}
        await admin.alter_topic("flights", partitions=4)
        found = await consumer.offsets_for_times({at(3): "latest"})
        with raises(PartitionNotFoundError, 0, 3, 4):
            await consumer.assign([at(4)])

    assert found[at(3)] is not None


async def test_wrong_assignments_are_refused_by_name(bootstrap: str) -> None:
    """A refusal names the unknown topic, the unknown partition or the invalid position."""
    async with Consumer(bootstrap) as consumer:
        with raises(TopicNotFoundError, "trains"):
            await consumer.assign(topic="trains")
        with raises(PartitionNotFoundError, 0, 1, 2):
            await consumer.assign([at(2)])
        with pytest.raises(SettingError) as negative:
            await consumer.assign([at(0)], start=-1)
        with pytest.raises(SettingError) as unknown:
            await consumer.assign([at(0)], start="middle")  # type: ignore[arg-type]

    assert (negative.value.name, negative.value.value) == ("offset", -1)
    assert (unknown.value.name, unknown.value.value) == ("position", "middle")


async def test_a_deleted_topic_is_an_error_for_its_reader(bootstrap: str, admin: Admin) -> None:
    """Reading a deleted topic fails instead of waiting forever."""
    async with Consumer(bootstrap) as consumer:
        await consumer.assign(topic="flights")
        await consumer.next_batch(timeout="50ms")
        await admin.delete_topic("flights")
        with pytest.raises(TopicNotFoundError):
            await consumer.next_batch(timeout="20s")


async def test_a_consumer_that_is_started_again_continues_at_its_position(bootstrap: str) -> None:
    """A restarted consumer continues after the last delivered record, without waiting for its old requests."""
    await fill(bootstrap, 20)
    consumer = Consumer(bootstrap)
    async with consumer:
        await consumer.assign([at(0)])
        async for record in consumer.records():
            if record.offset == 3:
                break
    async with consumer:
        assert await read(consumer) == list(range(4, 20))
        # A long poll is in flight when the consumer is closed.
        assert await consumer.next_batch(timeout="100ms") is None
    async with consumer:
        await fill(bootstrap, 10, first=20)
        batch = await consumer.next_batch(timeout="20s")

    assert batch is not None
    assert batch.base_offset == 20


async def test_a_consumer_is_started_once(bootstrap: str) -> None:
    """A second start of a consumer is refused, and the consumer continues with the partitions of the first start."""
    await fill(bootstrap, 10)
    consumer = await Consumer(bootstrap, group="g", topics="flights").start()
    try:
        with raises(SettingError, name="start"):
            async with consumer:
                pass
        assert await consumer.next_batch(timeout="20s") is not None
    finally:
        await consumer.close()


async def test_one_take_at_a_time(bootstrap: str) -> None:
    """A second take at the same time is refused, and the first take gets the batch."""
    async with Consumer(bootstrap) as consumer:
        await consumer.assign(topic="flights")
        async with asyncio.TaskGroup() as tasks:
            waiting = tasks.create_task(consumer.next_batch(timeout="30s"))
            await consumer.end_offsets()
            for second in (consumer.next_batch(), anext(consumer.batches()), anext(consumer.records())):
                with pytest.raises(SettingError):
                    await second
            await fill(bootstrap, 10)
        batch = waiting.result()
        assert batch is not None
        assert len(batch) == 10
        # A call of take that timed out does not block the next call.
        assert await consumer.next_batch(timeout="1ms") is None
        assert await consumer.next_batch(timeout="1ms") is None


async def test_closing_ends_the_iteration(bootstrap: str) -> None:
    """Iterating over a closed consumer raises an error instead of waiting forever."""
    async with Consumer(bootstrap) as consumer:
        await consumer.assign(topic="flights")
        async with asyncio.TaskGroup() as tasks:
            waiting = tasks.create_task(_closed(consumer))
            await consumer.end_offsets()
            await consumer.close()

    assert waiting.result()


async def _closed(consumer: Consumer) -> bool:
    try:
        await consumer.next_batch()
    except ClosedError:
        return True
    return False
