"""Reader of committed records in a separate process: prints when each transaction of a writer became visible.

`transaction_workload` starts the program, and writes transactions with a record in each of several partitions. Both
processes read the same monotonic clock. The writer sends the number of its transactions to standard input after the
last one; the reader then prints one JSON list with a time for each transaction.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time

import uvloop
from confluent_kafka import Consumer as KafkaConsumer
from confluent_kafka import Message as KafkaMessage
from confluent_kafka import TopicPartition as KafkaPartition

from fairlead import Consumer

LATENCY_PARTITIONS = 3
LOOK_SECONDS = 0.1
READY = "ready"
"""Line that a reader prints when it waits for the first record."""
Options = argparse.Namespace


class Visibility:
    """Times at which a reader of committed records has all records of each transaction."""

    def __init__(self) -> None:
        self._read: dict[int, int] = {}
        self._visible: list[float] = []
        self.total: int | None = None
        """Number of transactions to read; None until all transactions have been sent."""

    def read(self, value: bytes) -> None:
        """Record that a record was read; the last record of a transaction makes the transaction visible."""
        number = int.from_bytes(value, "big")
        self._read[number] = self._read.get(number, 0) + 1
        if self._read[number] == LATENCY_PARTITIONS:
            assert number == len(self._visible), (number, len(self._visible))
            self._visible.append(time.perf_counter())

    @property
    def is_complete(self) -> bool:
        """Whether all transactions are visible."""
        return len(self._visible) == self.total

    def take_total(self) -> None:
        """Read the number of transactions from the writer, which sends it after its last transaction."""
        self.total = int(sys.stdin.readline())

    def report(self) -> None:
        """Print the times for the writer."""
        print(json.dumps(self._visible), flush=True)


async def sdk_reader(options: Options) -> None:
    """Read the transactions of another process with the SDK, and print when each one was visible."""
    seen = Visibility()
    async with Consumer(options.url, isolation="read_committed") as consumer:
        await consumer.assign(topic=options.topic)
        await consumer.next_batch(f"{LOOK_SECONDS}s")
        print(READY, flush=True)
        ending = asyncio.create_task(asyncio.to_thread(seen.take_total))
        while not seen.is_complete:
            batch = await consumer.next_batch(f"{LOOK_SECONDS}s")
            for record in batch or ():
                seen.read(record.value or b"")
        await ending
    seen.report()


async def kafka_reader(options: Options) -> None:
    """Do the same with confluent-kafka."""
    seen = Visibility()
    consumer = kafka_consumer(options.url, "visible")
    consumer.assign([KafkaPartition(options.topic, each, 0) for each in range(LATENCY_PARTITIONS)])

    def read() -> None:
        while not seen.is_complete:
            message = consumer.poll(LOOK_SECONDS)
            if message is not None:
                seen.read(value_of(message))

    consumer.poll(LOOK_SECONDS)
    print(READY, flush=True)
    ending = asyncio.create_task(asyncio.to_thread(seen.take_total))
    await asyncio.to_thread(read)
    await ending
    consumer.close()
    seen.report()


def kafka_consumer(url: str, group: str) -> KafkaConsumer:
    """Return a consumer of committed records that commits no offsets itself."""
    return KafkaConsumer(
        {
            "bootstrap.servers": url,
            "group.id": group,
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "max.partition.fetch.bytes": 4 << 20,
            "queued.min.messages": 1_000_000,
        }
    )


def value_of(message: KafkaMessage) -> bytes:
    """Return the value of a message without an error."""
    assert message.error() is None, message.error()
    value = message.value()
    assert isinstance(value, bytes), value
    return value


def main() -> None:
    """Parse the command line, read, and print the times."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("client", choices=("sdk", "kafka"))
    parser.add_argument("--url", required=True)
    parser.add_argument("--topic", required=True)
    options = parser.parse_args()
    uvloop.run(sdk_reader(options) if options.client == "sdk" else kafka_reader(options))


if __name__ == "__main__":
    main()
