"""Fetches of Kafka's consumers: batches that take long to translate, and damaged batches."""

from __future__ import annotations

import asyncio
import os
import threading
from pathlib import Path
from typing import Any

from aiokafka.record.memory_records import MemoryRecords

from fairlead_broker.kafka.protocol.apis import ApiKey
from fairlead_broker.kafka.protocol.errors import KafkaError
from kafka_kit import SECONDS_MAX, StartBroker, kafka_address, produced
from kafka_wire import KafkaConnection
from waiting import until

VALUE_BYTES = 500_000
DAMAGED_VALUE = b"a value whose bytes change"


async def fetch(connection: KafkaConnection, offsets: dict[str, int], bytes_max: int = 1 << 20) -> Any:
    """Return the answer to a fetch of partition 0 of topics from their offsets."""
    return await connection.ask(
        ApiKey.FETCH,
        11,
        replica_id=-1,
        max_wait_ms=0,
        min_bytes=1,
        max_bytes=bytes_max,
        isolation_level=0,
        session_id=0,
        session_epoch=-1,
        topics=[
            {
                "topic": topic,
                "partitions": [{"partition": 0, "fetch_offset": at, "partition_max_bytes": bytes_max}],
            }
            for topic, at in offsets.items()
        ],
        forgotten_topics_data=[],
        rack_id="",
    )


def values(answer: Any) -> dict[str, list[bytes | None]]:
    """Return the values of the fetched records of each topic."""
    found: dict[str, list[bytes | None]] = {}
    for topic in answer.responses:
        records = MemoryRecords(bytes(topic.partitions[0].records or b""))
        found[topic.topic] = []
        while (batch := records.next_batch()) is not None:
            found[topic.topic] += [each.value for each in batch]
    return found


def damage(folder: Path, value: bytes) -> None:
    """Change a byte of a stored value."""
    [log] = [each for each in folder.rglob("*") if each.is_file() and value in each.read_bytes()]
    with log.open("r+b") as opened:
        os.pwrite(opened.fileno(), b"A", log.read_bytes().index(value))


async def test_compressed_batches_are_translated_in_threads_up_to_the_limit(start: StartBroker) -> None:
    """While all threads are busy, only fetches of compressed batches wait; open batches count towards the limit."""
    running = await start(limits={"validation_threads": 1})
    address, pool = kafka_address(running), running.broker.validation
    for number in range(4):
        record = {"value": bytes((number,)) * VALUE_BYTES}
        await asyncio.to_thread(produced, address, "packed", [record], **{"compression.type": "zstd"})
    await asyncio.to_thread(produced, address, "plain", [{"value": b"small"}])
    free = threading.Event()
    busy = pool.submit(free.wait, SECONDS_MAX)
    async with KafkaConnection.open(address) as connection, KafkaConnection.open(address) as other:
        waiting = asyncio.create_task(fetch(connection, {"packed": 0}, 5 * VALUE_BYTES // 2))
        await until(lambda: pool._unfinished == 2, SECONDS_MAX)
        plain = await fetch(other, {"plain": 0})
        was_waiting = not waiting.done()
        free.set()
        packed = await waiting
        rest = await fetch(connection, {"packed": 2, "plain": 0}, VALUE_BYTES)
    await busy

    assert was_waiting
    assert values(plain) == {"plain": [b"small"]}
    assert values(packed) == {"packed": [bytes((number,)) * VALUE_BYTES for number in (0, 1)]}
    assert values(rest) == {"packed": [bytes((2,)) * VALUE_BYTES], "plain": []}


async def test_a_damaged_batch_affects_only_its_partition(start: StartBroker, tmp_path: Path) -> None:
    """Batches before a damaged batch, and other partitions, are still read."""
    address = kafka_address(await start())
    for value in (b"first", DAMAGED_VALUE, b"third"):
        await asyncio.to_thread(produced, address, "damaged", [{"value": value}])
    await asyncio.to_thread(produced, address, "intact", [{"value": b"whole"}])
    damage(tmp_path, DAMAGED_VALUE)
    async with KafkaConnection.open(address) as connection:
        before = await fetch(connection, {"damaged": 0, "intact": 0})
        at = await fetch(connection, {"damaged": 1, "intact": 0})
        after = await fetch(connection, {"damaged": 2, "intact": 0})

    assert values(before) == {"damaged": [b"first"], "intact": [b"whole"]}
    assert values(at) == {"damaged": [], "intact": [b"whole"]}
    assert values(after) == {"damaged": [b"third"], "intact": [b"whole"]}
    errors = [[topic.partitions[0].error_code for topic in each.responses] for each in (before, at, after)]
    assert errors == [
        [KafkaError.NONE] * 2,
        [KafkaError.CORRUPT_MESSAGE, KafkaError.NONE],
        [KafkaError.NONE] * 2,
    ]
