"""The idempotent producer, against a listener that loses answers, delays them and refuses requests as scripted.

The scripted broker is stricter than a real one: it refuses a batch that arrives before its predecessor.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from fairlead import Producer
from fairlead.errors import (
    AckTimeoutError,
    BatchTooLargeError,
    DeliveryTimeoutError,
    ForbiddenError,
    InternalServerError,
    OutOfOrderSequenceError,
    ProducerFencedError,
    SettingError,
    UnknownProducerError,
)
from fairlead_api.problems import SideEffect
from refusals import raises

if TYPE_CHECKING:
    from collections.abc import Callable

    from conftest import Received, Replies, Reply, Script, ScriptedBroker

PRODUCE = "/v1/produce"
PRODUCERS = "/v1/producers"


def pause(seconds: float) -> asyncio.Future[object]:
    """Return a future that completes after some time."""
    return asyncio.ensure_future(asyncio.wait([asyncio.get_running_loop().create_future()], timeout=seconds))


@pytest.fixture
def storing_then(broker: ScriptedBroker, replies: Replies) -> Callable[[str], Script]:
    """Return a function that builds a script, which stores the batches but answers with the given problem."""

    def make(code: str) -> Script:
        async def answer(received: Received) -> Reply:
            """Store the batches and answer with the problem."""
            for found in received.batches():
                broker.accept(*found)
            return replies.problem(code)

        return answer

    return make


def by_first_value(scripts: dict[bytes, Script]) -> Script:
    """Return a script that runs each given script once, for the batch whose first record has the script's value.

    Requests in flight may arrive in any order.
    """

    async def answer(received: Received) -> Reply | None:
        """Run the script of the batch, or send the default answer."""
        [(*_, records)] = received.batches()
        script = scripts.pop(records[0].value or b"", None)
        return await script(received) if script else None

    return answer


def stamps(broker: ScriptedBroker) -> list[tuple[int, int, int]]:
    """Return the producer stamps of all produced batches, in order of arrival."""
    return [stamp for request in broker.received(PRODUCE) for stamp in request.stamps()]


async def send(producer: Producer, count: int, start: int = 0) -> None:
    """Send numbers to partition 0."""
    for row in range(start, start + count):
        await producer.send("flights", str(row).encode(), partition=0)


def numbers(count: int) -> list[bytes]:
    """Return the numbers from 0 as encoded values of records."""
    return [str(row).encode() for row in range(count)]


async def test_batches_carry_sequences_of_their_partition(broker: ScriptedBroker) -> None:
    """The sequences of batches count the records of each partition, starting at 0."""
    async with Producer(broker.url) as producer:
        for partition, count in ((0, 3), (1, 2), (0, 4), (0, 1)):
            for _ in range(count):
                await producer.send("flights", b"x", partition=partition)
            await producer.flush()

    found = [(part, h.base_sequence) for r in broker.received(PRODUCE) for _, part, h, _ in r.batches()]
    assert found == [(0, 0), (1, 0), (0, 3), (0, 7)]
    assert len(broker.received(PRODUCERS)) == 1


async def test_a_repeat_has_the_same_bytes_and_the_first_offset(
    broker: ScriptedBroker, storing_then: Callable[[str], Script]
) -> None:
    """A batch whose answer was lost is sent again with the same bytes, and gets the offset of the first attempt."""
    broker.script(PRODUCE, storing_then("leader_changed"), storing_then("ack_timeout"))
    async with Producer(broker.url) as producer:
        metadata = await producer.send_and_wait("flights", b"once", partition=0)

    bodies = [request.body for request in broker.received(PRODUCE)]
    assert bodies == [bodies[0]] * 3
    assert metadata.offset == 0
    assert broker.values(0) == [b"once"]


async def test_at_most_five_batches_of_a_partition_are_unfinished(broker: ScriptedBroker) -> None:
    """A partition has at most five unfinished batches."""
    under_way = most = 0

    async def slow(_: Received) -> Reply | None:
        """Delay a request and count the requests in flight."""
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        await pause(0.01)
        under_way -= 1
        return None

    broker.script(PRODUCE, *[slow] * 200)
    async with Producer(broker.url, batch_bytes=100, linger_ms=0, requests_in_flight_max=50) as producer:
        await send(producer, 100)

    assert most == 5
    assert broker.values(0) == numbers(100)


async def test_a_lost_batch_holds_the_sixth_back(
    broker: ScriptedBroker, storing_then: Callable[[str], Script]
) -> None:
    """A batch waits for the outcome of the fifth batch before it, since the broker remembers only five batches."""
    repeats = [storing_then("ack_timeout")] * 3
    broker.script(PRODUCE, repeats[0])
    async with Producer(broker.url, batch_bytes=20, linger_ms=0) as producer:
        await producer.send("flights", b"first", partition=0)
        while not broker.received(PRODUCE):
            await pause(0.001)
        broker.script(PRODUCE, *[storing_then("ack_timeout")] * 2)
        for row in range(20):
            await producer.send("flights", str(row).encode(), partition=0)

    assert broker.values(0) == [b"first", *numbers(20)]


async def test_reordered_and_lost_answers_store_each_record_once_in_order(
    broker: ScriptedBroker, storing_then: Callable[[str], Script], replies: Replies
) -> None:
    """Records are stored once and in order, although requests and answers are lost and overtake each other."""

    def late(seconds: float) -> Script:
        async def answer(_: Received) -> None:
            """Delay the request, so that other requests overtake it."""
            await pause(seconds)

        return answer

    async def unavailable(_: Received) -> Reply:
        """Lose the request."""
        return replies.problem("not_enough_replicas")

    broker.script(
        PRODUCE, late(0.03), late(0.02), late(0.01), unavailable, storing_then("leader_changed"), late(0.02),
        unavailable, late(0.01), storing_then("ack_timeout"), storing_then("ack_timeout"), late(0.0), late(0.01),
    )  # fmt: skip
    async with Producer(broker.url, batch_bytes=100, linger_ms=0) as producer:
        deliveries = [await producer.send("flights", text, partition=0) for text in numbers(60)]
        offsets = [(await delivery).offset for delivery in deliveries]

    assert broker.values(0) == numbers(60)
    assert offsets == list(range(60))


async def test_without_idempotence_batches_name_no_producer(broker: ScriptedBroker) -> None:
    """A producer without idempotence requests no producer id."""
    async with Producer(broker.url, idempotence=False) as producer:
        await producer.send_and_wait("flights", b"x", partition=0)

    assert stamps(broker) == [(-1, -1, -1)]
    assert broker.received(PRODUCERS) == []


@pytest.mark.parametrize("acks", [0, 1])
async def test_weaker_acks_turn_idempotence_off_unless_it_was_asked_for(
    broker: ScriptedBroker, acks: int
) -> None:
    """acks=0 or 1 disables idempotence, and is refused together with an explicit idempotence=True, as in Kafka."""
    async with Producer(broker.url, acks=acks) as producer:
        await producer.send_and_wait("flights", b"x", partition=0)

    assert stamps(broker) == [(-1, -1, -1)]
    with raises(SettingError, name="acks"):
        Producer(broker.url, acks=acks, idempotence=True)


def test_a_name_needs_idempotence() -> None:
    """A producer's name requires idempotence, because producers without sequences cannot be fenced."""
    with raises(SettingError, name="name", value="loader"):
        Producer(name="loader", idempotence=False)


async def test_a_named_producer_sends_its_name(broker: ScriptedBroker) -> None:
    """A named producer sends its name when it requests its id."""
    async with Producer(broker.url, name="loader") as producer:
        await producer.send_and_wait("flights", b"x")

    assert [request.body for request in broker.received(PRODUCERS)] == [b'{"name":"loader"}']


async def test_a_forgotten_producer_takes_a_new_id_and_sends_again(broker: ScriptedBroker) -> None:
    """A producer that the partition no longer remembers gets a new id and sends the refused batch again."""
    async with Producer(broker.url) as producer:
        await producer.send_and_wait("flights", b"0", partition=0)
        broker.producers.clear()
        metadata = await producer.send_and_wait("flights", b"1", partition=0)

    assert stamps(broker) == [(1, 0, 0), (1, 0, 1), (2, 0, 0)]
    assert metadata.offset == 1
    assert broker.values(0) == numbers(2)


async def test_a_retried_batch_of_a_forgotten_producer_may_be_stored(
    broker: ScriptedBroker, storing_then: Callable[[str], Script]
) -> None:
    """A retried batch of a producer that is no longer remembered fails as possibly stored.

    Batches after a possibly stored batch are sent.
    """

    async def forgets(received: Received) -> Reply:
        """Store the batch, lose the answer, and forget the producer."""
        reply = await storing_then("ack_timeout")(received)
        broker.producers.clear()
        return reply

    async with Producer(broker.url) as producer:
        await producer.send_and_wait("flights", b"0", partition=0)
        broker.script(PRODUCE, forgets)
        with pytest.raises(UnknownProducerError) as raised:
            await producer.send_and_wait("flights", b"1", partition=0)
        metadata = await producer.send_and_wait("flights", b"2", partition=0)

    assert raised.value.side_effect is SideEffect.MAYBE
    assert metadata.offset == 2
    assert stamps(broker)[-1] == (2, 0, 0)


@pytest.mark.parametrize("name", [None, "loader"])
async def test_a_refused_batch_does_not_stop_those_behind_it(
    broker: ScriptedBroker, replies: Replies, name: str | None
) -> None:
    """A refused batch does not stop later batches, which continue at its sequence in the same epoch.

    A named producer also continues in the same epoch, because it must not take the next epoch of its name.
    """

    async def too_large(_: Received) -> Reply:
        """Refuse the batch when later batches are in flight."""
        await pause(0.05)
        return replies.problem("batch_too_large")

    broker.script(PRODUCE, *[by_first_value({b"0": too_large})] * 50)
    async with Producer(broker.url, batch_bytes=20, linger_ms=0, name=name) as producer:
        deliveries = [await producer.send("flights", text, partition=0) for text in numbers(8)]
        with pytest.raises(BatchTooLargeError):
            await deliveries[0]
        for delivery in deliveries[1:]:
            await delivery

    assert broker.values(0) == numbers(8)[1:]
    assert {epoch for _, epoch, _ in stamps(broker)} == {0}


async def test_a_refused_batch_ends_the_epoch_of_one_that_may_still_come(
    broker: ScriptedBroker, replies: Replies
) -> None:
    """A refused batch starts a new epoch if a later batch may still arrive, so that the later batch is fenced."""
    first_is_known = asyncio.Event()

    async def too_large(_: Received) -> Reply:
        """Refuse the batch after the outcome of the later batch."""
        await first_is_known.wait()
        return replies.problem("batch_too_large")

    async def lost(_: Received) -> Reply:
        """Answer that the outcome is unknown."""
        first_is_known.set()
        return replies.problem("leader_changed")

    broker.script(PRODUCE, *[by_first_value({b"0": too_large, b"1": lost})] * 50)
    async with Producer(broker.url, batch_bytes=20, linger_ms=0) as producer:
        deliveries = [await producer.send("flights", text, partition=0) for text in numbers(2)]
        with pytest.raises(BatchTooLargeError):
            await deliveries[0]
        await deliveries[1]

    assert broker.values(0) == numbers(2)[1:]
    assert {epoch for _, epoch, _ in stamps(broker)} == {0, 1}


async def test_a_batch_in_doubt_that_is_too_large_is_cleared_up_by_its_first_piece(
    broker: ScriptedBroker,
) -> None:
    """A batch in doubt that is too large is sent in pieces; the first piece proves that the batch was not stored."""
    broker.refuse(PRODUCE, "leader_changed", "batch_too_large")
    async with Producer(broker.url) as producer:
        deliveries = [await producer.send("flights", text, partition=0) for text in numbers(8)]
        offsets = [(await delivery).offset for delivery in deliveries]

    assert offsets == list(range(8))
    assert broker.values(0) == numbers(8)
    counts = [len(records) for request in broker.received(PRODUCE) for *_, records in request.batches()]
    assert counts[:2] == [8, 8]


async def test_a_batch_that_was_stored_before_it_was_too_large_is_not_stored_again(
    broker: ScriptedBroker, storing_then: Callable[[str], Script]
) -> None:
    """A stored batch that the topic now refuses as too large is not stored again: its first piece is refused."""
    broker.script(PRODUCE, storing_then("ack_timeout"))
    broker.refuse(PRODUCE, "batch_too_large")
    async with Producer(broker.url) as producer:
        deliveries = [await producer.send("flights", text, partition=0) for text in numbers(8)]
        for delivery in deliveries:
            with pytest.raises(OutOfOrderSequenceError) as raised:
                await delivery
            told = [str(raised.value), *getattr(raised.value, "__notes__", [])]
            assert any("stored" in text for text in told)
        assert (await producer.send_and_wait("flights", b"8", partition=0)).offset == 8

    assert broker.values(0) == numbers(9)


async def test_a_batch_in_doubt_is_cleared_up_by_the_next(
    broker: ScriptedBroker, storing_then: Callable[[str], Script]
) -> None:
    """The outcome of the next batch shows whether a failed batch was stored, and no new epoch is needed."""
    async with Producer(broker.url, retries_max=0) as producer:
        broker.script(PRODUCE, storing_then("ack_timeout"))
        delivery = await producer.send("flights", b"0", partition=0)
        with pytest.raises(AckTimeoutError):
            await delivery
        metadata = await producer.send_and_wait("flights", b"1", partition=0)

    assert metadata.offset == 1
    assert stamps(broker) == [(1, 0, 0), (1, 0, 1)]


async def test_a_batch_in_doubt_that_is_missing_ends_its_epoch(broker: ScriptedBroker) -> None:
    """A failed batch that turns out not to be stored ends the epoch, so that the batch is fenced if it arrives late."""
    async with Producer(broker.url, retries_max=0) as producer:
        await producer.send_and_wait("flights", b"0", partition=0)
        broker.refuse(PRODUCE, "ack_timeout")
        delivery = await producer.send("flights", b"lost", partition=0)
        with pytest.raises(AckTimeoutError):
            await delivery
        await producer.send_and_wait("flights", b"1", partition=0)

    assert broker.values(0) == numbers(2)
    assert stamps(broker)[-1] == (1, 1, 0)


async def test_a_lost_acknowledged_batch_fails_the_next_batch(broker: ScriptedBroker) -> None:
    """If acknowledged records are lost, the next batch fails, and the producer continues after it."""
    async with Producer(broker.url) as producer:
        await producer.send_and_wait("flights", b"0", partition=0)
        broker.producers[0, 1].expected = 0
        with pytest.raises(OutOfOrderSequenceError):
            await producer.send_and_wait("flights", b"1", partition=0)
        await producer.send_and_wait("flights", b"2", partition=0)

    assert broker.values(0) == [b"0", b"2"]


async def test_a_fenced_producer_stops(broker: ScriptedBroker) -> None:
    """A fenced producer fails all waiting records with the same error, and accepts no more."""
    producer = await Producer(broker.url, batch_bytes=20, linger_ms=0).start()
    await producer.send_and_wait("flights", b"0", partition=0)
    broker.producers[0, 1].epoch = 9
    deliveries = []
    # The first refusal may arrive while later records are still being sent.
    with suppress(ProducerFencedError):
        for text in numbers(12):
            deliveries.append(await producer.send("flights", text, partition=0))  # noqa: PERF401 - kept if a send fails
    assert deliveries
    for delivery in deliveries:
        with pytest.raises(ProducerFencedError):
            await delivery

    with pytest.raises(ProducerFencedError):
        await producer.send("flights", b"late", partition=0)
    await producer.close()
    assert broker.values(0) == [b"0"]


async def test_a_named_producer_stops_where_it_would_need_another_epoch(broker: ScriptedBroker) -> None:
    """A named producer stops instead of taking the next epoch of its name, which would fence its successor."""
    producer = await Producer(broker.url, name="loader").start()
    await producer.send_and_wait("flights", b"0", partition=0)
    broker.producers.clear()
    with pytest.raises(UnknownProducerError):
        await producer.send_and_wait("flights", b"1", partition=0)
    with pytest.raises(UnknownProducerError):
        await producer.send("flights", b"2", partition=0)
    await producer.close()

    assert len(broker.received(PRODUCERS)) == 1


async def test_an_id_that_is_refused_fails_the_records(broker: ScriptedBroker) -> None:
    """If the request for a producer id is refused, the waiting records fail.

    The producer's next records cause another request for an id.
    """
    broker.refuse(PRODUCERS, "forbidden")
    async with Producer(broker.url) as producer:
        with pytest.raises(ForbiddenError):
            await producer.send_and_wait("flights", b"x", partition=0)
        assert (await producer.send_and_wait("flights", b"y", partition=0)).offset == 0


async def test_an_id_that_cannot_be_had_now_is_waited_for(broker: ScriptedBroker) -> None:
    """If no producer id is available, the producer waits until the delivery timeout; the error names the cause."""
    broker.refuse(PRODUCERS, *["coordination_unavailable"] * 500)
    async with Producer(broker.url, retry_timeout="50ms", delivery_timeout="300ms") as producer:
        with raises(DeliveryTimeoutError, "coordination_unavailable"):
            await producer.send_and_wait("flights", b"x", partition=0)
        broker.scripts.clear()
        assert (await producer.send_and_wait("flights", b"y", partition=0)).offset == 0


async def test_an_id_that_cannot_be_read_is_a_fault_of_the_server(
    broker: ScriptedBroker, replies: Replies
) -> None:
    """If the answer with the producer id cannot be read, the records fail with a server error."""

    async def odd(_: Received) -> Reply:
        """Answer with a different document."""
        return replies.json({"id": 1})

    broker.script(PRODUCERS, odd)
    async with Producer(broker.url) as producer:
        with pytest.raises(InternalServerError):
            await producer.send_and_wait("flights", b"x", partition=0)


async def test_a_topic_that_is_gone_for_a_while_keeps_its_sequences(broker: ScriptedBroker) -> None:
    """A topic that is missing for a while keeps its sequences: batches with repeated sequences would be dropped."""
    async with Producer(broker.url) as producer:
        await producer.send_and_wait("flights", b"0", partition=0)
        broker.topics = []
        await producer.refresh_metadata()
        broker.topics = ["flights"]
        await producer.send_and_wait("flights", b"1", partition=0)

    assert stamps(broker) == [(1, 0, 0), (1, 0, 1)]
    assert broker.values(0) == numbers(2)
