"""Batches of idempotent producers and of keyed requests, from the call to the log and back."""

from __future__ import annotations

import asyncio
import errno
import itertools
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import pytest

from fairlead_api.batch.batches import ProducerStamp, decode_records, encode
from fairlead_api.batch.columns import record_batch
from fairlead_api.batch.extension import idempotency_extension
from fairlead_api.identifiers import Acks
from fairlead_api.problems import ProblemError, SideEffect
from fairlead_broker.clock import SystemClock
from fairlead_broker.log.segments.storage import Buffer, PosixFile, PosixStorage
from fairlead_broker.runtime import AppendResult, Broker, KeyedRequest, ProduceItem
from runtime_kit import TopicClient, WatchedStorage, topic
from waiting import until

MakeTopic = Callable[..., Awaitable[TopicClient]]
StartRuntime = Callable[..., Awaitable[Broker]]
Answer = AppendResult | ProblemError


def sequenced(sequence: int, count: int = 1, *, producer_id: int = 7, epoch: int = 0) -> bytes:
    """Return a batch of an idempotent producer whose values are its sequences."""
    values = [b"%d" % (sequence + index) for index in range(count)]
    columns = record_batch(values, default_timestamp_us=SystemClock().now_us())
    return encode(columns, producer=ProducerStamp(producer_id, epoch, sequence)).to_bytes()


def code(answer: Answer) -> str:
    """Return the code of a refusal, or `stored`."""
    return answer.code if isinstance(answer, ProblemError) else "stored"


async def values(flights: TopicClient) -> list[int]:
    """Return every value in the log as a number."""
    data = b"".join((await flights.fetch(bytes_max=1 << 24, max_bytes=1 << 24)).data)
    return [int(record.value or b"") for record in decode_records(data)]


async def send(flights: TopicClient, *batches: bytes, **options: object) -> list[Answer]:
    """Send batches in concurrent calls that start in the given order."""
    calls = [asyncio.ensure_future(flights.produce_batch(each, **options)) for each in batches]  # type: ignore[arg-type]
    return [answer for call in calls for answer in await call]


async def test_a_repeat_is_answered_with_the_first_offset_and_stored_once(make_topic: MakeTopic) -> None:
    """A batch that is sent six times is stored once, with one offset and five answers marked `duplicate`."""
    flights = await make_topic()
    await send(flights, sequenced(0, 3))

    answers = [(await send(flights, sequenced(0, 3)))[0] for _ in range(5)]
    [following] = await send(flights, sequenced(3))

    assert [(a.base_offset, a.last_offset, a.duplicate) for a in answers] == [(0, 2, True)] * 5
    assert len({answer.log_append_time_us for answer in answers}) == 1
    assert (following.base_offset, following.duplicate) == (3, False)
    assert await values(flights) == [0, 1, 2, 3]


async def test_repeats_and_held_batches_are_counted(make_topic: MakeTopic) -> None:
    """Repeats are counted per topic, and held batches are counted while they wait."""
    flights = await make_topic()

    def sample(name: str, **labels: str) -> float | None:
        return flights.broker.telemetry.registry.get_sample_value(name, labels)

    ahead = asyncio.ensure_future(flights.produce_batch(sequenced(1)))
    await until(lambda: sample("fairlead_held_batches") == 1)
    await send(flights, sequenced(0), sequenced(0), sequenced(1))
    await ahead

    assert sample("fairlead_held_batches") == 0
    assert sample("fairlead_duplicate_batches_total", topic=flights.name) == 2


@pytest.mark.slow
@pytest.mark.parametrize("order", list(itertools.permutations(range(5)))[::7])
async def test_five_in_flight_are_put_in_order(make_topic: MakeTopic, order: Sequence[int]) -> None:
    """Five batches in flight are stored in the order of sequences, and each call gets its own offset."""
    flights = await make_topic()

    answers = await send(flights, *(sequenced(2 * n, 2) for n in order))

    assert [answer.base_offset for answer in answers] == [2 * n for n in order]
    assert await values(flights) == list(range(10))


async def test_a_gap_that_stays_is_refused_after_a_second(make_topic: MakeTopic) -> None:
    """Batches after a gap are refused after a second with the expected sequence, and are not stored."""
    flights = await make_topic()
    await send(flights, sequenced(0))

    answers = await send(flights, sequenced(2), sequenced(3))

    assert [code(answer) for answer in answers] == ["out_of_order_sequence"] * 2
    assert [answer.data["expected"] for answer in answers] == [1, 1]
    assert [answer.side_effect for answer in answers] == [SideEffect.NONE] * 2
    assert await values(flights) == [0]


async def test_an_unknown_producer_begins_at_zero(make_topic: MakeTopic) -> None:
    """An unknown producer must begin at sequence 0, because its earlier records may have been lost."""
    flights = await make_topic()

    [answer] = await send(flights, sequenced(5))

    assert code(answer) == "unknown_producer"
    assert await values(flights) == []


async def test_a_higher_epoch_ends_the_lower_one(make_topic: MakeTopic) -> None:
    """A lower producer epoch is refused once the first batch of the higher epoch has arrived."""
    flights = await make_topic()
    await send(flights, sequenced(0))
    await send(flights, sequenced(0, epoch=2))

    [ghost] = await send(flights, sequenced(1))

    assert (code(ghost), ghost.data["producer_epoch"]) == ("producer_fenced", 2)
    assert len(await values(flights)) == 2


async def test_sequences_wrap(make_topic: MakeTopic) -> None:
    """Sequence 2^31 - 1 is followed by 0, within a batch and between batches."""
    flights = await make_topic()
    half = 2**30
    state = flights.handle()._order._machine._state
    from fairlead_broker.producers import stored_batch

    state.replay(7, 0, stored_batch(half, half - 5, 0, SystemClock().now_us()))

    answers = await send(flights, sequenced(2**31 - 4, 6), sequenced(2, 1))
    [repeat] = await send(flights, sequenced(2**31 - 4, 6))

    assert [answer.base_offset for answer in answers] == [0, 6]
    assert (repeat.base_offset, repeat.last_offset, repeat.duplicate) == (0, 5, True)


async def test_the_hold_counts_into_the_timeout_and_a_withdrawn_batch_is_not_stored(
    make_topic: MakeTopic,
) -> None:
    """The time for which a batch is held counts towards the timeout; a batch is not stored after its timeout."""
    flights = await make_topic()
    await send(flights, sequenced(0))

    [late] = await send(flights, sequenced(2), timeout_seconds=0.05)
    await send(flights, sequenced(1))

    assert (code(late), late.side_effect) == ("ack_timeout", SideEffect.NONE)
    assert await values(flights) == [0, 1]
    assert flights.handle().queued_batches == 0


async def test_a_repeat_waits_for_the_append_that_is_on_its_way(start_runtime: StartRuntime) -> None:
    """A repeat with acks=all waits for the sync of the original, and a repeat with acks=1 does not."""
    storage = WatchedStorage()
    flights = await topic(await start_runtime(storage))
    await send(flights, sequenced(0))
    storage.hold()
    storage.waiting.clear()
    first = asyncio.ensure_future(flights.produce_batch(sequenced(1, 5000)))
    await until(storage.waiting.is_set)
    repeat = asyncio.ensure_future(flights.produce_batch(sequenced(1, 5000)))
    [leader] = await flights.produce_batch(sequenced(1, 5000), acks=Acks.LEADER)
    done_before = first.done() or repeat.done()
    storage.may_sync.set()
    [stored], [again] = await first, await repeat

    assert not done_before
    assert (stored.base_offset, again.base_offset, leader.base_offset) == (1, 1, 1)
    assert (stored.duplicate, again.duplicate, leader.duplicate) == (False, True, True)


class FullDisk(PosixStorage):
    """A disk that accepts no bytes for log files while `full` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.full = False

    def open(self, path: Path, *, write: bool = False, create: bool = False) -> PosixFile:
        """Open a file; a log file refuses writes while the disk is full."""
        file = super().open(path, write=write, create=create)
        return _FullFile(file, self) if path.suffix == ".log" else file


class _FullFile(PosixFile):
    def __init__(self, file: PosixFile, disk: FullDisk) -> None:
        super().__init__(disk, file._path, file._use(), write=True)
        self._disk = disk

    def write(self, buffers: Sequence[Buffer], position: int) -> None:
        if self._disk.full:
            raise OSError(errno.ENOSPC, "no room")
        super().write(buffers, position)


async def test_a_failed_append_leaves_no_trace(start_runtime: StartRuntime) -> None:
    """A batch that failed on a full disk is not a duplicate when it is sent again."""
    disk = FullDisk()
    flights = await topic(await start_runtime(disk))
    await send(flights, sequenced(0))
    disk.full = True
    refused = await send(flights, sequenced(1), sequenced(1), sequenced(2))
    disk.full = False

    stored = await send(flights, sequenced(1), sequenced(2))

    assert [code(answer) for answer in refused] == ["disk_full"] * 3
    assert [(answer.base_offset, answer.duplicate) for answer in stored] == [(1, False), (2, False)]
    assert await values(flights) == [0, 1, 2]


async def test_a_restart_remembers_the_last_batches(start_runtime: StartRuntime) -> None:
    """A repeat is recognised after a restart."""
    runtime = await start_runtime()
    flights = await topic(runtime)
    for n in range(7):
        await send(flights, sequenced(n))
    await runtime.stop()
    flights = TopicClient(await start_runtime(), "flights")

    repeats = await send(flights, sequenced(6), sequenced(2))
    [forgotten] = await send(flights, sequenced(1))
    [following] = await send(flights, sequenced(7))

    assert [(answer.base_offset, answer.duplicate) for answer in repeats] == [(6, True), (2, True)]
    assert code(forgotten) == "out_of_order_sequence"
    assert (following.base_offset, following.duplicate) == (7, False)


async def test_acks_0_of_a_repeat_is_accepted_and_stored_once(make_topic: MakeTopic) -> None:
    """A repeat with acks=0 is accepted and not stored again."""
    flights = await make_topic()

    answers = await send(flights, sequenced(0), sequenced(0), sequenced(1), acks=Acks.NONE)
    await flights.produce(b"99")

    assert {answer.base_offset for answer in answers} == {-1}
    assert await values(flights) == [0, 1, 99]


async def test_a_stop_answers_what_is_held(start_runtime: StartRuntime) -> None:
    """When the broker stops, held batches are refused as not stored."""
    runtime = await start_runtime(limits={"stop_answer_seconds": 0.05})
    flights = await topic(runtime)
    call = asyncio.ensure_future(flights.produce_batch(sequenced(4)))
    await until(lambda: flights.handle().queued_batches == 1)
    await runtime.stop()

    [answer] = await call
    assert (code(answer), answer.side_effect) == ("shutting_down", SideEffect.NONE)


def keyed(flights: TopicClient, key: bytes, body: bytes) -> ProduceItem:
    """Return a batch in the form that the server builds from a request with an idempotency key."""
    digest = body.ljust(16, b"\0")
    columns = record_batch([body], default_timestamp_us=SystemClock().now_us())
    data = encode(columns, extension=idempotency_extension(key, digest)).to_bytes()
    return ProduceItem(flights.handle(), memoryview(data), KeyedRequest(key, digest))


async def produce(flights: TopicClient, *items: ProduceItem) -> list[Answer]:
    """Produce items in one call."""
    return await flights.broker.producing.produce(items, acks=Acks.ALL, timeout_seconds=10)


async def test_a_keyed_request_is_stored_once_and_its_key_not_for_another(
    start_runtime: StartRuntime,
) -> None:
    """A repeat with a key gets the first offset, even after a restart, and a different body is refused."""
    runtime = await start_runtime()
    flights = await topic(runtime)
    first = await produce(flights, keyed(flights, b"order-1", b"1"), keyed(flights, b"order-1", b"1"))
    await runtime.stop()
    flights = TopicClient(await start_runtime(), "flights")
    known = flights.handle().digest_of(b"order-1")
    second = await produce(flights, keyed(flights, b"order-1", b"1"), keyed(flights, b"order-1", b"2"))

    assert [(answer.base_offset, answer.duplicate) for answer in first] == [(0, False), (0, True)]
    assert (second[0].base_offset, second[0].duplicate) == (0, True)
    assert code(second[1]) == "idempotency_key_reused"
    assert known == b"1".ljust(16, b"\0")
    assert await values(flights) == [1]


async def test_a_client_cannot_write_the_extension_itself(make_topic: MakeTopic) -> None:
    """A client's batch with the key extension is refused."""
    flights = await make_topic()

    [answer] = await flights.produce_batch(bytes(keyed(flights, b"order-1", b"1").batch))

    assert code(answer) == "malformed_batch"
