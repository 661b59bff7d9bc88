"""Measured work of sending single records from Python with the SDK and with clients of the peers, each in a process.

Each side (a client with one way of sending) sends `--records` values with one call for each value, waits for all
acknowledgements, and then checks that the broker has all records. For NATS, reading is also measured. `records.py`
starts the program, which prints one JSON object.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable

import nats
import pyarrow as pa
import uvloop
from aiokafka import AIOKafkaProducer
from confluent_kafka import Consumer as KafkaConsumer
from confluent_kafka import Producer as KafkaProducer
from confluent_kafka import TopicPartition as KafkaPartition
from nats.js.api import AckPolicy, ConsumerConfig, StorageType, StreamConfig

from fairlead import Admin, Producer
from fairlead.blocking import Producer as BlockingProducer

BATCH_BYTES = 1_000_000
LINGER_MS = 5
NATS_PENDING_MAX = 4_000
NATS_FETCH_RECORDS = 1_000
DISTINCT_VALUES = 1_000
TIMEOUT_SECONDS = 120.0


def values(options: argparse.Namespace) -> list[bytes]:
    """Return a thousand different values, which are created before the measurement starts and are sent repeatedly."""
    return [number.to_bytes(8, "big") * (-(-options.value_bytes // 8)) for number in range(DISTINCT_VALUES)]


class Sending:
    """Elapsed time and processor time of sending."""

    def __init__(self, options: argparse.Namespace) -> None:
        made = [value[: options.value_bytes] for value in values(options)]
        self.rounds = [made] * (options.records // DISTINCT_VALUES)
        self._began, self._cpu_began = time.perf_counter(), time.process_time()

    def document(self) -> dict[str, float]:
        """Return the measurements; called when the last record is acknowledged."""
        seconds, cpu = time.perf_counter() - self._began, time.process_time() - self._cpu_began
        records = len(self.rounds) * DISTINCT_VALUES
        return {
            "records": records,
            "seconds": seconds,
            "records_per_second": records / seconds,
            "cpu_seconds_per_million": cpu / records * 1e6,
        }


async def _check_fairlead(options: argparse.Namespace, measured: dict[str, float]) -> dict[str, float]:
    async with Admin(options.url) as admin:
        partitions = (await admin.describe_topic(options.topic)).partitions
        ends = [(await admin.offsets(options.topic, each)).high_watermark for each in range(partitions)]
    assert sum(ends) == measured["records"], (ends, measured)
    return measured


def _check_kafka(options: argparse.Namespace, measured: dict[str, float]) -> dict[str, float]:
    consumer = KafkaConsumer({"bootstrap.servers": options.url, "group.id": "check"})
    try:
        partitions = consumer.list_topics(options.topic, 10.0).topics[options.topic].partitions
        ends = [
            consumer.get_watermark_offsets(KafkaPartition(options.topic, each), 10.0)[1]
            for each in partitions
        ]
    finally:
        consumer.close()
    assert sum(ends) == measured["records"], (ends, measured)
    return measured


async def sdk_send(options: argparse.Namespace) -> dict[str, float]:
    """Send with `await producer.send(...)` of the SDK."""
    topic = options.topic
    async with Producer(options.url, acks="all", linger_ms=LINGER_MS, batch_bytes=BATCH_BYTES) as producer:
        await producer.refresh_metadata()
        sending = Sending(options)
        for made in sending.rounds:
            for value in made:
                await producer.send(topic, value)
        await producer.flush()
        measured = sending.document()
    return await _check_fairlead(options, measured)


async def sdk_blocking_send(options: argparse.Namespace) -> dict[str, float]:
    """Send with `producer.send(...)` of the SDK's blocking producer, in a program without an event loop."""
    topic = options.topic

    def send() -> dict[str, float]:
        with BlockingProducer(
            options.url, acks="all", linger_ms=LINGER_MS, batch_bytes=BATCH_BYTES
        ) as producer:
            sending = Sending(options)
            for made in sending.rounds:
                for value in made:
                    producer.send(topic, value)
            producer.flush()
            return sending.document()

    return await _check_fairlead(options, await asyncio.to_thread(send))


async def sdk_blocking_send_batch(options: argparse.Namespace) -> dict[str, float]:
    """Send with `producer.send_batch(...)` of the SDK's blocking producer, a table of a thousand values each."""
    topic = options.topic

    def send() -> dict[str, float]:
        with BlockingProducer(options.url, acks="all", linger_ms=LINGER_MS) as producer:
            sending = Sending(options)
            for made in sending.rounds:
                producer.send_batch(topic, pa.table({"value": pa.array(made, pa.binary())}))
            producer.flush()
            return sending.document()

    return await _check_fairlead(options, await asyncio.to_thread(send))


async def hand_over(options: argparse.Namespace) -> dict[str, float]:
    """Hand each value and an object for its outcome to another thread, which only takes them; nothing is sent.

    The rate is the most that a blocking `send` can reach if another thread sends the records.
    """
    queued: deque[tuple[object, bytes]] = deque()
    taken, has_records = threading.Semaphore(0), threading.Event()

    def take(count: int) -> None:
        while count:
            has_records.wait()
            has_records.clear()
            while queued:
                queued.popleft()
                count -= 1
        taken.release()

    sending = Sending(options)
    taker = threading.Thread(target=take, args=(options.records,))
    taker.start()
    for made in sending.rounds:
        for value in made:
            queued.append((object(), value))
            if not has_records.is_set():
                has_records.set()
    taken.acquire()
    measured = sending.document()
    taker.join()
    return measured


async def aiokafka_send(options: argparse.Namespace) -> dict[str, float]:
    """Send with `await producer.send(...)` of aiokafka, with batches of the same size as the SDK's."""
    topic = options.topic
    producer = AIOKafkaProducer(
        bootstrap_servers=options.url, acks="all", linger_ms=LINGER_MS, max_batch_size=BATCH_BYTES
    )
    await producer.start()
    try:
        await producer.partitions_for(topic)
        sending = Sending(options)
        for made in sending.rounds:
            for value in made:
                await producer.send(topic, value)
        await producer.flush()
        measured = sending.document()
    finally:
        await producer.stop()
    return _check_kafka(options, measured)


async def confluent_produce(options: argparse.Namespace) -> dict[str, float]:
    """Send with `producer.produce(...)` of confluent-kafka; while its queue is full, wait in `poll`."""
    topic = options.topic
    producer = KafkaProducer(
        {
            "bootstrap.servers": options.url,
            "acks": "all",
            "linger.ms": LINGER_MS,
            "batch.size": BATCH_BYTES,
            "queue.buffering.max.messages": 1_000_000,
        }
    )
    producer.list_topics(topic, 10.0)
    sending = Sending(options)
    for made in sending.rounds:
        for value in made:
            while True:
                try:
                    producer.produce(topic, value)
                except BufferError:
                    producer.poll(0.05)
                else:
                    break
        producer.poll(0)
    left = producer.flush(TIMEOUT_SECONDS)
    measured = sending.document()
    assert not left, left
    return _check_kafka(options, measured)


async def nats_publish(options: argparse.Namespace) -> dict[str, float]:
    """Send with `await js.publish_async(...)` of nats-py to a stream with file storage; 4,000 messages in flight."""
    connection = await nats.connect(options.url)
    try:
        stream = connection.jetstream(publish_async_max_pending=NATS_PENDING_MAX)
        await stream.add_stream(
            StreamConfig(name=options.topic, subjects=[options.topic], storage=StorageType.FILE)
        )
        sending = Sending(options)
        for made in sending.rounds:
            for value in made:
                await stream.publish_async(options.topic, value, wait_stall=TIMEOUT_SECONDS)
        await asyncio.wait_for(stream.publish_async_completed(), TIMEOUT_SECONDS)
        measured = sending.document()
        stored = (await stream.stream_info(options.topic)).state.messages
        assert stored == measured["records"], (stored, measured)
        return measured
    finally:
        await connection.close()


async def nats_fetch(options: argparse.Namespace) -> dict[str, float]:
    """Read with a pull consumer, a thousand messages in each fetch, without acknowledgements; add up the bytes."""
    connection = await nats.connect(options.url)
    try:
        stream = connection.jetstream()
        config = ConsumerConfig(ack_policy=AckPolicy.NONE)
        subscription = await stream.pull_subscribe(options.topic, stream=options.topic, config=config)
        got = value_bytes = 0
        began, cpu_began = time.perf_counter(), time.process_time()
        while got < options.records:
            batch = min(NATS_FETCH_RECORDS, options.records - got)
            for message in await subscription.fetch(batch, timeout=30):
                got += 1
                value_bytes += len(message.data)
        seconds, cpu = time.perf_counter() - began, time.process_time() - cpu_began
        assert value_bytes == got * options.value_bytes, (value_bytes, got)
        return {
            "records": got,
            "seconds": seconds,
            "records_per_second": got / seconds,
            "cpu_seconds_per_million": cpu / got * 1e6,
        }
    finally:
        await connection.close()


SIDES: dict[str, Callable[[argparse.Namespace], Awaitable[dict[str, float]]]] = {
    "sdk-send": sdk_send,
    "sdk-blocking-send": sdk_blocking_send,
    "sdk-blocking-send-batch": sdk_blocking_send_batch,
    "sdk-hand-over": hand_over,
    "aiokafka-send": aiokafka_send,
    "confluent-produce": confluent_produce,
    "nats-publish": nats_publish,
    "nats-fetch": nats_fetch,
}


async def main() -> None:
    """Run one side, and print its measurements."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("side", choices=SIDES)
    parser.add_argument("--url", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--records", type=int, required=True)
    parser.add_argument("--value-bytes", type=int, default=100)
    options = parser.parse_args()
    print(json.dumps(await SIDES[options.side](options)))


if __name__ == "__main__":
    uvloop.run(main())
