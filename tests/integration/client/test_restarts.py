"""Producers and consumers while the broker's process is stopped and killed."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from fairlead import Admin, Consumer, Delivery, Producer
from fairlead.errors import DeliveryTimeoutError, UnreachableError

if TYPE_CHECKING:
    from broker_kit import BrokerProgram

RECORDS = 3_000


@pytest.mark.slow
async def test_producing_and_consuming_survive_a_killed_broker(process: BrokerProgram) -> None:
    """Records are neither lost, stored twice nor reordered when their broker is killed."""
    async with Admin(process.address) as admin:
        await admin.create_topic("flights", partitions=3)
    read: list[tuple[int, int]] = []
    done = asyncio.Event()

    async def consume() -> None:
        """Read until every record has been seen."""
        async with Consumer(process.address) as consumer:
            await consumer.assign(topic="flights")
            async for record in consumer.records():
                read.append((record.partition, int(record.value or b"")))
                if len({value for _, value in read}) == RECORDS:
                    done.set()
                    return

    async with asyncio.TaskGroup() as tasks, asyncio.timeout(60):
        tasks.create_task(consume())
        async with Producer(process.address, batch_bytes=2_000) as producer:
            deliveries: list[Delivery] = []
            for row in range(RECORDS):
                deliveries.append(await producer.send("flights", str(row).encode(), partition=row % 3))
                if row in (RECORDS // 3, 2 * RECORDS // 3):
                    await deliveries[row // 2]
                    process.kill()
                    await process.start()
            offsets = [(await delivery).offset for delivery in deliveries]
        await done.wait()

    for partition in range(3):
        mine = [value for place, value in read if place == partition]
        assert mine == list(range(partition, RECORDS, 3))
        assert offsets[partition::3] == sorted(offsets[partition::3])


@pytest.mark.slow
async def test_a_graceful_restart_repeats_nothing(process: BrokerProgram) -> None:
    """A stopping broker answers every request first, so no batch has an unknown outcome."""
    async with Admin(process.address) as admin:
        await admin.create_topic("flights")
    async with asyncio.timeout(60), Producer(process.address, batch_bytes=2_000) as producer:
        for row in range(RECORDS):
            await producer.send("flights", str(row).encode())
            if row == RECORDS // 2:
                await asyncio.to_thread(process.stop)
                await process.start()
    async with Consumer(process.address) as consumer:
        await consumer.assign(topic="flights")
        values = [int(r.value or b"") async for r in consumer.records(until=await consumer.end_offsets())]

    assert values == list(range(RECORDS))


async def test_a_broker_that_stays_away_fails_the_records_in_time(process: BrokerProgram) -> None:
    """If the broker does not return, records fail after the delivery timeout with an error that names the cause."""
    async with Admin(process.address) as admin:
        await admin.create_topic("flights")
    async with Producer(process.address, delivery_timeout="3s", retry_timeout="1s") as producer:
        await producer.send_and_wait("flights", b"x")
        process.kill()
        delivery = await producer.send("flights", b"y")
        with pytest.raises(DeliveryTimeoutError) as raised:
            await delivery

    assert raised.value.record_count == 1
    assert isinstance(raised.value.__cause__, UnreachableError)
