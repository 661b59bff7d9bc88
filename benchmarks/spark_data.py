"""Records of the Spark benchmarks, which are stored once as Parquet files and loaded from these files into both peers.

`spark.py` calls this module. The topics of Fairlead and Kafka contain the same values at the same offsets with the same
timestamps, in batches of about the same size, so that a reader does the same work for both.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from confluent_kafka import Producer as KafkaProducer
from workloads.workload import fresh_values

from fairlead import Producer

MICROSECONDS_A_RECORD = 1_000
"""Microseconds between the timestamps of two records: a million records cover about 17 minutes, so that each trigger
closes and opens windows of one minute."""

SMALL_BATCH_BYTES = 100_000
TIMESTAMP_TYPE = pa.timestamp("us", tz="UTC")


@dataclass(frozen=True, slots=True)
class Data:
    """A folder with one Parquet file for each partition, with the seven columns of both connectors."""

    folder: Path
    partitions: int
    records: int
    value_bytes: int
    batch_records: int = 8_000
    """Number of records that are sent and acknowledged as one batch."""

    def path(self, partition: int) -> Path:
        """Return the path of the file of a partition."""
        return self.folder / f"part-{partition:03}.parquet"

    def write(self) -> None:
        """Create the records with random values; consecutive timestamps are spread over the partitions."""
        self.folder.mkdir()
        generator = np.random.Generator(np.random.SFC64(8))
        share = -(-self.records // self.partitions)
        # The newest record has the current time, since both brokers would delete records older than a week.
        began_us = time.time_ns() // 1000 - self.records * MICROSECONDS_A_RECORD
        for partition in range(self.partitions):
            records = min(share, self.records - partition * share)
            self._write_partition(generator, partition, records, began_us)

    def _write_partition(
        self, generator: np.random.Generator, partition: int, records: int, began_us: int
    ) -> None:
        with pq.ParquetWriter(self.path(partition), _schema(), compression="zstd") as writer:
            for first in range(0, records, 500_000):
                rows = min(500_000, records - first)
                offsets = np.arange(first, first + rows, dtype=np.int64)
                moments = began_us + (offsets * self.partitions + partition) * MICROSECONDS_A_RECORD
                columns = {
                    "key": pa.nulls(rows, pa.binary()),
                    "value": fresh_values(generator, rows, self.value_bytes).column("value"),
                    "topic": pa.repeat(pa.scalar("bench"), rows),
                    "partition": pa.repeat(pa.scalar(partition, pa.int32()), rows),
                    "offset": pa.array(offsets),
                    "timestamp": pa.array(moments).cast(TIMESTAMP_TYPE),
                    "timestampType": pa.repeat(pa.scalar(0, pa.int32()), rows),
                }
                writer.write_batch(pa.RecordBatch.from_pydict(columns, schema=_schema()))

    def batches(self, partition: int) -> Iterator[pa.RecordBatch]:
        """Yield the values and timestamps of a partition in the batches in which they are sent."""
        with pq.ParquetFile(self.path(partition)) as file:
            yield from file.iter_batches(self.batch_records, columns=["value", "timestamp"])


def _schema() -> pa.Schema:
    return pa.schema(
        {
            "key": pa.binary(),
            "value": pa.binary(),
            "topic": pa.string(),
            "partition": pa.int32(),
            "offset": pa.int64(),
            "timestamp": TIMESTAMP_TYPE,
            "timestampType": pa.int32(),
        }
    )


async def load_fairlead(data: Data, url: str, topic: str) -> None:
    """Send the records of every partition to the same partition of a Fairlead topic."""
    async with Producer(url, acks="all", compression="none") as producer:
        for partition in range(data.partitions):
            for batch in data.batches(partition):
                await producer.send_batch(topic, batch, partition=partition)
                if batch.nbytes < SMALL_BATCH_BYTES:
                    # Without the flush, the producer would combine several batches into one large batch.
                    await producer.flush()


def load_kafka(data: Data, bootstrap: str, topic: str) -> None:
    """Send the records of every partition to the same partition of a Kafka topic."""
    failures: list[str] = []
    producer = KafkaProducer(
        {
            "bootstrap.servers": bootstrap,
            "acks": "all",
            "linger.ms": 50,
            "batch.size": 1_000_000,
            "batch.num.messages": data.batch_records,
            "queue.buffering.max.messages": 1_000_000,
            "on_delivery": lambda error, _: failures.append(str(error)) if error else None,
        }
    )
    for partition in range(data.partitions):
        for batch in data.batches(partition):
            moments = batch.column("timestamp").cast(pa.int64()).to_numpy() // 1000
            for value, moment in zip(batch.column("value").to_pylist(), moments.tolist(), strict=True):
                while True:
                    try:
                        producer.produce(topic, value, partition=partition, timestamp=moment)
                    except BufferError:
                        producer.poll(0.1)
                    else:
                        break
            producer.poll(0)
    left = producer.flush(120)
    assert not left, f"{left} records were not acknowledged"
    assert not failures, failures[:3]


def main() -> None:
    """Load one side, in a separate process whose memory is freed before Spark is measured."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("side", choices=["fairlead", "kafka"])
    parser.add_argument("--data", required=True, help="JSON of the arguments of `Data`")
    parser.add_argument("--address", required=True)
    parser.add_argument("--topic", required=True)
    options = parser.parse_args()
    arguments = json.loads(options.data)
    data = Data(**{**arguments, "folder": Path(arguments["folder"])})
    if options.side == "fairlead":
        asyncio.run(load_fairlead(data, options.address, options.topic))
    else:
        load_kafka(data, options.address, options.topic)
    print("{}", file=sys.stdout)


if __name__ == "__main__":
    main()
