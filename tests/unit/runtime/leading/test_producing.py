"""Produce calls: order, acknowledgements, and refusals before and after the append."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable

import pytest

from fairlead_api.batch.batches import decode_records, encode
from fairlead_api.batch.columns import record_batch
from fairlead_api.batch.header import Codec, read_header
from fairlead_api.identifiers import Acks, Offset, PartitionIndex
from fairlead_api.problems import ProblemError, SideEffect
from fairlead_broker.clock import SystemClock
from fairlead_broker.runtime import Broker, ProduceItem
from fairlead_broker.runtime.leading.producing import ByteBudget
from refusals import refuses
from runtime_kit import TopicClient, WatchedStorage, batch, topic
from waiting import until

MakeTopic = Callable[..., Awaitable[TopicClient]]
StartRuntime = Callable[..., Awaitable[Broker]]


async def test_concurrent_batches_get_dense_offsets_in_the_order_of_the_calls(make_topic: MakeTopic) -> None:
    """Two hundred concurrent calls to one partition get dense offsets in the order of the calls."""
    flights = await make_topic(durability="replicated")

    async with asyncio.TaskGroup() as group:
        calls = [group.create_task(flights.produce(b"%d" % n, b"more")) for n in range(200)]
    answers = [call.result() for call in calls]
    stored = decode_records(b"".join((await flights.fetch()).data))

    assert [answer.base_offset for answer in answers] == list(range(0, 400, 2))
    assert [record.value for record in stored[::2]] == [b"%d" % n for n in range(200)]
    assert [record.offset for record in stored] == list(range(400))


async def test_many_calls_share_one_append_and_one_sync(start_runtime: StartRuntime) -> None:
    """Batches that arrive during a sync share the next append and sync."""
    storage = WatchedStorage()
    flights = await topic(await start_runtime(storage))
    await flights.produce(b"first")
    before = storage.syncs

    async with asyncio.TaskGroup() as group:
        for n in range(100):
            group.create_task(flights.produce(b"%d" % n))

    assert storage.syncs - before < 20


@pytest.mark.parametrize("values", [1, 2000])
async def test_synced_batch_is_acknowledged_only_after_its_fsync(
    start_runtime: StartRuntime, values: int
) -> None:
    """A batch with acks=all is acknowledged after its bytes are synced, and a batch with acks=1 or 0 earlier."""
    storage = WatchedStorage()
    flights = await topic(await start_runtime(storage))
    storage.hold()
    data = [b"x" * 100] * values

    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(flights.produce(*data))
        await until(storage.waiting.is_set)

        assert not waiting.done()
        assert flights.handle().high_watermark == 0

        storage.may_sync.set()
    synced = storage.syncs

    assert synced >= 1
    assert flights.handle().high_watermark == values


async def test_leader_acks_do_not_wait_for_the_fsync(start_runtime: StartRuntime) -> None:
    """A batch with acks=1 is acknowledged after the append, before it is synced and readable."""
    storage = WatchedStorage()
    flights = await topic(await start_runtime(storage))
    storage.hold()
    large = [b"x" * 100] * 1000

    answer = await flights.produce(*large, acks=Acks.LEADER)
    fetched = await flights.fetch()
    storage.may_sync.set()

    assert (answer.base_offset, answer.last_offset) == (0, 999)
    assert fetched.data == []


async def test_no_acks_are_answered_after_validation(start_runtime: StartRuntime) -> None:
    """A batch with acks=0 is answered after its validation, and stored afterwards."""
    storage = WatchedStorage()
    flights = await topic(await start_runtime(storage))
    storage.hold()

    answer = await flights.produce(b"a", acks=Acks.NONE)
    storage.may_sync.set()
    stored = await flights.fetch(max_wait_seconds=10)

    assert answer.base_offset == -1
    assert stored.next_offset == 1


async def test_timeout_after_the_append_says_maybe_and_the_batch_counts_later(
    start_runtime: StartRuntime,
) -> None:
    """A batch whose sync takes too long fails with `ack_timeout` and side effect `maybe`, and is committed later."""
    storage = WatchedStorage()
    flights = await topic(await start_runtime(storage))
    storage.hold()

    with pytest.raises(ProblemError) as refused:
        await flights.produce(b"slow", timeout_seconds=0.05)
    storage.may_sync.set()
    stored = await flights.fetch(max_wait_seconds=10)

    assert (refused.value.code, refused.value.side_effect) == ("ack_timeout", SideEffect.MAYBE)
    assert stored.next_offset == 1


async def test_timeout_in_the_queue_withdraws_the_batch(start_runtime: StartRuntime) -> None:
    """A batch that times out in the queue is refused and not stored later."""
    storage = WatchedStorage()
    flights = await topic(await start_runtime(storage))
    storage.hold()
    async with asyncio.TaskGroup() as group:
        first = group.create_task(flights.produce(b"holds the disk"))
        await until(storage.waiting.is_set)

        with pytest.raises(ProblemError) as refused:
            await flights.produce(b"withdrawn", timeout_seconds=0.05)
        storage.may_sync.set()
    await flights.produce(b"next")
    stored = decode_records(b"".join((await flights.fetch()).data))

    assert first.result().base_offset == 0
    assert (refused.value.code, refused.value.side_effect) == ("ack_timeout", SideEffect.NONE)
    assert [record.value for record in stored] == [b"holds the disk", b"next"]


async def test_full_queue_is_overloaded(start_runtime: StartRuntime) -> None:
    """A batch beyond the limit of a partition's queue is refused, and earlier batches are stored."""
    storage = WatchedStorage()
    runtime = await start_runtime(storage, limits={"partition_queue_batches_max": 2})
    flights = await topic(runtime)
    storage.hold()
    async with asyncio.TaskGroup() as group:
        group.create_task(flights.produce(b"holds the disk"))
        await until(storage.waiting.is_set)
        queued = [group.create_task(flights.produce(b"queued")) for _ in range(2)]
        await until(lambda: flights.handle().queued_batches == 2)

        with pytest.raises(ProblemError) as refused:
            await flights.produce(b"too many")
        storage.may_sync.set()

    assert (refused.value.code, refused.value.side_effect) == ("overloaded", SideEffect.NONE)
    assert [call.result().base_offset for call in queued] == [1, 2]


async def test_memory_of_waiting_batches_is_bounded(start_runtime: StartRuntime) -> None:
    """Memory for waiting batches is limited across all partitions, and is released with the batches."""
    storage = WatchedStorage()
    runtime = await start_runtime(storage, limits={"produce_bytes_max": 1 << 20})
    flights = await topic(runtime, partitions=2)
    storage.hold()
    half = b"x" * 600_000
    async with asyncio.TaskGroup() as group:
        group.create_task(flights.produce(b"holds the disk"))
        await until(storage.waiting.is_set)
        group.create_task(flights.produce(half))
        await until(lambda: flights.handle().queued_batches == 1)

        with refuses("overloaded"):
            await flights.produce(half, partition=1)
        storage.may_sync.set()

    assert (await flights.produce(half, partition=1)).base_offset == 0


async def test_one_call_over_many_partitions_answers_each_for_itself(make_topic: MakeTopic) -> None:
    """Only the invalid batch of a call is refused; the other batches are stored."""
    flights = await make_topic(partitions=5)
    good = batch(b"fine")
    bad = bytearray(good)
    bad[-1] ^= 0xFF
    items = [ProduceItem(flights.handle(n), memoryview(bad if n == 2 else good)) for n in range(5)]

    answers = await flights.broker.producing.produce(items, acks=Acks.ALL, timeout_seconds=10)

    assert [getattr(answer, "code", "stored") for answer in answers] == [
        "stored",
        "stored",
        "crc_mismatch",
        "stored",
        "stored",
    ]
    assert (await flights.fetch(partition=2)).next_offset == 0


@pytest.mark.parametrize("codec", [Codec.LZ4, Codec.ZSTD])
async def test_compressed_batch_is_stored_as_it_came(make_topic: MakeTopic, codec: Codec) -> None:
    """A compressed batch is validated in the thread pool and stored unchanged."""
    flights = await make_topic()
    columns = record_batch([b"x" * 1000] * 50, default_timestamp_us=SystemClock().now_us())
    data = encode(columns, codec).to_bytes()

    [answer] = await flights.produce_batch(data)
    stored = bytes((await flights.fetch()).data[0])

    assert not isinstance(answer, ProblemError)
    assert stored[36:] == data[36:]


async def test_compressed_rubbish_is_refused_in_its_place(make_topic: MakeTopic) -> None:
    """An invalid compressed batch is refused at its own position in the answer."""
    flights = await make_topic()
    columns = record_batch([b"x" * 1000] * 50, default_timestamp_us=SystemClock().now_us())
    data = bytearray(encode(columns, Codec.ZSTD).to_bytes())
    data[100] ^= 0xFF

    [answer] = await flights.produce_batch(bytes(data))

    assert isinstance(answer, ProblemError)
    assert answer.code == "crc_mismatch"


async def test_a_batch_waiting_for_decompression_counts_and_delays_no_other(
    start_runtime: StartRuntime,
) -> None:
    """A batch that waits for decompression counts towards the memory limit, and does not delay other batches.

    When the broker stops, the request of a batch that waits for decompression is answered.
    """
    runtime = await start_runtime(limits={"validation_threads": 1})
    flights = await topic(runtime)
    columns = record_batch([b"x" * 1000] * 50, default_timestamp_us=SystemClock().now_us())
    data = encode(columns, Codec.ZSTD).to_bytes()
    parts, opened = runtime, threading.Event()
    parts.validation.submit(opened.wait)

    waiting = asyncio.ensure_future(flights.produce_batch(data))
    await until(lambda: parts.produce_budget.taken == len(data))
    await flights.produce(b"plain")
    parts.produce_budget.take(parts.produce_budget.bytes_max - parts.produce_budget.taken)
    [crowded] = await flights.produce_batch(data)
    await parts.producing.stop(0.0)
    opened.set()
    [stopped] = await waiting

    assert [record.value for record in decode_records(b"".join((await flights.fetch()).data))] == [b"plain"]
    assert isinstance(crowded, ProblemError)
    assert isinstance(stopped, ProblemError)
    assert (crowded.code, stopped.code, stopped.side_effect) == (
        "overloaded",
        "shutting_down",
        SideEffect.NONE,
    )
    assert flights.handle().log_end_offset == 1
    assert parts.produce_budget.taken == parts.produce_budget.bytes_max - len(data)


async def test_leader_stamps_offset_epoch_and_time(make_topic: MakeTopic) -> None:
    """The leader writes the first 36 bytes of a batch, and with LogAppendTime the time of every record."""
    created = await make_topic("created")
    appended = await make_topic("appended", message_timestamp_type="LogAppendTime")
    answers = [await each.produce(b"a") for each in (created, appended)]
    headers = [read_header((await each.fetch()).data[0]) for each in (created, appended)]

    assert [header.leader_epoch for header in headers] == [answer.leader_epoch for answer in answers]
    assert [header.append_time_us for header in headers] == [answer.log_append_time_us for answer in answers]
    assert [header.has_append_time for header in headers] == [False, True]


async def test_far_future_times_are_refused_unless_the_append_time_replaces_them(
    make_topic: MakeTopic,
) -> None:
    """`message.timestamp.after.max.ms` refuses create times in the future, and does not apply to LogAppendTime."""
    future_us = SystemClock().now_us() + 10 * 3_600_000_000
    data = encode(record_batch([b"a"], default_timestamp_us=future_us)).to_bytes()
    created = await make_topic("created")
    appended = await make_topic("appended", message_timestamp_type="LogAppendTime")

    [refused] = await created.produce_batch(data)
    [stored] = await appended.produce_batch(data)

    assert getattr(refused, "code", None) == "invalid_record"
    assert not isinstance(stored, ProblemError)


async def test_too_large_batch_is_refused_by_the_topic_s_limit(make_topic: MakeTopic) -> None:
    """A batch whose stored size is larger than `max.message.bytes` is refused."""
    flights = await make_topic(max_message_bytes=2000)

    with refuses("batch_too_large"):
        await flights.produce(b"x" * 3000)

    assert (await flights.produce(b"x")).base_offset == 0


async def test_failed_sync_ends_all_writes_but_not_reads(start_runtime: StartRuntime) -> None:
    """After the first failed fsync, no batch is acknowledged, committed records can be read, and readiness fails."""
    storage = WatchedStorage()
    runtime = await start_runtime(storage)
    flights = await topic(runtime, partitions=2)
    await flights.produce(b"safe")
    storage.failing = True

    with pytest.raises(ProblemError) as during:
        await flights.produce(b"lost?")
    with pytest.raises(ProblemError) as after:
        await flights.produce(b"never", partition=1)
    stored = await flights.fetch()

    assert (during.value.code, during.value.side_effect) == ("storage_failed", SideEffect.MAYBE)
    assert (after.value.code, after.value.side_effect) == ("storage_failed", SideEffect.NONE)
    assert stored.next_offset == 1
    assert not runtime.ready


async def test_failed_round_answers_every_waiting_batch(start_runtime: StartRuntime) -> None:
    """Every batch that waits for a failed sync round fails with side effect `maybe`."""
    storage = WatchedStorage()
    runtime = await start_runtime(storage)
    flights = await topic(runtime, partitions=3)
    storage.failing = True
    large = [b"x" * 100] * 1000

    calls = [flights.produce(*large, partition=n) for n in range(3)]
    answers = await asyncio.gather(*calls, return_exceptions=True)

    assert {(getattr(each, "code", None), getattr(each, "side_effect", None)) for each in answers} == {
        ("storage_failed", SideEffect.MAYBE)
    }


async def test_unknown_partition_is_named(make_topic: MakeTopic) -> None:
    """A partition that does not exist is refused with `partition_not_found`."""
    flights = await make_topic(partitions=2)

    with refuses("partition_not_found"):
        flights.broker.replicas.find(flights.topic_id, PartitionIndex(2))


async def test_a_round_that_is_ahead_of_the_append_it_reached_promises_nothing(make_topic: MakeTopic) -> None:
    """Bytes that a sync round covered before their append was reported count only after the report."""
    flights = await make_topic()
    await flights.produce(b"one")
    partition = flights.handle()
    partition.synced(Offset(partition.log_end_offset + 5))
    before = partition.high_watermark
    answer = await flights.produce(b"two")

    assert before == 1
    assert answer.base_offset == 1
    assert partition.high_watermark == 2


def test_bytes_are_taken_up_to_the_bound() -> None:
    """A free budget admits a batch of any size, a full budget admits none, and released bytes can be used again."""
    budget = ByteBudget(10)

    assert budget.take(15)
    assert not budget.take(1)
    budget.give_back(15)
    assert budget.take(10)


async def test_a_caller_waits_for_room() -> None:
    """A caller that waits for bytes continues once enough bytes are returned, and a cancelled one is forgotten."""
    budget = ByteBudget(10)
    assert budget.take(10)
    waiting = [asyncio.ensure_future(budget.wait_for_room(nbytes)) for nbytes in (4, 8, 8)]
    await until(lambda: budget.waiting == 3)
    waiting[2].cancel()
    budget.give_back(5)
    await waiting[0]

    assert [each.done() for each in waiting] == [True, False, True]
    budget.give_back(5)
    await waiting[1]
    assert budget.waiting == 0
