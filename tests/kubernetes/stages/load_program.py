"""A producer that sends records with acks=all until its input ends and afterwards reads all records.

The program runs in the network of a box: `python load_program.py BOOTSTRAP [TOPIC [BYTES]]`. The program prints
`producing` when the first record is acknowledged. At the end, the program prints one JSON object with the numbers of
records that were acknowledged, failed, missing, duplicated, stored at a place other than the acknowledged one, or
stored after a later record of their partition, and with the time of the slowest acknowledgement.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import time
from collections import Counter

from fairlead import Consumer, Delivery, Producer
from fairlead.errors import FairleadError

PAUSE_SECONDS = 0.01
READ_SECONDS = 30.0
TOPIC = "load"


class Ledger:
    """Sent records and their outcomes."""

    def __init__(self) -> None:
        """Start without records."""
        self.places: dict[int, tuple[int, int]] = {}
        """Partition and offset of acknowledged records, by number."""
        self.failed = 0
        self.slowest = 0.0

    async def follow(self, number: int, delivery: Delivery, began: float) -> None:
        """Wait for the outcome of one record."""
        try:
            stored = await delivery
        except FairleadError as error:
            sys.stderr.write(f"{number}: {error}\n")
            self.failed += 1
            return
        if not self.places:
            sys.stdout.write("producing\n")
            sys.stdout.flush()
        self.slowest = max(self.slowest, time.monotonic() - began)
        self.places[number] = (stored.partition, stored.offset)


async def produce(bootstrap: str, topic: str, padding: bytes) -> Ledger:
    """Produce until standard input ends; return when every record has its outcome."""
    over = asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    ledger, number = Ledger(), 0
    async with (
        Producer(bootstrap, acks="all", delivery_timeout="2m") as producer,
        asyncio.TaskGroup() as tasks,
    ):
        while not over.done():
            delivery = await producer.send(topic, str(number).encode() + padding)
            tasks.create_task(ledger.follow(number, delivery, time.monotonic()))
            number += 1
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(asyncio.shield(over), PAUSE_SECONDS)
    return ledger


async def read_again(bootstrap: str, topic: str, ledger: Ledger) -> dict[str, object]:
    """Read until every acknowledged record was read or no more records are received, and count the records."""
    left = set(ledger.places.values())
    read, newest, at = Counter[int](), dict[int, int](), dict[int, tuple[int, int]]()
    disordered = 0
    async with Consumer(bootstrap, topics=topic, group=f"count-{topic}") as consumer:
        batches = aiter(consumer)
        while left:
            try:
                batch = await asyncio.wait_for(anext(batches), READ_SECONDS)
            except TimeoutError:
                break
            for offset, value in enumerate(batch.values, batch.base_offset):
                number = int((value or b"").partition(b" ")[0])
                place = (batch.partition, offset)
                disordered += number < newest.get(batch.partition, -1)
                newest[batch.partition] = number
                read[number] += 1
                at[number] = place
                left.discard(place)
    return {
        "acknowledged": len(ledger.places),
        "failed": ledger.failed,
        "missing": len(ledger.places.keys() - read.keys()),
        "twice": sum(count > 1 for count in read.values()),
        "misplaced": sum(number in at and at[number] != place for number, place in ledger.places.items()),
        "disordered": disordered,
        "slowest_seconds": round(ledger.slowest, 2),
    }


async def main(bootstrap: str, topic: str = TOPIC, nbytes: str = "0") -> None:
    """Produce, read and print the counts."""
    ledger = await produce(bootstrap, topic, b" " + b"x" * int(nbytes))
    sys.stdout.write(json.dumps(await read_again(bootstrap, topic, ledger)) + "\n")


asyncio.run(main(*sys.argv[1:]))
