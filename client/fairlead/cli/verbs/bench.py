"""`fairlead bench`: measures the throughput of one producer or one consumer, or the latency of single records.

Each command measures the SDK and the cluster together, as a program on this machine would use them.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Annotated

import pyarrow as pa
import typer

from fairlead import Consumer, Producer, TopicPartition, clock
from fairlead.cli.bench_figures import Figures
from fairlead.cli.options import BOOTSTRAP_DEFAULT, Bootstrap, Output, OutputFormat, TopicName
from fairlead.cli.session import RETRY_TIMEOUT, run
from fairlead.cli.verbs.produce import Acknowledgement, Compression
from fairlead.producing.delivery import BatchDelivery

app = typer.Typer(no_args_is_help=True, help="Measure producing, consuming and latency on a topic.")

IN_FLIGHT_BATCHES = 64
"""Maximum number of unacknowledged batches: large enough to keep every partition busy, and small enough for meaningful
latencies."""

Records = Annotated[int, typer.Option("-n", "--records", min=1, help="Number of records.")]
RecordSize = Annotated[int, typer.Option("-s", "--size", min=1, help="Bytes of each record's value.")]
BatchSize = Annotated[int, typer.Option("-b", "--batch", min=1, help="Records sent in one call.")]
Rate = Annotated[
    float | None,
    typer.Option("-r", "--rate", min=0.1, help="Records per second; by default as fast as possible."),
]


@app.command("produce")
def produce(
    topic: TopicName,
    records: Records = 1_000_000,
    size: RecordSize = 100,
    batch: BatchSize = 1_000,
    rate: Rate = None,
    acks: Annotated[
        Acknowledgement, typer.Option("--acks", help="Acknowledgement to wait for.")
    ] = Acknowledgement.ALL,
    compression: Annotated[
        Compression, typer.Option("--compression", help="Codec of the record batches.")
    ] = Compression.NONE,
    bootstrap: Bootstrap = BOOTSTRAP_DEFAULT,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Write records of random bytes; latency is the time from sending a batch to its acknowledgement.

    Example: fairlead bench produce load -n 5000000 -s 1000
    """
    figures = Figures("produce")

    async def work() -> None:
        async with Producer(
            bootstrap, acks=acks, compression=compression, retry_timeout=RETRY_TIMEOUT
        ) as producer:
            await producer.send_batch(topic, _values(0, size))
            await _produce(producer, topic, figures, records, size, batch, rate)

    with figures.shown():
        run(work())
    figures.print(output)


async def _produce(
    producer: Producer, topic: str, figures: Figures, records: int, size: int, batch: int, rate: float | None
) -> None:
    waiting: deque[tuple[float, list[BatchDelivery]]] = deque()

    async def settle(left: int) -> None:
        """Wait until at most `left` batches are unacknowledged."""
        while len(waiting) > left:
            sent_at, deliveries = waiting.popleft()
            for delivery in deliveries:
                await delivery
                figures.add(delivery.record_count, delivery.record_count * size, clock.monotonic() - sent_at)

    table = _values(min(batch, records), size)
    figures.begin()
    began, sent = clock.monotonic(), 0
    while sent < records:
        if rate is not None:
            await _until(began + sent / rate)
        piece = table.slice(0, min(batch, records - sent))
        waiting.append((clock.monotonic(), await producer.send_batch(topic, piece)))
        sent += piece.num_rows
        await settle(IN_FLIGHT_BATCHES if rate is None else 0)
    await settle(0)


@app.command("consume")
def consume(
    topic: TopicName,
    records: Annotated[
        int | None,
        typer.Option(
            "-n", "--records", min=1, help="Number of records; by default all records of the topic."
        ),
    ] = None,
    bootstrap: Bootstrap = BOOTSTRAP_DEFAULT,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Read a topic from its beginning as Arrow batches and count the records, without a group.

    Example: fairlead bench consume load
    """
    figures = Figures("consume")

    async def work() -> None:
        async with Consumer(bootstrap, retry_timeout=RETRY_TIMEOUT) as consumer:
            await consumer.assign(topic=topic)
            ends = await consumer.end_offsets()
            figures.begin()
            async for batch in consumer.batches(until=ends):
                figures.add(len(batch.to_arrow()), batch.nbytes)
                if records is not None and figures.records >= records:
                    break

    with figures.shown():
        run(work())
    figures.print(output)


@app.command("latency")
def latency(
    topic: TopicName,
    records: Records = 1_000,
    size: RecordSize = 100,
    rate: Annotated[float, typer.Option("-r", "--rate", min=0.1, help="Records per second.")] = 100.0,
    acks: Annotated[
        Acknowledgement, typer.Option("--acks", help="Acknowledgement to wait for.")
    ] = Acknowledgement.ALL,
    bootstrap: Bootstrap = BOOTSTRAP_DEFAULT,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Measure the time from sending a record to reading it, one record at a time, on partition 0.

    Example: fairlead bench latency load -r 1000
    """
    figures = Figures("latency")

    async def work() -> None:
        place = TopicPartition(topic, 0)
        value = clock.random_bytes(size)
        async with (
            Producer(bootstrap, acks=acks, linger_ms=0, retry_timeout=RETRY_TIMEOUT) as producer,
            Consumer(bootstrap, retry_timeout=RETRY_TIMEOUT) as consumer,
        ):
            await producer.send_batch(topic, _values(0, size), 0)
            await consumer.assign([place], start="latest")
            figures.begin()
            sent: dict[int, float] = {}
            first = (await consumer.end_offsets())[place]
            async with asyncio.TaskGroup() as group:
                group.create_task(_send_paced(producer, place, value, records, rate, sent))
                group.create_task(_receive(consumer, figures, first, records, size, sent))

    with figures.shown():
        run(work())
    figures.print(output)


async def _send_paced(
    producer: Producer, place: TopicPartition, value: bytes, records: int, rate: float, sent: dict[int, float]
) -> None:
    began = clock.monotonic()
    for number in range(records):
        await _until(began + number / rate)
        sent[number] = clock.monotonic()
        await producer.send(place.topic, value, partition=place.partition)


async def _receive(
    consumer: Consumer, figures: Figures, first: int, records: int, size: int, sent: dict[int, float]
) -> None:
    while figures.records < records:
        batch = await consumer.next_batch()
        assert batch is not None, "without a timeout, a batch is returned"
        now = clock.monotonic()
        for offset in batch.offsets:
            # Other producers' records shift the offsets and are not included in the measurement.
            at = sent.get(offset - first)
            if at is not None:
                figures.add(1, size, now - at)


async def _until(time: float) -> None:
    pause = time - clock.monotonic()
    if pause > 0:
        await asyncio.sleep(pause)  # noqa: TID251 - the requested pace


def _values(records: int, size: int) -> pa.RecordBatch:
    """Return records of random bytes, which no codec can compress."""
    data = clock.random_bytes(records * size)
    values = [data[at * size : (at + 1) * size] for at in range(records)]
    return pa.RecordBatch.from_arrays([pa.array(values, pa.binary())], names=["value"])
