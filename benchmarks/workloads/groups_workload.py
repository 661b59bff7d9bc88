"""Measured work of consumer groups with the SDK and with Kafka's clients, each in a separate process.

`records` and `batches` read a topic as the only member of a new group and print one JSON object. The measured time
begins when the first record is returned, so that it excludes the time for joining the group. `members` runs several
members in one process, which read their partitions repeatedly until standard input is closed. The parts of `groups.py`
start this program.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Callable
from uuid import uuid4

import pyarrow.compute as pc
import uvloop
from aiokafka import AIOKafkaConsumer
from confluent_kafka import Consumer as KafkaConsumer

from fairlead import Consumer

POLL_RECORDS_MAX = 10_000
PARTITION_FETCH_BYTES_MAX = 4 << 20
BUCKETS_A_SECOND = 10


class Reading:
    """Elapsed time and processor time of a read."""

    def __init__(self) -> None:
        self._began = self._cpu_began = 0.0

    def begin(self) -> None:
        """Start the measurement; later calls have no effect."""
        if not self._began:
            self._began, self._cpu_began = time.perf_counter(), time.process_time()

    def document(
        self, options: argparse.Namespace, records: int, value_bytes: int, last: int
    ) -> dict[str, float]:
        """Return the measurements, after checking the value bytes and the last offset."""
        seconds, cpu = time.perf_counter() - self._began, time.process_time() - self._cpu_began
        assert value_bytes == records * options.value_bytes, (value_bytes, records)
        assert last >= 0, last
        return {
            "records": records,
            "seconds": seconds,
            "records_per_second": records / seconds,
            "cpu_seconds_per_million": cpu / records * 1e6,
        }


def _consumer(options: argparse.Namespace) -> Consumer:
    return Consumer(options.url, group=f"bench-{uuid4().hex}", topics=options.topic)


async def sdk_records(options: argparse.Namespace) -> dict[str, float]:
    """Read every record with the SDK's iteration over records; value and offset are used."""
    reading, last = Reading(), -1
    got = value_bytes = 0
    async with _consumer(options) as consumer:
        async for record in consumer.records():
            if not got:
                reading.begin()
            got += 1
            value_bytes += len(record.value)
            last = record.offset
            if got >= options.records:
                break
        return reading.document(options, got, value_bytes, last)


async def sdk_record_loops(options: argparse.Namespace) -> dict[str, float]:
    """Read every record with a loop over each batch, like the loops of Kafka's clients over polled messages."""
    reading, last = Reading(), -1
    got = value_bytes = 0
    async with _consumer(options) as consumer:
        async for batch in consumer:
            reading.begin()
            for record in batch:
                got += 1
                value_bytes += len(record.value)
                last = record.offset
            if got >= options.records:
                break
        return reading.document(options, got, value_bytes, last)


async def sdk_batches(options: argparse.Namespace) -> dict[str, float]:
    """Read every batch as Arrow columns; Arrow computes the number of value bytes."""
    reading, last = Reading(), -1
    got = value_bytes = 0
    async with _consumer(options) as consumer:
        async for batch in consumer:
            reading.begin()
            columns = batch.to_arrow()
            value_bytes += pc.sum(pc.binary_length(columns.column("value"))).as_py()
            got += columns.num_rows
            last = batch.next_offset - 1
            if got >= options.records:
                break
        return reading.document(options, got, value_bytes, last)


def _confluent_consumer(options: argparse.Namespace) -> KafkaConsumer:
    consumer = KafkaConsumer(
        {
            "bootstrap.servers": options.url,
            "group.id": f"bench-{uuid4().hex}",
            "auto.offset.reset": "earliest",
            "max.partition.fetch.bytes": PARTITION_FETCH_BYTES_MAX,
            "queued.min.messages": 1_000_000,
        }
    )
    consumer.subscribe([options.topic])
    return consumer


async def confluent_consume(options: argparse.Namespace) -> dict[str, float]:
    """Read lists of messages, which is fastest with confluent-kafka; value and offset of each message are used."""
    consumer = _confluent_consumer(options)
    reading, last = Reading(), -1
    got = value_bytes = 0
    try:
        while got < options.records:
            messages = consumer.consume(POLL_RECORDS_MAX, 1.0)
            if messages:
                reading.begin()
            for message in messages:
                assert message.error() is None, message.error()
                got += 1
                value_bytes += len(message.value())
                last = message.offset()
        return reading.document(options, got, value_bytes, last)
    finally:
        consumer.close()


async def confluent_poll(options: argparse.Namespace) -> dict[str, float]:
    """Read one message in each call, as in the documentation of confluent-kafka."""
    consumer = _confluent_consumer(options)
    reading, last = Reading(), -1
    got = value_bytes = 0
    try:
        while got < options.records:
            message = consumer.poll(1.0)
            if message is None:
                continue
            if not got:
                reading.begin()
            assert message.error() is None, message.error()
            got += 1
            value_bytes += len(message.value())
            last = message.offset()
        return reading.document(options, got, value_bytes, last)
    finally:
        consumer.close()


def _aiokafka_consumer(options: argparse.Namespace) -> AIOKafkaConsumer:
    return AIOKafkaConsumer(
        options.topic,
        bootstrap_servers=options.url,
        group_id=f"bench-{uuid4().hex}",
        auto_offset_reset="earliest",
        max_partition_fetch_bytes=PARTITION_FETCH_BYTES_MAX,
    )


async def aiokafka_getmany(options: argparse.Namespace) -> dict[str, float]:
    """Read lists of records by partition, which is fastest with aiokafka; value and offset of each record are used."""
    reading, last = Reading(), -1
    got = value_bytes = 0
    async with _aiokafka_consumer(options) as consumer:
        while got < options.records:
            found = await consumer.getmany(timeout_ms=1000, max_records=POLL_RECORDS_MAX)
            for records in found.values():
                reading.begin()
                for record in records:
                    got += 1
                    value_bytes += len(record.value)
                    last = record.offset
        return reading.document(options, got, value_bytes, last)


async def aiokafka_iterate(options: argparse.Namespace) -> dict[str, float]:
    """Read with `async for` over records, as in the documentation of aiokafka."""
    reading, last = Reading(), -1
    got = value_bytes = 0
    async with _aiokafka_consumer(options) as consumer:
        async for record in consumer:
            if not got:
                reading.begin()
            got += 1
            value_bytes += len(record.value)
            last = record.offset
            if got >= options.records:
                break
        return reading.document(options, got, value_bytes, last)


class Member:
    """One member that repeatedly reads its assigned partitions from the start to a given offset."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self.buckets: dict[int, int] = {}
        """Number of records read in each tenth of a second of the monotonic clock, which all processes share."""

    async def run(self) -> None:
        """Read records until cancelled."""
        options = self._options
        async with Consumer(
            options.url,
            group=options.group,
            topics=options.topic,
            session_timeout=f"{options.session_seconds}s",
            fetch_bytes_max=1 << 20,
            partition_fetch_bytes_max=1 << 20,
            prefetch_bytes=2 << 20,
            retry_timeout="60s",
        ) as consumer:
            async for batch in consumer:
                bucket = int(time.monotonic() * BUCKETS_A_SECOND)
                self.buckets[bucket] = self.buckets.get(bucket, 0) + batch.record_count
                if batch.next_offset >= options.records:
                    await consumer.seek(batch.topic_partition, 0)


async def members(options: argparse.Namespace) -> dict[str, object]:
    """Run several members in one process, from the first line of standard input until standard input is closed."""
    print(json.dumps({"ready": True}), flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    crew = [Member(options) for _ in range(options.members)]
    tasks = [asyncio.ensure_future(member.run()) for member in crew]
    stop = asyncio.ensure_future(asyncio.to_thread(sys.stdin.readline))
    done, _ = await asyncio.wait([stop, *tasks], return_when=asyncio.FIRST_COMPLETED)
    failed = [repr(task.exception()) for task in done if task is not stop]
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    return {"failed": failed, "members": [member.buckets for member in crew]}


SIDES: dict[str, Callable[[argparse.Namespace], Awaitable[dict[str, float] | dict[str, object]]]] = {
    "records": sdk_records,
    "record-loops": sdk_record_loops,
    "batches": sdk_batches,
    "confluent-consume": confluent_consume,
    "confluent-poll": confluent_poll,
    "aiokafka-getmany": aiokafka_getmany,
    "aiokafka-iterate": aiokafka_iterate,
    "members": members,
}


async def _measured(options: argparse.Namespace) -> dict[str, float] | dict[str, object]:
    return await SIDES[options.side](options)


def main() -> None:
    """Parse the command line, do the work of one side and print its measurements."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("side", choices=sorted(SIDES))
    parser.add_argument("--url", required=True, help="addresses of the brokers")
    parser.add_argument("--topic", required=True)
    parser.add_argument(
        "--records",
        type=int,
        required=True,
        help="number of records to read; for `members`, from each partition",
    )
    parser.add_argument("--value-bytes", type=int, default=100)
    parser.add_argument("--group", default="bench", help="group that the members join")
    parser.add_argument("--members", type=int, default=1, help="number of members in this process")
    parser.add_argument("--session-seconds", type=int, default=30, help="session timeout of the members")
    print(json.dumps(uvloop.run(_measured(parser.parse_args()))))


if __name__ == "__main__":
    main()
