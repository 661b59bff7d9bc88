"""Measured work of the latency cases, in a separate process.

`pace` sends single records at a steady rate and measures each acknowledgement; `series` does the same, and prints the
time and the latency of each record in seconds. `rounds` repeatedly sends one record to
each of many partitions and waits for all acknowledgements. `steady` sends batches at a steady rate for minutes. `tail`
repeatedly appends one record and fetches this record at the end of the log. Each kind of work prints one JSON object,
by default with percentiles in milliseconds. Benchmarks start the program, which imports only the SDK.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import uvloop

from fairlead import BatchDelivery, Consumer, Delivery, Producer, TopicPartition

Sample: TypeAlias = tuple[float, float]
"""Time of `time.perf_counter` at which a measurement began, and its duration in seconds."""
WARM_SHARE = 0.1  # share of the samples during which connections and caches warm up


def percentiles(samples: Sequence[Sample]) -> dict[str, float]:
    """Return p50, p99 and the maximum of the samples after the warm-up, in milliseconds."""
    kept = np.asarray([seconds for _, seconds in samples[int(len(samples) * WARM_SHARE) :]]) * 1000
    p50, p99 = np.percentile(kept, [50, 99])
    return {"samples": len(kept), "p50_ms": float(p50), "p99_ms": float(p99), "max_ms": float(kept.max())}


async def timed(delivery: Awaitable[object], started: float, into: list[Sample]) -> None:
    """Wait for an acknowledgement, and append `started` and the time since then to `into`."""
    await delivery
    into.append((started, time.perf_counter() - started))


async def at_rate(
    per_second: float, seconds: float, send: Callable[[], Awaitable[Sequence[Delivery | BatchDelivery]]]
) -> tuple[list[Sample], int]:
    """Call `send` at a steady rate, even if answers are late; latencies count from the scheduled time of a send.

    If latencies counted from the actual time of a send, the delay caused by a stall would be hidden.
    """
    samples: list[Sample] = []
    started = time.perf_counter()
    number = 0
    async with asyncio.TaskGroup() as group:
        while number < per_second * seconds:
            due = started + number / per_second
            # uvloop's timers have a resolution of a millisecond, and may end before the scheduled time.
            while (delay := due - time.perf_counter()) > 0:  # noqa: ASYNC110 - waits for a time, not for an event
                await asyncio.sleep(delay)
            for delivery in await send():
                group.create_task(timed(delivery, due, samples))
            number += 1
    return samples, number


async def pace(options: argparse.Namespace) -> dict[str, float]:
    """Send single records of `value-bytes` at `rate` records per second, to the partitions in turn."""
    return percentiles(await paced(options))


async def series(options: argparse.Namespace) -> dict[str, list[float]]:
    """Send records as `pace` does, and return the time and the latency of each."""
    samples = await paced(options)
    return {"at": [at for at, _ in samples], "seconds": [seconds for _, seconds in samples]}


async def paced(options: argparse.Namespace) -> list[Sample]:
    """Send single records, and return a sample of each."""
    partition = 0
    async with Producer(options.url, linger_ms=0) as producer:

        async def send() -> list[Delivery]:
            nonlocal partition
            partition = (partition + 1) % options.partitions
            return [await producer.send(options.topic, os.urandom(options.value_bytes), partition=partition)]

        samples, _ = await at_rate(options.rate, options.seconds, send)
    return samples


async def rounds(options: argparse.Namespace) -> dict[str, float]:
    """Send one record to each partition at once; start the next round when all records are acknowledged."""
    samples: list[Sample] = []
    value = os.urandom(options.value_bytes)
    deadline = time.perf_counter() + options.seconds
    async with Producer(options.url) as producer:
        while time.perf_counter() < deadline:
            started = time.perf_counter()
            deliveries = [
                await producer.send(options.topic, value, partition=index)
                for index in range(options.partitions)
            ]
            async with asyncio.TaskGroup() as group:
                for delivery in deliveries:
                    group.create_task(timed(delivery, started, samples))
    return percentiles(samples)


async def steady(options: argparse.Namespace) -> dict[str, float]:
    """Send batches of `batch-records` records at `rate` records per second, spread over the partitions."""
    partition = 0
    async with Producer(options.url) as producer:

        async def send() -> list[BatchDelivery]:
            nonlocal partition
            partition = (partition + 1) % options.partitions
            values = [os.urandom(options.value_bytes)] * options.batch_records
            batch = pa.RecordBatch.from_arrays([pa.array(values, pa.binary())], names=["value"])
            return list(await producer.send_batch(options.topic, batch, partition=partition))

        samples, number = await at_rate(options.rate / options.batch_records, options.seconds, send)
    return {**percentiles(samples), "records": float(number * options.batch_records)}


async def tail(options: argparse.Namespace) -> dict[str, float]:
    """Append one record, then read this record at the end of the log; a sample is the sum of both times."""
    samples: list[Sample] = []
    deadline = time.perf_counter() + options.seconds
    async with Producer(options.url, linger_ms=0) as producer, Consumer(options.url) as consumer:
        await consumer.assign([TopicPartition(options.topic, 0)], start="latest")
        while time.perf_counter() < deadline:
            started = time.perf_counter()
            await producer.send_and_wait(options.topic, os.urandom(options.value_bytes), partition=0)
            assert await consumer.next_batch("10s") is not None
            samples.append((started, time.perf_counter() - started))
    return percentiles(samples)


def main() -> None:
    """Parse the command line, run one kind of work and print its measurements."""
    parser = argparse.ArgumentParser(description=__doc__)
    kinds: dict[str, Callable[[argparse.Namespace], Coroutine[object, object, object]]]
    kinds = {"pace": pace, "series": series, "rounds": rounds, "steady": steady, "tail": tail}
    parser.add_argument("kind", choices=kinds)
    parser.add_argument("--url", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--partitions", type=int, default=1)
    parser.add_argument("--rate", type=float, default=1000)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--value-bytes", type=int, default=100)
    parser.add_argument("--batch-records", type=int, default=1000)
    options = parser.parse_args()
    print(json.dumps(uvloop.run(kinds[options.kind](options))))


if __name__ == "__main__":
    main()
