"""Idempotence despite lost and late answers, kills, many tasks and threads: each record once and in order."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import AsyncIterator
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

import pyarrow as pa
import pytest

from fairlead import Admin, Consumer, Delivery, Producer
from fairlead_broker.settings import BrokerSettings, Endpoint
from fairlead_broker.wiring.start import start_broker

if TYPE_CHECKING:
    from broker_kit import BrokerProgram

ANY_PORT: Final = Endpoint("127.0.0.1", 0)
CHUNK_BYTES: Final = 64 * 1024


class UnreliableNetwork:
    """Relays connections to a broker, and loses or delays one in ten chunks of the answers.

    A lost chunk breaks the TCP connection: every answer in flight on the connection is lost, although the broker has
    executed the requests.
    """

    def __init__(self, seed: int) -> None:
        self._chance = random.Random(seed)
        self._target: Endpoint | None = None
        self.reliable = False
        self.lost = self.late = 0

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._relay, "127.0.0.1", 0)
        self.endpoint = Endpoint("127.0.0.1", self._server.sockets[0].getsockname()[1])
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()

    def lead_to(self, target: Endpoint) -> None:
        """Relay connections to this broker."""
        self._target = target

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert self._target is not None
        up_reader, up_writer = await asyncio.open_connection(self._target.host, self._target.port)
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._forward(reader, up_writer, fails=False))
                tasks.create_task(self._forward(up_reader, writer, fails=True))
        except* ConnectionError:
            pass
        finally:
            writer.transport.abort()
            up_writer.transport.abort()

    async def _forward(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, fails: bool
    ) -> None:
        while chunk := await reader.read(CHUNK_BYTES):
            number = 1.0 if self.reliable or not fails else self._chance.random()
            if number < 0.05:
                self.lost += 1
                raise ConnectionAbortedError
            if number < 0.1:
                self.late += 1
                await asyncio.sleep(0.2 * self._chance.random())  # noqa: TID251 - the delay is intended
            writer.write(chunk)
            await writer.drain()
        raise ConnectionResetError


@pytest.fixture
async def network(tmp_path: Path) -> AsyncIterator[UnreliableNetwork]:
    """Yield an unreliable network in front of a broker whose clients connect through it."""
    async with UnreliableNetwork(seed=11) as network:
        settings = BrokerSettings(
            data=tmp_path / "data", listen=ANY_PORT, peer_listen=ANY_PORT, ops_listen=ANY_PORT,
            advertise=network.endpoint,
        )  # fmt: skip
        broker = await start_broker(settings)
        assert broker.addresses.data is not None
        host, _, port = broker.addresses.data.rpartition(":")
        network.lead_to(Endpoint(host, int(port)))
        yield network
        network.reliable = True
        await broker.stop()


async def stored(url: str, topic: str = "flights") -> list[list[tuple[int, bytes | None]]]:
    """Return (offset, value) of every record, a list for each partition."""
    async with Admin(url) as admin:
        partitions = (await admin.describe_topic(topic)).partitions
    found: list[list[tuple[int, bytes | None]]] = [[] for _ in range(partitions)]
    async with Consumer(url) as consumer:
        await consumer.assign(topic=topic)
        async for record in consumer.records(until=await consumer.end_offsets()):
            found[record.partition].append((record.offset, record.value))
    return found


@pytest.mark.slow
async def test_lost_and_late_answers_neither_repeat_nor_lose_nor_reorder(network: UnreliableNetwork) -> None:
    """Records are stored once and in order, with five requests per partition in flight and one in ten answers lost."""
    url = f"http://{network.endpoint}"
    async with Admin(url) as admin:
        await admin.create_topic("flights", partitions=2)
    count = 3000
    async with asyncio.timeout(90), Producer(url, batch_bytes=60, linger_ms=0) as producer:
        deliveries = [await producer.send("flights", b"%d" % row, partition=row % 2) for row in range(count)]
        offsets = [(await delivery).offset for delivery in deliveries]
    network.reliable = True

    assert network.lost >= 5
    assert network.late >= 5
    for partition, found in enumerate(await stored(url)):
        rows = range(partition, count, 2)
        assert [value for _, value in found] == [b"%d" % row for row in rows]
        assert [offset for offset, _ in found] == [offsets[row] for row in rows]


async def test_batches_that_are_too_large_arrive_once_over_a_bad_network(network: UnreliableNetwork) -> None:
    """Batches that are too large are split and stored once, even if the refusal itself is lost."""
    url = f"http://{network.endpoint}"
    async with Admin(url) as admin:
        await admin.create_topic("flights", config={"max.message.bytes": 2000})
    deliveries: list[Delivery] = []
    async with asyncio.timeout(90), Producer(url, batch_bytes=5000, linger_ms=0) as producer:
        # The number of requests depends on the machine, so the loop counts lost answers.
        while len(deliveries) < 3000 or network.lost < 5:
            deliveries.append(await producer.send("flights", b"%050d" % len(deliveries)))
            if len(deliveries) % 100 == 0:
                # The refresh makes the producer forget the limit of the topic, so that further batches are refused.
                await producer.refresh_metadata()
        offsets = [(await delivery).offset for delivery in deliveries]
    network.reliable = True

    count = len(deliveries)
    [found] = await stored(url)
    assert found == [(row, b"%050d" % row) for row in range(count)]
    assert offsets == list(range(count))


async def test_tables_arrive_once_over_a_bad_network(network: UnreliableNetwork) -> None:
    """Rows of a table are stored once and in order in their partition over an unreliable network."""
    url = f"http://{network.endpoint}"
    async with Admin(url) as admin:
        await admin.create_topic("flights", partitions=3)
    keys = [b"%d" % (row % 50) for row in range(20_000)]
    table = pa.table({"key": keys, "value": [b"%d" % row for row in range(20_000)]})
    async with asyncio.timeout(90), Producer(url, columnar_batch_bytes=2_000) as producer:
        await producer.send_batch("flights", table)
    network.reliable = True

    rows = [[int(value or b"") for _, value in found] for found in await stored(url)]
    assert network.lost + network.late >= 5
    assert sorted(chain(*rows)) == list(range(20_000))
    assert all(mine == sorted(mine) for mine in rows)


@pytest.mark.slow
async def test_a_killed_broker_stores_each_record_once(process: BrokerProgram) -> None:
    """Records that were acknowledged are stored once after three kills of the broker under load."""
    async with Admin(process.address) as admin:
        await admin.create_topic("flights", partitions=2)
    deliveries: list[Delivery] = []
    unanswered: list[int] = []

    async def load(producer: Producer) -> None:
        for row in range(12_000):
            # Each delivery is appended at once, because the test reads the progress from the list.
            deliveries.append(await producer.send("flights", b"%d" % row, partition=row % 2))  # noqa: PERF401

    async with asyncio.timeout(100), Producer(process.address, batch_bytes=300, linger_ms=0) as producer:
        loading = asyncio.create_task(load(producer))
        for goal in (1_500, 4_500, 8_000):
            while len(deliveries) <= goal:
                await asyncio.wait([loading], timeout=0.005)
            await deliveries[goal - 1_000]
            unanswered.append(sum(not delivery.done for delivery in deliveries))
            process.kill()
            await process.start()
        await loading
        offsets = [(await delivery).offset for delivery in deliveries]

    assert all(unanswered)
    for partition, found in enumerate(await stored(process.address)):
        rows = range(partition, 12_000, 2)
        assert [value for _, value in found] == [b"%d" % row for row in rows]
        assert [offset for offset, _ in found] == [offsets[row] for row in rows]


async def test_many_tasks_share_a_producer(bootstrap: str, admin: Admin) -> None:
    """Records that fifty tasks send with one producer are stored once and in the order of each task."""
    await admin.create_topic("flights", partitions=3)
    async with Producer(bootstrap, batch_bytes=500, linger_ms=0) as producer:

        async def work(number: int) -> None:
            for row in range(100):
                await producer.send("flights", b"%d:%d" % (number, row), partition=number % 3)
                if row % 10 == 0:
                    await producer.send_and_wait("flights", b"%d:waited" % number, partition=number % 3)

        async with asyncio.TaskGroup() as tasks:
            for number in range(50):
                tasks.create_task(work(number))

    expected = [
        item for row in range(100) for item in ([b"%d" % row, b"waited"] if row % 10 == 0 else [b"%d" % row])
    ]
    for partition, found in enumerate(await stored(bootstrap)):
        for number in range(partition, 50, 3):
            mine = [value for _, value in found if value and value.startswith(b"%d:" % number)]
            assert [value.split(b":")[1] for value in mine] == expected


@pytest.mark.slow
async def test_a_producer_in_each_of_many_threads(process: BrokerProgram) -> None:
    """Records of eight threads, each with an event loop and a producer, are stored once in the same partition."""
    async with Admin(process.address) as admin:
        await admin.create_topic("flights")

    async def work(number: int) -> None:
        async with Producer(process.address, batch_bytes=500, linger_ms=0) as producer:
            for row in range(300):
                await producer.send("flights", b"%d:%d" % (number, row))

    threads = [
        threading.Thread(target=lambda number=number: asyncio.run(work(number))) for number in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        await asyncio.to_thread(thread.join)

    [found] = await stored(process.address)
    for number in range(8):
        mine = [value for _, value in found if value and value.startswith(b"%d:" % number)]
        assert mine == [b"%d:%d" % (number, row) for row in range(300)]
