"""The producer, against a real listener with scripted refusals."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa
import pytest

from fairlead import Producer, clock
from fairlead.errors import (
    AckTimeoutError,
    BatchTooLargeError,
    CrcMismatchError,
    DeliveryTimeoutError,
    InvalidRecordError,
    InvalidTopicNameError,
    MalformedBatchError,
    PartitionNotFoundError,
    RecordError,
    TopicNotFoundError,
    UnreachableError,
)
from fairlead_api.partitioning import partition_for_key
from fairlead_api.problems import SideEffect
from refusals import raises
from waiting import until

if TYPE_CHECKING:
    from conftest import Received, Reply, ScriptedBroker

PRODUCE = "/v1/produce"


@pytest.fixture
async def producer(broker: ScriptedBroker) -> AsyncIterator[Producer]:
    """Yield a producer of the scripted broker."""
    async with Producer(broker.url) as producer:
        yield producer


async def test_a_record_is_stored_and_acknowledged(broker: ScriptedBroker, producer: Producer) -> None:
    """The acknowledgement of a record contains the topic, partition, offset and timestamp."""
    moment = datetime(2013, 1, 1, 5, 15, tzinfo=UTC)
    delivery = await producer.send("flights", b"UA1545", key=b"UA", headers=[("h", b"1")], timestamp=moment)
    metadata = await delivery

    partition = partition_for_key(b"UA", 2)
    assert (metadata.topic, metadata.partition, metadata.offset) == ("flights", partition, 0)
    assert metadata.timestamp == moment
    [record] = broker.logs[partition]
    assert (record.key, record.value, record.headers) == (b"UA", b"UA1545", (("h", b"1"),))


async def test_a_batch_that_lingers_does_not_wake_the_sender(broker: ScriptedBroker) -> None:
    """A record that lingers does not wake the sender if the sender already waits for an earlier deadline."""
    async with Producer(broker.url, linger_ms=60_000) as producer:
        first = await producer.send("flights", b"x", partition=0)
        awake = producer._sender._awake
        await until(lambda: producer._sender._sleeps_until is not None and not awake.is_set())
        second = await producer.send("flights", b"y", partition=1)

        assert not awake.is_set()
        await producer.flush()
        assert (first.done, second.done) == (True, True)


async def test_a_shorter_linger_is_not_slept_through(broker: ScriptedBroker) -> None:
    """A record that is due before the sender's next deadline wakes the sender."""
    async with Producer(broker.url, linger_ms=20, batch_bytes=100) as producer:
        await producer.send_and_wait("flights", b"x", partition=0)
        async with asyncio.timeout(30):
            deliveries = [await producer.send("flights", b"y" * 60, partition=1) for _ in range(20)]
            for delivery in deliveries:
                await delivery

    assert len(broker.logs[1]) == 20


async def test_calls_ask_not_to_be_forwarded(broker: ScriptedBroker, producer: Producer) -> None:
    """Produce calls contain a timeout, and forbid forwarding because the SDK handles status 421 itself."""
    await producer.send_and_wait("flights", b"x")
    [request] = broker.received(PRODUCE)

    assert request.headers["fairlead-forward"] == "never"
    assert request.query == {"acks": "all", "timeout_ms": "30000"}


async def test_records_keep_their_order_and_share_batches(broker: ScriptedBroker, producer: Producer) -> None:
    """The records of a thousand sends are stored in order with a few requests."""
    deliveries = [await producer.send("flights", str(row).encode(), partition=0) for row in range(1000)]
    offsets = [(await delivery).offset for delivery in deliveries]

    assert offsets == list(range(1000))
    assert broker.values(0) == [str(row).encode() for row in range(1000)]
    assert len(broker.received(PRODUCE)) < 20


async def test_records_without_a_linger_time_share_a_request(broker: ScriptedBroker) -> None:
    """Records that a program sends to several partitions in a row are in one request, also without a linger time."""
    async with Producer(broker.url, linger_ms=0) as producer:
        await producer.send_and_wait("flights", b"first", partition=0)
        deliveries = [await producer.send("flights", b"next", partition=each) for each in range(2)]
        for delivery in deliveries:
            await delivery

    assert [len(request.batches()) for request in broker.received(PRODUCE)] == [1, 2]


async def test_records_without_a_key_reach_all_partitions(broker: ScriptedBroker) -> None:
    """Records without a key are distributed evenly over all partitions, batch by batch."""
    async with Producer(broker.url, batch_bytes=1000) as producer:
        for row in range(400):
            await producer.send("flights", str(row).encode())

    counts = [len(broker.values(partition)) for partition in range(2)]
    assert sum(counts) == 400
    assert min(counts) > 100


async def test_records_without_a_key_that_come_together_are_one_batch_of_one_partition(
    broker: ScriptedBroker,
) -> None:
    """Records without a key within the linger time form one batch of one partition.

    A record with an empty key counts as a record with a key.
    """
    async with Producer(broker.url, linger_ms=1000) as producer:
        for row in range(100):
            await producer.send("flights", b"%d" % row)
        await producer.send("flights", b"keyed", key=b"")
        await producer.flush()

    values = [broker.values(partition) for partition in range(2)]
    assert b"keyed" in values[partition_for_key(b"", 2)]
    together = [[value for value in each if value != b"keyed"] for each in values]
    assert sorted(together, key=len) == [[], [b"%d" % row for row in range(100)]]


@pytest.mark.parametrize(
    "code", ["not_enough_replicas", "throttled", "leader_changed", "not_leader", "disk_full"]
)
async def test_retryable_problems_are_retried(broker: ScriptedBroker, producer: Producer, code: str) -> None:
    """Retryable problems are retried until the record is stored."""
    broker.refuse(PRODUCE, code, code)
    metadata = await producer.send_and_wait("flights", b"x", partition=1)

    assert metadata.offset == 0
    assert len(broker.received(PRODUCE)) == 3


async def test_a_problem_that_stays_wrong_is_raised_at_once(
    broker: ScriptedBroker, producer: Producer
) -> None:
    """A problem of the kind `fix` is raised without a retry, and the producer remains usable."""
    broker.refuse(PRODUCE, "crc_mismatch")
    with raises(CrcMismatchError, "flights-0"):
        await producer.send_and_wait("flights", b"x", partition=0)

    assert len(broker.received(PRODUCE)) == 1
    assert (await producer.send_and_wait("flights", b"y", partition=0)).offset == 0


async def test_a_refused_partition_does_not_stop_the_others(
    broker: ScriptedBroker, producer: Producer
) -> None:
    """If one partition of a request is refused, only the batch of that partition is sent again."""

    async def half(received: Received) -> Reply:
        """Store the batch of one partition, and refuse the batch of the other partition."""
        results: list[dict[str, object]] = []
        for topic_id, partition, records in received.frames():
            if partition == 0:
                problem = {"code": "not_leader", "status": 421, "kind": "refresh", "detail": "ask another"}
                results.append({"topic_id": topic_id, "partition": 0, "problem": problem})
            else:
                results.append(broker.store(topic_id, partition, records))
        return 207, {}, msgspec.json.encode({"results": results})

    broker.script(PRODUCE, half)
    first = await producer.send("flights", b"zero", partition=0)
    second = await producer.send("flights", b"one", partition=1)
    await producer.flush()

    assert ((await first).offset, (await second).offset) == (0, 0)
    assert (broker.values(0), broker.values(1)) == ([b"zero"], [b"one"])
    assert [[frame[1] for frame in request.frames()] for request in broker.received(PRODUCE)] == [[0, 1], [0]]


async def test_order_holds_over_retries(broker: ScriptedBroker) -> None:
    """Retries preserve the order of batches."""
    broker.refuse(PRODUCE, *["not_enough_replicas"] * 3)
    async with Producer(broker.url, batch_bytes=200, linger_ms=0) as producer:
        for row in range(100):
            await producer.send("flights", str(row).encode(), partition=0)

    assert broker.values(0) == [str(row).encode() for row in range(100)]


async def test_without_sequences_a_partition_has_one_request_under_way(broker: ScriptedBroker) -> None:
    """Without sequences, a partition has one request in flight, because HTTP/2 streams may overtake each other."""
    under_way = most = 0

    async def slow(_: Received) -> Reply | None:
        """Delay a request and count the requests in flight."""
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        await asyncio.wait([asyncio.get_running_loop().create_future()], timeout=0.01)
        under_way -= 1
        return None

    broker.script(PRODUCE, *[slow] * 50)
    async with Producer(broker.url, batch_bytes=100, linger_ms=0, idempotence=False) as producer:
        for row in range(60):
            await producer.send("flights", str(row).encode(), partition=0)

    assert most == 1
    assert broker.values(0) == [str(row).encode() for row in range(60)]


async def test_the_new_leader_is_found(broker: ScriptedBroker, producer: Producer) -> None:
    """An answer with status 421 causes a refresh of the metadata, and the batch is sent to the new leader."""
    await producer.send_and_wait("flights", b"first", partition=0)
    async with type(broker)() as other:
        broker.addresses = {1: broker.url, 2: other.url}
        broker.leaders = [2, 1]
        broker.refuse(PRODUCE, "not_leader")
        await producer.send_and_wait("flights", b"second", partition=0)

        assert other.values(0) == [b"second"]


async def test_a_partition_without_a_leader_waits_for_one(broker: ScriptedBroker, producer: Producer) -> None:
    """A batch for a partition without a leader waits for a leader until its delivery timeout."""
    broker.leaders = [None, 1]
    delivery = await producer.send("flights", b"x", partition=0)

    async def elected(_: Received) -> None:
        """Give the partition a leader."""
        broker.leaders = [1, 1]

    broker.script("/v1/metadata", elected)
    assert (await delivery).offset == 0


async def test_the_delivery_timeout_has_the_last_refusal(broker: ScriptedBroker) -> None:
    """The error for a delivery timeout contains the last refusal and whether the record may be stored."""
    broker.refuse(PRODUCE, *["ack_timeout"] * 100)
    async with Producer(broker.url, delivery_timeout="300ms") as producer:
        with pytest.raises(DeliveryTimeoutError) as raised:
            await producer.send_and_wait("flights", b"x", partition=0)

    assert raised.value.side_effect is SideEffect.MAYBE
    assert raised.value.record_count == 1
    assert "scripted ack_timeout" in str(raised.value)


async def test_without_retries_the_first_refusal_is_final(broker: ScriptedBroker) -> None:
    """With `retries_max=0`, a batch is never sent twice, for at-most-once delivery."""
    broker.refuse(PRODUCE, "ack_timeout")
    async with Producer(broker.url, retries_max=0, acks=1) as producer:
        with pytest.raises(AckTimeoutError):
            await producer.send_and_wait("flights", b"x")

    assert len(broker.received(PRODUCE)) == 1


async def test_flush_raises_failures_that_were_not_awaited(
    broker: ScriptedBroker, producer: Producer
) -> None:
    """A flush raises each failure once, as a group, unless the failed delivery was awaited."""
    broker.refuse(PRODUCE, "malformed_batch", "crc_mismatch")
    with pytest.raises(MalformedBatchError):
        await producer.send_and_wait("flights", b"seen", partition=0)
    await producer.send("flights", b"unseen", partition=0)
    with pytest.raises(ExceptionGroup) as raised:
        await producer.flush()

    assert [type(error) for error in raised.value.exceptions] == [CrcMismatchError]
    await producer.flush()


async def test_leaving_the_block_flushes_and_raises(broker: ScriptedBroker) -> None:
    """The end of a producer's `with` block flushes the producer and raises failures."""

    async def work() -> None:
        """Use the producer as a program does."""
        async with Producer(broker.url, linger_ms=60_000) as producer:
            await producer.send("flights", b"lingers", partition=1)
            broker.refuse(PRODUCE, "malformed_batch")

    with pytest.raises(ExceptionGroup):
        await work()


async def test_leaving_the_block_by_an_exception_flushes_too(broker: ScriptedBroker) -> None:
    """An exception in a producer's `with` block is raised, with the failures of the flush added as notes."""

    async def work() -> None:
        """Use the producer as a program does."""
        async with Producer(broker.url, linger_ms=60_000) as producer:
            await producer.send("flights", b"kept", partition=1)
            await producer.flush()
            await producer.send("flights", b"refused", partition=1)
            broker.refuse(PRODUCE, "malformed_batch")
            raise ValueError("mine")

    with raises(ValueError, "mine") as raised:
        await work()

    assert broker.values(1) == [b"kept"]
    assert len(raised.value.__notes__) == 1


async def test_a_full_buffer_makes_send_wait(broker: ScriptedBroker) -> None:
    """A full buffer makes `send` wait for acknowledgements, which bounds the memory."""
    held: list[asyncio.Event] = []

    async def hold(_: Received) -> None:
        """Delay a request until the test allows it."""
        event = asyncio.Event()
        held.append(event)
        await event.wait()

    broker.script(PRODUCE, hold)
    async with Producer(broker.url, buffer_bytes=1000, linger_ms=0) as producer:
        for _ in range(8):
            await producer.send("flights", b"x" * 100, partition=0)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await producer.send("flights", b"y" * 100, partition=0)
        held[0].set()
        await producer.send("flights", b"z" * 100, partition=0)

    assert broker.values(0) == [b"x" * 100] * 8 + [b"z" * 100]


async def test_lingering_batches_leave_when_the_buffer_is_full(broker: ScriptedBroker) -> None:
    """Lingering batches are sent when the buffer is full."""
    async with Producer(broker.url, buffer_bytes=1000, linger_ms=3_600_000) as producer:
        async with asyncio.timeout(10):
            for _ in range(50):
                await producer.send("flights", b"x" * 100)


async def test_a_lingering_batch_is_sent_when_room_is_needed(broker: ScriptedBroker) -> None:
    """A batch does not linger while another send waits for its buffer space."""
    async with Producer(broker.url, linger_ms=60_000, buffer_bytes=1000) as producer, asyncio.timeout(5):
        await producer.send("flights", b"x" * 900, partition=0)
        async with asyncio.TaskGroup() as tasks:
            for size in (200, 900):
                tasks.create_task(producer.send("flights", b"y" * size, partition=0))

    assert [len(value or b"") for value in broker.values(0)] == [900, 200, 900]


async def test_tables_are_sent_by_key(broker: ScriptedBroker, producer: Producer) -> None:
    """Rows of a table are sent to the partitions of their keys, with one delivery for each batch."""
    keys = [str(row % 7).encode() for row in range(100)]
    values = [str(row).encode() for row in range(100)]
    deliveries = await producer.send_batch("flights", pa.table({"key": keys, "value": values}))
    stored = [await delivery for delivery in deliveries]

    assert sum(metadata.record_count for metadata in stored) == 100
    for partition in range(2):
        expected = [v for k, v in zip(keys, values, strict=True) if partition_for_key(k, 2) == partition]
        assert broker.values(partition) == expected


async def test_a_table_larger_than_the_buffer_is_sent(broker: ScriptedBroker) -> None:
    """A table larger than the buffer is sent piece by piece, in order."""
    table = pa.table({"value": [str(row).encode().ljust(100) for row in range(5000)]})
    async with Producer(
        broker.url, buffer_bytes=60_000, batch_bytes=1000, columnar_batch_bytes=20_000
    ) as producer:
        await producer.send_batch("flights", table, partition=1)

    assert broker.values(1) == table.column("value").to_pylist()


async def test_tables_and_records_keep_their_order(broker: ScriptedBroker, producer: Producer) -> None:
    """Records and tables are stored in the order in which they were sent."""
    await producer.send("flights", b"before", partition=0)
    await producer.send_batch("flights", pa.table({"value": [b"table"]}), partition=0)
    await producer.send("flights", b"after", partition=0)
    await producer.flush()

    assert broker.values(0) == [b"before", b"table", b"after"]


async def test_wrong_records_are_refused_before_they_can_spoil_a_batch(producer: Producer) -> None:
    """An invalid record is refused before it is added to a batch, and the error explains the next step."""
    with raises(RecordError, field="value"):
        await producer.send("flights", "text")  # type: ignore[arg-type]
    with raises(RecordError, field="key"):
        await producer.send("flights", b"x", key=1)  # type: ignore[arg-type]
    with raises(RecordError, field="header h"):
        await producer.send("flights", b"x", headers=[("h", "text")])  # type: ignore[list-item]
    with raises(PartitionNotFoundError, 0, 1, 2):
        await producer.send("flights", b"x", partition=2)
    with pytest.raises(PartitionNotFoundError):
        await producer.send_batch("flights", pa.table({"value": [b"x"]}), partition=9)
    with raises(InvalidRecordError, "colour"):
        await producer.send_batch("flights", pa.table({"value": [b"x"], "colour": ["red"]}))
    with pytest.raises(InvalidTopicNameError):
        await producer.send("no/slash", b"x")
    with raises(TopicNotFoundError, "trains"):
        await producer.send("trains", b"x")


async def test_views_of_bytes_are_copied(broker: ScriptedBroker, producer: Producer) -> None:
    """Changing a buffer after `send` does not change the record."""
    changing = bytearray(b"first")
    delivery = await producer.send("flights", changing, partition=0)  # type: ignore[arg-type]
    changing[:] = b"later"
    await delivery

    assert broker.values(0) == [b"first"]


async def test_headers_are_those_of_the_call(broker: ScriptedBroker, producer: Producer) -> None:
    """Headers are read during `send`: a list can be reused, and an iterator is accepted."""
    headers: list[tuple[str, bytes | None]] = []
    for number in range(3):
        headers[:] = [("number", b"%d" % number)]
        await producer.send("flights", b"x", headers=headers, partition=0)
    await producer.send("flights", b"x", headers=(("number", text) for text in (b"3", None)), partition=0)
    await producer.flush()

    assert [list(record.headers) for record in broker.logs[0]] == [
        [("number", b"0")], [("number", b"1")], [("number", b"2")], [("number", b"3"), ("number", None)],
    ]  # fmt: skip


async def test_a_record_beyond_the_buffer_is_refused(broker: ScriptedBroker) -> None:
    """A record larger than the buffer is refused, because otherwise `send` would wait forever."""
    async with Producer(broker.url, buffer_bytes=1000) as producer:
        with raises(BatchTooLargeError, "buffer_bytes=1000"):
            await producer.send("flights", b"x" * 2000)


async def test_an_unreachable_cluster_is_reported_with_every_address() -> None:
    """The error for an unreachable cluster is raised within the retry timeout and lists each address with its cause."""
    async with Producer("http://127.0.0.1:1,http://127.0.0.1:2", retry_timeout="200ms") as producer:
        with raises(UnreachableError, "127.0.0.1:1", "127.0.0.1:2"):
            await producer.send("flights", b"x")


async def test_any_bootstrap_address_is_enough(broker: ScriptedBroker) -> None:
    """A bootstrap address that is down is skipped."""
    async with Producer(["http://127.0.0.1:1", broker.url]) as producer:
        assert (await producer.send_and_wait("flights", b"x", partition=0)).offset == 0


async def test_a_batch_that_is_due_between_two_looks_is_sent(
    broker: ScriptedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch is sent even if it becomes due between the sender's check and its computation of the next deadline."""
    calls = itertools.count()
    monotonic = clock.monotonic
    monkeypatch.setattr(clock, "monotonic", lambda: monotonic() + next(calls) * 0.002)
    async with Producer(broker.url, linger_ms=5, delivery_timeout="1h") as producer, asyncio.timeout(20):
        for row in range(50):
            await producer.send_and_wait("flights", b"%d" % row, partition=0)

    assert len(broker.values(0)) == 50


@pytest.mark.parametrize("count", [7, 300])
async def test_records_of_one_batch_keep_what_is_their_own(broker: ScriptedBroker, count: int) -> None:
    """Records of one batch keep their own keys and timestamps, in small and in large batches."""
    late = datetime(2400, 1, 1, tzinfo=UTC)
    keys = [b"k%d" % row if row % 3 == 2 else None for row in range(count)]
    own: list[datetime | int | None] = [None, 1_000, late, 2_000]
    times = [own[row % 4] for row in range(count)]
    before = clock.now_us()
    async with Producer(broker.url, linger_ms=60_000) as producer:
        sent = [
            await producer.send("flights", b"%d" % row, key=keys[row], timestamp=times[row], partition=0)
            for row in range(count)
        ]
        await producer.flush()
        told = [(await delivery).timestamp_us for delivery in sent]

    stored = broker.logs[0]
    assert [(record.key, record.value) for record in stored] == [
        (keys[row], b"%d" % row) for row in range(count)
    ]
    assert [record.timestamp_us for record in stored] == told
    for time, timestamp_us in zip(times, told, strict=True):
        if time is None:
            assert before <= timestamp_us <= clock.now_us()
        else:
            assert timestamp_us == (time * 1000 if isinstance(time, int) else 13_569_465_600_000_000)
