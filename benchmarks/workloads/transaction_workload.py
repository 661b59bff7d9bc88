"""Measured work with transactions, with the SDK and with confluent-kafka, each side in a separate process.

`transaction_cases.py` starts the program, which prints one JSON object. A side whose name begins with `sdk` uses the
SDK, a side whose name begins with `kafka` uses confluent-kafka. Latencies are in microseconds.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta

import msgspec
import numpy as np
import pyarrow.compute as pc
import pyreqwest.client
import uvloop
from confluent_kafka import Consumer as KafkaConsumer
from confluent_kafka import Message as KafkaMessage
from confluent_kafka import Producer as KafkaProducer
from confluent_kafka import TopicPartition as KafkaPartition
from workload import fresh_values

from fairlead import Consumer, Producer, exactly_once
from fairlead_api.bodies.media_types import JSON

COMMIT_SECONDS = 0.1
"""Time between two commits."""
WARM_SHARE = 0.1
"""Fraction of the transactions during which connections and caches warm up."""
LATENCY_PARTITIONS = 3
FETCHED_MAX = 10_000
BEGINS_AT_ONCE = 100
TIMEOUT_SECONDS = 120.0
LOOK_SECONDS = 0.1
ABORTED_EVERY = 10
"""In a topic with aborted transactions, every tenth transaction is aborted."""

Figures = dict[str, float]
Options = argparse.Namespace


class Undone(Exception):
    """Raised to abort a transaction in the topic that is read later."""


def percentiles(seconds: Sequence[float]) -> Figures:
    """Return p50 and p99 of the samples after the warm-up, in microseconds."""
    kept = np.asarray(seconds[int(len(seconds) * WARM_SHARE) :]) * 1e6
    p50, p99 = np.percentile(kept, [50, 99])
    return {"samples": len(kept), "p50": float(p50), "p99": float(p99)}


def rate(records: int, began: float) -> Figures:
    """Return the records per second since `began`."""
    return {"records": records, "records_per_second": records / (time.perf_counter() - began)}


# -- produce


async def sdk_produce(options: Options) -> Figures:
    """Send tables of random values to the partitions in turn, in transactions of 100 ms."""
    generator, sent, partition = np.random.Generator(np.random.SFC64()), 0, 0
    async with Producer(options.url, transactional=True) as producer:
        async with producer.transaction() as transaction:
            await transaction.send_batch(options.topic, fresh_values(generator, 1, options.value_bytes), 0)
        began = time.perf_counter()
        while sent < options.records:
            until = time.perf_counter() + COMMIT_SECONDS
            async with producer.transaction() as transaction:
                while sent < options.records and time.perf_counter() < until:
                    count = min(options.batch_records, options.records - sent)
                    values = fresh_values(generator, count, options.value_bytes)
                    await transaction.send_batch(options.topic, values, partition)
                    sent, partition = sent + count, (partition + 1) % options.partitions
        return rate(sent, began)


# -- begin to commit answered, and commit to visible


async def _sdk_transactions(options: Options, committing: Callable[[int], None]) -> list[float]:
    """Commit transactions with one record in each of three partitions, for `seconds`; return the duration of each.

    `committing` is called with the number of the transaction when its commit begins.
    """
    taken: list[float] = []
    deadline = time.perf_counter() + options.seconds
    async with Producer(options.url, transactional=True, linger_ms=0) as producer:
        while time.perf_counter() < deadline:
            began, number = time.perf_counter(), len(taken).to_bytes(8, "big")
            async with producer.transaction() as transaction:
                for partition in range(LATENCY_PARTITIONS):
                    await transaction.send(options.topic, number, partition=partition)
                committing(len(taken))
            taken.append(time.perf_counter() - began)
    return taken


def _kafka_transactions(options: Options, committing: Callable[[int], None]) -> list[float]:
    """Commit the same transactions with confluent-kafka; return the duration of each."""
    taken: list[float] = []
    producer = KafkaProducer(
        {"bootstrap.servers": options.url, "transactional.id": "latency", "linger.ms": 0}
    )
    producer.init_transactions(TIMEOUT_SECONDS)
    deadline = time.perf_counter() + options.seconds
    while time.perf_counter() < deadline:
        began, number = time.perf_counter(), len(taken).to_bytes(8, "big")
        producer.begin_transaction()
        for partition in range(LATENCY_PARTITIONS):
            producer.produce(options.topic, number, partition=partition)
        committing(len(taken))
        producer.commit_transaction(TIMEOUT_SECONDS)
        taken.append(time.perf_counter() - began)
    return taken


async def sdk_commit(options: Options) -> Figures:
    """Measure the time from the beginning of a transaction until its commit is answered."""
    return percentiles(await _sdk_transactions(options, lambda number: None))


async def kafka_commit(options: Options) -> Figures:
    """Measure the same time with confluent-kafka."""
    return percentiles(await asyncio.to_thread(_kafka_transactions, options, lambda number: None))


class Visibility:
    """Times of commits, and the times at which a reader of committed records has all records of each transaction."""

    def __init__(self) -> None:
        self._committed: list[float] = []
        self._read: dict[int, int] = {}
        self._taken: list[float] = []
        self.total: int | None = None
        """Number of transactions to read; None until all transactions have been sent."""

    def committing(self, number: int) -> None:
        """Record the start of a commit."""
        assert number == len(self._committed), (number, len(self._committed))
        self._committed.append(time.perf_counter())

    def read(self, value: bytes) -> None:
        """Record that a record was read; the last record of a transaction makes the transaction visible."""
        number = int.from_bytes(value, "big")
        self._read[number] = self._read.get(number, 0) + 1
        if self._read[number] == LATENCY_PARTITIONS:
            del self._read[number]
            self._taken.append(time.perf_counter() - self._committed[number])

    @property
    def is_complete(self) -> bool:
        """Whether all transactions are visible."""
        return len(self._taken) == self.total

    def figures(self) -> Figures:
        """Return the percentiles."""
        return percentiles(self._taken)


async def sdk_visible(options: Options) -> Figures:
    """Measure the time from the start of a commit until a reader of committed records has all records."""
    seen = Visibility()

    async def read() -> None:
        while not seen.is_complete:
            batch = await consumer.next_batch(f"{LOOK_SECONDS}s")
            for record in batch or ():
                seen.read(record.value or b"")

    async with Consumer(options.url, isolation="read_committed") as consumer:
        await consumer.assign(topic=options.topic)
        reading = asyncio.create_task(read())
        seen.total = len(await _sdk_transactions(options, seen.committing))
        await asyncio.wait_for(reading, TIMEOUT_SECONDS)
    return seen.figures()


async def kafka_visible(options: Options) -> Figures:
    """Measure the same time with confluent-kafka, whose reader is a thread."""
    seen = Visibility()
    consumer = _kafka_consumer(options, "visible")
    consumer.assign([KafkaPartition(options.topic, each, 0) for each in range(LATENCY_PARTITIONS)])

    def read() -> None:
        while not seen.is_complete:
            message = consumer.poll(LOOK_SECONDS)
            if message is not None:
                seen.read(_value(message))

    reading = asyncio.create_task(asyncio.to_thread(read))
    seen.total = len(await asyncio.to_thread(_kafka_transactions, options, seen.committing))
    await asyncio.wait_for(reading, TIMEOUT_SECONDS)
    consumer.close()
    return seen.figures()


# -- consume, transform, produce


def transformed(value: bytes) -> bytes:
    """Return the value of the output for the value of an input."""
    return value[::-1]


class Committed:
    """Records of committed transactions, and their rate after the first commit."""

    def __init__(self) -> None:
        self.records = 0
        self._first = 0
        self._began = self._ended = 0.0

    def add(self, records: int) -> None:
        """Count the records of a transaction whose commit was answered."""
        self.records += records
        self._ended = time.perf_counter()
        if not self._began:
            self._first, self._began = records, self._ended

    def figures(self) -> Figures:
        """Return the records per second after the first commit, before which connections and caches warm up."""
        seconds = self._ended - self._began
        assert seconds, "a single transaction contains all records"
        return {"records": self.records, "records_per_second": (self.records - self._first) / seconds}


async def sdk_transform(options: Options) -> Figures:
    """Read records, transform each value, and send it to another topic, with `exactly_once`; commit every 100 ms."""
    committed = Committed()
    async with (
        Consumer(
            options.url,
            group=options.group,
            topics=options.topic,
            start="earliest",
            commit="manual",
            isolation="read_committed",
        ) as consumer,
        Producer(options.url, transactional=True) as producer,
    ):
        async for transaction in exactly_once(consumer, producer, every=f"{COMMIT_SECONDS}s"):
            offered = 0
            async with transaction:
                async for batch in transaction:
                    for record in batch:
                        await transaction.send(options.output, transformed(record.value))
                    offered += batch.record_count
                    if committed.records + offered >= options.records:
                        break
            if transaction.is_committed:
                committed.add(offered)
            if committed.records >= options.records:
                break
    return committed.figures()


async def kafka_transform(options: Options) -> Figures:
    """Do the same work with confluent-kafka."""
    return await asyncio.to_thread(_kafka_transform, options)


def _kafka_transform(options: Options) -> Figures:
    consumer = _kafka_consumer(options, options.group)
    producer = KafkaProducer(
        {
            "bootstrap.servers": options.url,
            "transactional.id": options.group,
            "linger.ms": 5,
            "batch.size": 500_000,
            "queue.buffering.max.messages": 1_000_000,
        }
    )
    producer.init_transactions(TIMEOUT_SECONDS)
    consumer.subscribe([options.topic])
    committed = Committed()
    while committed.records < options.records:
        messages = consumer.consume(FETCHED_MAX, 1.0)
        if not messages:
            continue
        offered, until = 0, time.perf_counter() + COMMIT_SECONDS
        producer.begin_transaction()
        while messages:
            for message in messages:
                _produce(producer, options.output, transformed(_value(message)))
            producer.poll(0)
            offered += len(messages)
            left = until - time.perf_counter()
            if left <= 0 or committed.records + offered >= options.records:
                break
            messages = consumer.consume(FETCHED_MAX, left)
        positions = consumer.position(consumer.assignment())
        producer.send_offsets_to_transaction(positions, consumer.consumer_group_metadata(), TIMEOUT_SECONDS)
        producer.commit_transaction(TIMEOUT_SECONDS)
        committed.add(offered)
    consumer.close()
    return committed.figures()


def _produce(producer: KafkaProducer, topic: str, value: bytes) -> None:
    while True:
        try:
            producer.produce(topic, value)
        except BufferError:
            producer.poll(0.05)
        else:
            return


def _kafka_consumer(options: Options, group: str, **more: object) -> KafkaConsumer:
    return KafkaConsumer(
        {
            "bootstrap.servers": options.url,
            "group.id": group,
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "max.partition.fetch.bytes": 4 << 20,
            "queued.min.messages": 1_000_000,
            **more,
        }
    )


def _value(message: KafkaMessage) -> bytes:
    assert message.error() is None, message.error()
    value = message.value()
    assert isinstance(value, bytes), value
    return value


# -- decisions


class PlainProducer:
    """Producer that only commits transactions, each with one partition and without records, by plain HTTP."""

    def __init__(
        self, client: pyreqwest.client.Client, options: Options, number: int, taken: list[float]
    ) -> None:
        """Appends the seconds of each commit to `taken`."""
        self._client = client
        self._taken = taken
        self._options = options
        named = [{"topic": options.topic, "partitions": [number % options.partitions]}]
        self._body = msgspec.json.encode({"partitions": named})
        self._transaction = ""
        self.refused = 0

    async def begin(self) -> None:
        """Begin the first transaction; the answer to each commit names the next transaction."""
        self._transaction = (await self._post("", b"{}"))["transaction"]

    async def commit_at_rate(self, until: float) -> None:
        """Commit transactions at the requested rate; a late commit delays the next commit."""
        interval = 1 / self._options.rate
        due = time.perf_counter() + random.uniform(0, interval)
        while due < until:
            await asyncio.sleep(due - time.perf_counter())
            answer = await self._post(f"/{self._transaction}:commit", self._body)
            self._taken.append(time.perf_counter() - due)
            if answer.get("state") == "committed":
                self._transaction = answer["next"]
            else:
                self.refused += 1
            due = max(due + interval, time.perf_counter())

    async def _post(self, path: str, body: bytes) -> dict[str, str]:
        request = self._client.post(f"{self._options.url}/v1/transactions{path}").body_bytes(body)
        response = await request.header("content-type", JSON).build().send()
        answer: dict[str, str] = msgspec.json.decode(await response.bytes())
        return answer


async def plain_decide(options: Options) -> Figures:
    """Commit transactions of many producers, each at a steady rate, and measure each decision."""
    taken: list[float] = []
    builder = pyreqwest.client.ClientBuilder().http2_prior_knowledge().no_proxy().tcp_nodelay(True)
    client = builder.timeout(timedelta(seconds=TIMEOUT_SECONDS)).build()
    try:
        producers = [PlainProducer(client, options, number, taken) for number in range(options.producers)]
        for at in range(0, len(producers), BEGINS_AT_ONCE):
            await asyncio.gather(*(each.begin() for each in producers[at : at + BEGINS_AT_ONCE]))
        began = time.perf_counter()
        await asyncio.gather(*(each.commit_at_rate(began + options.seconds) for each in producers))
        seconds = time.perf_counter() - began
    finally:
        await client.close()
    return percentiles(taken) | {
        "seconds": seconds,
        "decisions_per_second": len(taken) / seconds,
        "refused": sum(producer.refused for producer in producers),
    }


# -- read committed


async def sdk_fill(options: Options) -> Figures:
    """Write the topic that `sdk_read` reads: transactions with a table in each partition, some of them aborted."""
    generator, sent, number = np.random.Generator(np.random.SFC64()), 0, 0
    committed = 0
    async with Producer(options.url, transactional=True) as producer:
        while sent < options.records:
            number += 1
            is_aborted = options.aborted and number % ABORTED_EVERY == 0
            try:
                async with producer.transaction() as transaction:
                    for partition in range(options.partitions):
                        values = fresh_values(generator, options.batch_records, options.value_bytes)
                        await transaction.send_batch(options.topic, values, partition)
                    if is_aborted:
                        await producer.flush()
                        raise Undone
            except Undone:
                pass
            else:
                committed += options.partitions * options.batch_records
            sent += options.partitions * options.batch_records
    return {"records": sent, "committed": committed}


async def sdk_read(options: Options) -> Figures:
    """Read and check `records` records of all partitions from the start, with the isolation `isolation`."""
    value_bytes = got = 0
    async with Consumer(options.url, isolation=options.isolation) as consumer:
        began = time.perf_counter()
        await consumer.assign(topic=options.topic)
        async for batch in consumer:
            values = batch.to_arrow().column("value")
            value_bytes += pc.sum(pc.binary_length(values)).as_py()
            got += batch.record_count
            if got >= options.records:
                break
        measured = rate(got, began)
    assert (got, value_bytes) == (options.records, got * options.value_bytes), (got, value_bytes)
    return measured


SIDES: dict[str, Callable[[Options], Awaitable[Figures]]] = {
    "sdk-produce": sdk_produce,
    "sdk-commit": sdk_commit,
    "kafka-commit": kafka_commit,
    "sdk-visible": sdk_visible,
    "kafka-visible": kafka_visible,
    "sdk-transform": sdk_transform,
    "kafka-transform": kafka_transform,
    "plain-decide": plain_decide,
    "sdk-fill": sdk_fill,
    "sdk-read": sdk_read,
}


def main() -> None:
    """Parse the command line, run one side and print its measurements."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("side", choices=SIDES)
    parser.add_argument("--url", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--output", default="", help="topic of the results")
    parser.add_argument("--partitions", type=int, default=6)
    parser.add_argument("--records", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--value-bytes", type=int, default=1_000)
    parser.add_argument("--batch-records", type=int, default=8_000)
    parser.add_argument("--group", default="", help="group of the consumer")
    parser.add_argument("--producers", type=int, default=1)
    parser.add_argument("--rate", type=float, default=10, help="commits of each producer a second")
    parser.add_argument("--aborted", action="store_true", help="abort every tenth transaction")
    parser.add_argument("--isolation", default="read_committed")
    options = parser.parse_args()
    print(json.dumps(uvloop.run(SIDES[options.side](options))))


if __name__ == "__main__":
    main()
