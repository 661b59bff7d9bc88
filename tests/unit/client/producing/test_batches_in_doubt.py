"""Batches that might already be stored are stored only once, and reported truthfully when others are refused.

The clock is stopped unless a test advances it, so that no batch is sent again too early.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from fairlead import Producer, clock
from fairlead.errors import (
    BatchTooLargeError,
    CrcMismatchError,
    DeliveryTimeoutError,
    FairleadError,
    UnknownProducerError,
)
from fairlead.producing.accumulator import Accumulator
from fairlead.producing.delivery import Delivery
from fairlead.producing.pending_batch import (
    RECORD_OVERHEAD_BYTES,
    PartitionQueue,
    PendingBatch,
    ProducerIdentity,
)
from fairlead.settings import ProducerSettings
from fairlead.topic_partition import TopicPartition
from fairlead_api.problems import SideEffect
from waiting import until

if TYPE_CHECKING:
    from conftest import Received, Replies, Reply, ScriptedBroker

PRODUCE = "/v1/produce"
FIRST, SECOND = b"first", b"second"
HALVES = 10_000
"""Size limit that refusals name. The size of a batch that is not encoded is unknown, so the batch is split in half."""


class StandingClock:
    """A clock that only a test advances."""

    def __init__(self) -> None:
        self.seconds = 1000.0

    def monotonic(self) -> float:
        """Return the time."""
        return self.seconds


@pytest.fixture
def standing(monkeypatch: pytest.MonkeyPatch) -> StandingClock:
    """Return the client's clock, which is stopped."""
    standing = StandingClock()
    monkeypatch.setattr(clock, "monotonic", standing.monotonic)
    return standing


def _values(received: Received) -> list[bytes]:
    return [record.value or b"" for *_, records in received.batches() for record in records]


def _queue(producer: Producer, partition: int) -> PartitionQueue:
    return producer._queues[TopicPartition("flights", partition)]


def _waits(producer: Producer, partition: int) -> bool:
    """Return whether all batches of a partition are waiting to be sent again."""
    queue = _queue(producer, partition)
    return bool(queue.closed) and not queue.in_flight


def _unfinished(producer: Producer) -> tuple[PendingBatch, ...]:
    return producer._accumulator.unfinished


async def _failure(delivery: Delivery) -> FairleadError:
    with pytest.raises(FairleadError) as raised:
        await delivery
    return raised.value


def _facts_of(error: FairleadError) -> tuple[SideEffect | None, list[str]]:
    return getattr(error, "side_effect", None), getattr(error, "__notes__", [])


def test_a_stored_piece_says_nothing_about_the_parts_of_another() -> None:
    """A stored piece of a batch does not prove that the parts of a piece that was split again are stored."""
    accumulator = Accumulator(ProducerSettings(linger_seconds=0))
    accumulator.identity = ProducerIdentity(7, 0)
    queue = PartitionQueue("flights", 0)
    first = accumulator.open_batch(queue, 0.0)
    for _ in range(4):
        first.values.append(bytes(100 - RECORD_OVERHEAD_BYTES))
        first.times_ns.append(0)
        first.nbytes += 100
    queue.close_open()
    accumulator.start(queue)
    accumulator.cut(first, HALVES)
    second = queue.closed[1]
    for piece in (first, second):
        assert accumulator.start(queue) is piece
    for piece in (first, second):
        piece.side_effect = SideEffect.MAYBE
        accumulator.retry(piece, 0.0)
    for piece in (first, second):
        assert accumulator.start(queue) is piece
    accumulator.cut(second, HALVES)
    last = queue.closed[1]
    accumulator.finish(first)

    assert [piece.side_effect for piece in (second, last)] == [SideEffect.MAYBE] * 2
    accumulator.start(queue)
    assert accumulator.drain(0.0) == []
    accumulator.finish(second)
    assert last.side_effect is SideEffect.NONE


@pytest.mark.parametrize("refusal", ["batch_too_large", "body_too_large"])
async def test_what_may_be_stored_behind_a_break_is_not_sent_again_for_its_size(
    broker: ScriptedBroker, replies: Replies, standing: StandingClock, refusal: str
) -> None:
    """After an earlier gap in the sequences, a batch that may be stored fails and is neither split nor sent again."""
    appended, again = asyncio.Event(), asyncio.Event()
    attempts: Counter[bytes] = Counter()
    head: list[Delivery] = []

    async def named(_: Received) -> None:
        """Delay the producer id until all records are appended, so that each request has a batch of both partitions."""
        await appended.wait()

    async def answer(received: Received) -> Reply | None:
        """Store both requests and lose the answers, then refuse the repeated requests in order."""
        values = _values(received)
        name = FIRST if FIRST in values else SECOND if SECOND in values else b""
        attempts[name] += 1
        if not name or attempts[name] > 2:
            return None
        if attempts[name] == 1:
            await until(lambda: name == FIRST or len(broker.values(0)) > 0)
            for found in received.batches():
                broker.accept(*found)
            return replies.problem("ack_timeout")
        if name == FIRST:
            await again.wait()
            return replies.problem("out_of_order_sequence")
        again.set()
        await until(lambda: head[0].done)
        return replies.problem(refusal)

    broker.script("/v1/producers", named)
    broker.script(PRODUCE, *[answer] * 20)
    async with Producer(broker.url, batch_bytes=60, linger_ms=0) as producer:
        texts = (FIRST, b"0", b"00", SECOND, b"1", b"2", b"3", b"4", b"5")
        places = (0, 1, 1, 0, 0, 1, 1, 1, 1)
        deliveries = []
        for text, place in zip(texts, places, strict=True):
            deliveries.append(await producer.send("flights", text, partition=place))
            await asyncio.sleep(0)  # noqa: TID251 - the sender closes the batch of each record
        head.append(deliveries[0])
        appended.set()
        await until(lambda: len(broker.values(0)) == 3 and _waits(producer, 0) and _waits(producer, 1))
        standing.seconds += 1
        failures = [await _failure(deliveries[at]) for at in (3, 4)]
        standing.seconds += 1
        await producer.send_and_wait("flights", b"next", partition=0)
        with contextlib.suppress(ExceptionGroup):
            await producer.flush()

    assert [failure.side_effect for failure in failures] == [SideEffect.MAYBE] * 2  # type: ignore[attr-defined]
    assert broker.values(0) == [FIRST, SECOND, b"1", b"next"]


async def test_what_may_be_stored_behind_a_break_is_not_sent_again_where_the_batch_before_expires(
    broker: ScriptedBroker, replies: Replies, standing: StandingClock
) -> None:
    """A batch that may be stored is not sent again under a new id after the partition has forgotten the producer."""
    both, again = asyncio.Event(), asyncio.Event()
    attempts: Counter[bytes] = Counter()

    async def store(received: Received, event: asyncio.Event) -> Reply:
        """Store the batch, lose the answer after an event, and delay the retry of the second batch."""
        for found in received.batches():
            broker.accept(*found)
        await event.wait()
        status, headers, body = replies.problem("ack_timeout")
        return status, {**headers, "retry-after": "40"} if event is again else headers, body

    async def answer(received: Received) -> Reply | None:
        """Lose both answers, the second answer after the first batch is sent again, and forget the producer."""
        [value] = _values(received)
        attempts[value] += 1
        if value in (FIRST, SECOND) and attempts[value] == 1:
            return await store(received, both if value == FIRST else again)
        if value == FIRST:
            again.set()
            await until(lambda: len(_queue(producer, 0).closed) == 1)
            broker.producers.clear()
            standing.seconds += 30
            return replies.problem("unknown_producer")
        return None

    broker.script(PRODUCE, *[answer] * 6)
    async with Producer(broker.url, batch_bytes=20, linger_ms=0, delivery_timeout="60s") as producer:
        first = await producer.send("flights", FIRST, partition=0)
        await until(lambda: attempts[FIRST] == 1)
        standing.seconds += 31
        second = await producer.send("flights", SECOND, partition=0)
        await until(lambda: attempts[SECOND] == 1)
        both.set()
        await until(lambda: any(batch.side_effect is SideEffect.MAYBE for batch in _unfinished(producer)))
        standing.seconds += 1
        failures = [await _failure(first)]
        standing.seconds += 11
        failures.append(await _failure(second))
        await producer.send_and_wait("flights", b"next", partition=0)

    assert [type(failure) for failure in failures] == [DeliveryTimeoutError, UnknownProducerError]
    assert [_facts_of(failure)[0] for failure in failures] == [SideEffect.MAYBE] * 2
    assert broker.values(0) == [FIRST, SECOND, b"next"]


async def test_a_batch_in_doubt_fails_as_perhaps_stored_whatever_refuses_it(broker: ScriptedBroker) -> None:
    """A batch whose first answer was lost fails as possibly stored, regardless of the refusal of its next attempt."""
    broker.refuse(PRODUCE, "ack_timeout", "batch_too_large")
    async with Producer(broker.url) as producer:
        failure = await _failure(await producer.send("flights", FIRST, partition=0))

    assert isinstance(failure, BatchTooLargeError)
    assert failure.side_effect is SideEffect.MAYBE


async def test_a_batch_in_doubt_does_not_speak_for_others_of_its_request(
    broker: ScriptedBroker, standing: StandingClock
) -> None:
    """A refused request fails each batch with its own side effect: only a batch that was sent before may be stored."""
    broker.refuse(PRODUCE, "ack_timeout", "crc_mismatch")
    async with Producer(broker.url, linger_ms=1) as producer:
        doubtful = await producer.send("flights", FIRST, partition=0)
        standing.seconds += 0.002
        await until(lambda: len(broker.received(PRODUCE)) == 1 and _waits(producer, 0))
        fresh = await producer.send("flights", SECOND, partition=1)
        standing.seconds += 1
        failures = [await _failure(delivery) for delivery in (doubtful, fresh)]

    assert len(broker.received(PRODUCE)) == 2
    assert [type(failure) for failure in failures] == [CrcMismatchError] * 2
    assert [_facts_of(failure) for failure in failures] == [(SideEffect.MAYBE, []), (SideEffect.NONE, [])]
