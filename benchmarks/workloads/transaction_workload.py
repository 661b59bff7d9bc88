"""Measured work with transactions, with the SDK and with confluent-kafka, each side in a separate process.

`transaction_cases.py` starts the program, which prints one JSON object. A side whose name begins with `sdk` uses the
SDK, a side whose name begins with `kafka` uses confluent-kafka. Latencies are in microseconds.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow.compute as pc
import pyreqwest.client
import uvloop
from committed_reader import LATENCY_PARTITIONS, READY, kafka_consumer, value_of
from confluent_kafka import Producer as KafkaProducer
from workload import fresh_values

from fairlead import Admin, Consumer, Producer, exactly_once
from fairlead_api.bodies.media_types import JSON

COMMIT_SECONDS = 0.1
"""Time between two commits."""
WARM_SHARE = 0.1
"""Fraction of the transactions during which connections and caches warm up."""
FETCHED_MAX = 10_000
BEGINS_AT_ONCE = 100
TIMEOUT_SECONDS = 120.0
READER = str(Path(__file__).with_name("committed_reader.py"))
PRINTED_BYTES_MAX = 1 << 24
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
    async with Producer(options.url, transactional=True) as producer:
        return await _produce_in_transactions(producer, options.topic, options)


async def _produce_in_transactions(producer: Producer, topic: str, options: Options) -> Figures:
    generator, sent, partition = np.random.Generator(np.random.SFC64()), 0, 0
    async with producer.transaction() as transaction:
        await transaction.send_batch(topic, fresh_values(generator, 1, options.value_bytes), 0)
    began = time.perf_counter()
    while sent < options.records:
        until = time.perf_counter() + COMMIT_SECONDS
        async with producer.transaction() as transaction:
            while sent < options.records and time.perf_counter() < until:
                count = min(options.batch_records, options.records - sent)
                values = fresh_values(generator, count, options.value_bytes)
                await transaction.send_batch(topic, values, partition)
                sent, partition = sent + count, (partition + 1) % options.partitions
    return rate(sent, began)


async def _produce_plainly(producer: Producer, topic: str, options: Options) -> Figures:
    generator, sent, partition = np.random.Generator(np.random.SFC64()), 0, 0
    await producer.send_batch(topic, fresh_values(generator, 1, options.value_bytes), 0)
    await producer.flush()
    began = time.perf_counter()
    while sent < options.records:
        count = min(options.batch_records, options.records - sent)
        await producer.send_batch(topic, fresh_values(generator, count, options.value_bytes), partition)
        sent, partition = sent + count, (partition + 1) % options.partitions
    await producer.flush()
    return rate(sent, began)


async def sdk_produce_both(options: Options) -> dict[str, list[float]]:
    """Send the same tables with and without transactions, in turns of a second; return both rates of each turn.

    One process and one broker do both within seconds, so that a change of the machine's speed affects both. Each topic
    is deleted before the kernel writes its records to the disk. The first turn warms up.
    """
    rates: dict[str, list[float]] = {"transactions": [], "plain": []}
    async with (
        Admin(options.url) as admin,
        Producer(options.url, transactional=True) as transactional,
        Producer(options.url) as plain,
    ):
        ways = [
            ("transactions", transactional, _produce_in_transactions),
            ("plain", plain, _produce_plainly),
        ]
        for turn in range(options.turns + 1):
            for way, producer, produce in ways if turn % 2 else ways[::-1]:
                topic = f"{options.topic}-{way}-{turn}"
                await admin.create_topic(
                    topic, partitions=options.partitions, config={"durability": "replicated"}
                )
                measured = await produce(producer, topic, options)
                await admin.delete_topic(topic)
                if turn:
                    rates[way].append(measured["records_per_second"])
    return rates


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


async def _visible(
    options: Options, client: str, write: Callable[[Callable[[int], None]], Awaitable[list[float]]]
) -> Figures:
    """Measure the time from the start of each commit until a reader in another process has all records.

    `write` commits transactions; its argument is called when each commit begins. Both processes read the same clock.
    """
    committed: list[float] = []
    command = [sys.executable, READER, client, "--url", options.url, "--topic", options.topic]
    pipe = asyncio.subprocess.PIPE
    reading = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe, limit=PRINTED_BYTES_MAX)
    try:
        assert reading.stdout is not None
        assert (await reading.stdout.readline()).decode().strip() == READY, "the reader has started"
        total = len(await write(lambda _number: committed.append(time.perf_counter())))
        async with asyncio.timeout(TIMEOUT_SECONDS):
            printed, _ = await reading.communicate(b"%d\n" % total)
    finally:
        if reading.returncode is None:
            reading.kill()
            await reading.wait()
    return percentiles([seen - began for began, seen in zip(committed, json.loads(printed), strict=True)])


async def sdk_visible(options: Options) -> Figures:
    """Measure with the SDK in both processes."""
    return await _visible(options, "sdk", lambda committing: _sdk_transactions(options, committing))


async def kafka_visible(options: Options) -> Figures:
    """Measure with confluent-kafka in both processes."""
    return await _visible(
        options,
        "kafka",
        lambda committing: asyncio.to_thread(_kafka_transactions, options, committing),
    )


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
    consumer = kafka_consumer(options.url, options.group)
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
                _produce(producer, options.output, transformed(value_of(message)))
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


SIDES: dict[str, Callable[[Options], Coroutine[Any, Any, Figures | dict[str, list[float]]]]] = {
    "sdk-produce": sdk_produce,
    "sdk-produce-both": sdk_produce_both,
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
    parser.add_argument("--turns", type=int, default=1, help="turns with and without transactions")
    parser.add_argument("--group", default="", help="group of the consumer")
    parser.add_argument("--producers", type=int, default=1)
    parser.add_argument("--rate", type=float, default=10, help="commits of each producer a second")
    parser.add_argument("--aborted", action="store_true", help="abort every tenth transaction")
    parser.add_argument("--isolation", default="read_committed")
    options = parser.parse_args()
    print(json.dumps(uvloop.run(SIDES[options.side](options))))


if __name__ == "__main__":
    main()
