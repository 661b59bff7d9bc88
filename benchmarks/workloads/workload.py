"""Measured work on Fairlead's side, in a separate process like Kafka's tools.

`produce` encodes every batch from new random values within the measured time. `consume` checks each batch's checksums,
the sum of the value lengths, and that offsets have no gaps. Each command prints one JSON object. The benchmark cases
start the program, which imports only the SDK.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import uvloop

from fairlead import Consumer, Producer


def fresh_values(generator: np.random.Generator, records: int, value_bytes: int) -> pa.RecordBatch:
    """Return `records` random values of `value_bytes` bytes each, as a record batch with the column `value`."""
    data = generator.integers(0, 2**64, size=-(-records * value_bytes // 8), dtype=np.uint64)
    offsets = np.arange(records + 1, dtype=np.int32) * value_bytes
    column = pa.Array.from_buffers(pa.binary(), records, [None, pa.py_buffer(offsets), pa.py_buffer(data)])
    return pa.RecordBatch.from_arrays([column], names=["value"])


def chosen_lines(path: Path) -> Callable[[np.random.Generator, int], pa.RecordBatch]:
    """Return a function that creates record batches of randomly chosen lines of a file, as Kafka's tool does."""
    lines = pa.array(path.read_bytes().splitlines(), pa.binary())

    def choose(generator: np.random.Generator, records: int) -> pa.RecordBatch:
        values = lines.take(generator.integers(0, len(lines), records))
        return pa.RecordBatch.from_arrays([values], names=["value"])

    return choose


async def produce(options: argparse.Namespace) -> dict[str, float]:
    """Send `records` values, spread over the partitions, and wait for all acknowledgements."""
    generator = np.random.Generator(np.random.SFC64())
    make = (
        chosen_lines(Path(options.payload))
        if options.payload
        else partial(fresh_values, value_bytes=options.value_bytes)
    )
    async with Producer(
        options.url, acks="all", compression=options.compression, idempotence=options.idempotence
    ) as producer:
        await producer.send_batch(options.topic, make(generator, 1), partition=0)
        await producer.flush()
        started = time.perf_counter()
        sent, partition = 0, 0
        while sent < options.records:
            count = min(options.batch_records, options.records - sent)
            await producer.send_batch(options.topic, make(generator, count), partition=partition)
            sent, partition = sent + count, (partition + 1) % options.partitions
        await producer.flush()
        seconds = time.perf_counter() - started
    return {"records": sent, "seconds": seconds, "records_per_second": sent / seconds}


async def consume(options: argparse.Namespace) -> dict[str, float]:
    """Read and check `records` records of all partitions from the start."""
    expected = dict.fromkeys(range(options.partitions), 0)
    async with Consumer(options.url) as consumer:
        started = time.perf_counter()
        await consumer.assign(topic=options.topic)
        got = value_bytes = 0
        async for batch in consumer:
            assert batch.base_offset == expected[batch.partition], (
                batch.partition,
                batch.base_offset,
                expected,
            )
            expected[batch.partition] = batch.next_offset
            values = batch.to_arrow().column("value")
            value_bytes += pc.sum(pc.binary_length(values)).as_py()
            got += batch.record_count
            if got >= options.records:
                break
        seconds = time.perf_counter() - started
    assert options.payload or value_bytes == got * options.value_bytes, (value_bytes, got)
    return {"records": got, "seconds": seconds, "records_per_second": got / seconds}


def main() -> None:
    """Parse the command line, run one side and print its measurements."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("side", choices=["produce", "consume"])
    parser.add_argument("--url", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--partitions", type=int, required=True)
    parser.add_argument("--records", type=int, required=True)
    parser.add_argument("--value-bytes", type=int, default=100)
    parser.add_argument("--payload", help="file in which each line is a value; default: random bytes")
    parser.add_argument("--compression", default="none")
    parser.add_argument("--batch-records", type=int, default=8_000)
    parser.add_argument("--idempotence", action=argparse.BooleanOptionalAction, default=True)
    options = parser.parse_args()
    side = produce if options.side == "produce" else consume
    print(json.dumps(uvloop.run(side(options))))


if __name__ == "__main__":
    main()
