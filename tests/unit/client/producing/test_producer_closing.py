"""Closing and aborting a producer, against a real listener with scripted refusals."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from fairlead import Producer, blocking
from fairlead.errors import ClosedError
from waiting import until

if TYPE_CHECKING:
    from conftest import Received, ScriptedBroker

PRODUCE = "/v1/produce"


async def test_after_the_end_nothing_is_taken(broker: ScriptedBroker) -> None:
    """A producer that is closed or was not started refuses records."""
    async with Producer(broker.url) as producer:
        await producer.send_and_wait("flights", b"x")
    with pytest.raises(ClosedError):
        await producer.send("flights", b"x")
    with pytest.raises(ClosedError):
        await Producer(broker.url).send("flights", b"x")


async def test_a_cancelled_block_flushes(broker: ScriptedBroker) -> None:
    """If the task in a producer's `with` block is cancelled, the accepted records are flushed."""
    sent = asyncio.Event()

    async def work() -> None:
        """Use the producer as a program does."""
        async with Producer(broker.url, linger_ms=60_000) as producer:
            await producer.send("flights", b"accepted", partition=0)
            sent.set()
            await asyncio.get_running_loop().create_future()

    task = asyncio.create_task(work())
    await sent.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    assert broker.values(0) == [b"accepted"]


async def test_closing_ends_a_table_that_is_being_sent(broker: ScriptedBroker) -> None:
    """Closing a producer interrupts the sending of a table: accepted rows are sent and the rest is refused."""
    table = pa.table({"value": [str(row).encode().ljust(100) for row in range(2000)]})
    producer = await Producer(broker.url, buffer_bytes=20_000).start()
    async with asyncio.timeout(20):
        sending = asyncio.create_task(producer.send_batch("flights", table, partition=0))
        while not broker.values(0):
            await asyncio.wait([sending], timeout=0.001)
        await producer.close()
        with pytest.raises(ClosedError):
            await sending

    stored = broker.values(0)
    assert stored == table.column("value").to_pylist()[: len(stored)]
    assert 0 < len(stored) < 2000


async def test_an_aborted_producer_sends_nothing_more(broker: ScriptedBroker) -> None:
    """Aborting a producer makes all its records, flushes and waiting sends fail immediately."""
    released = asyncio.Event()

    async def hold(_: Received) -> None:
        """Delay the request until the producer is aborted."""
        await released.wait()

    broker.script(PRODUCE, hold)
    async with asyncio.timeout(20), Producer(broker.url, linger_ms=60_000, buffer_bytes=300) as producer:
        under_way = await producer.send("flights", b"u" * 100, partition=0)
        flushing = asyncio.create_task(producer.flush())
        await until(lambda: bool(broker.received(PRODUCE)))
        lingering = await producer.send("flights", b"l" * 100, partition=1)
        waiting = asyncio.create_task(producer.send("flights", b"w" * 200, partition=1))
        await until(lambda: bool(producer._room_waiters))
        await producer.abort()

        assert (under_way.done, lingering.done) == (True, True)
        with pytest.raises(ExceptionGroup) as failures:
            await flushing
        with pytest.raises(ClosedError):
            await waiting
        with pytest.raises(ClosedError) as doubtful:
            await under_way
        with pytest.raises(ClosedError):
            await producer.send("flights", b"x")
    released.set()

    assert {type(failure) for failure in failures.value.exceptions} == {ClosedError}
    assert "stored" in doubtful.value.__notes__[0]


@pytest.mark.parametrize("idempotence", [True, False])
async def test_an_aborted_producer_tries_nothing_again(broker: ScriptedBroker, idempotence: bool) -> None:
    """An aborted producer does not retry refused batches, and all its tasks have ended."""
    broker.refuse(PRODUCE, *["not_enough_replicas"] * 100)
    producer = await Producer(broker.url, linger_ms=0, batch_bytes=50, idempotence=idempotence).start()
    deliveries = [await producer.send("flights", b"x" * 20, partition=0) for _ in range(20)]
    async with asyncio.timeout(20):
        await until(lambda: len(broker.received(PRODUCE)) > 1)
        await producer.abort()
    broker.scripts.clear()
    async with Producer(broker.url) as other:
        await other.send_and_wait("flights", b"retried", partition=0)

    assert not [task for task in asyncio.all_tasks() if task.get_name().startswith(("produce", "fairlead"))]
    assert broker.values(0) == [b"retried"]
    for delivery in deliveries:
        with pytest.raises(ClosedError):
            await delivery
    await producer.abort()
    await producer.close()


async def test_an_abort_does_not_cut_a_blocking_close_off(broker: ScriptedBroker) -> None:
    """An abort does nothing once a blocking close has begun, and accepted records are sent."""
    released = asyncio.Event()

    async def hold(_: Received) -> None:
        """Delay the produce request until the abort has returned."""
        await released.wait()

    broker.script(PRODUCE, hold)
    producer = blocking.Producer(broker.url, linger_ms=60_000)
    async with asyncio.timeout(20):
        await asyncio.to_thread(producer.start)
        delivery = await asyncio.to_thread(producer.send, "flights", b"accepted", partition=0)
        closing = asyncio.create_task(asyncio.to_thread(producer.close))
        await until(lambda: bool(broker.received(PRODUCE)))
        await asyncio.to_thread(producer.abort)
        released.set()
        await closing

    assert broker.values(0) == [b"accepted"]
    assert delivery.done
