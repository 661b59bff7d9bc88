"""A member of a consumer group that counts flights and departure delays by carrier, each flight exactly once.

Totals and offsets are stored in one transaction of an SQLite database, so the member can be killed at any time: the
next owner of its partitions continues at the offsets in the database. `make demo` runs four members as below, and kills
one of them:

    python departures.py --group board --database board.db --bootstrap http://127.0.0.1:9520
"""

from __future__ import annotations

import argparse
import asyncio
import sqlite3
from contextlib import closing

import pyarrow as pa
import pyarrow.json as pa_json

from fairlead import Consumer, ConsumerBatch, TopicPartition

NAMES = {"carrier": pa.string(), "dep_delay": pa.int64()}
TABLES = """
    CREATE TABLE IF NOT EXISTS departures (
        carrier TEXT PRIMARY KEY, flights INTEGER NOT NULL, delayed INTEGER NOT NULL, minutes INTEGER NOT NULL
    );
    CREATE TABLE IF NOT EXISTS places (
        topic TEXT, partition INTEGER, next_offset INTEGER NOT NULL, PRIMARY KEY (topic, partition)
    );
"""
MOVE = """
    INSERT INTO places VALUES (:topic, :partition, :next)
    ON CONFLICT (topic, partition) DO UPDATE SET next_offset = :next WHERE next_offset <= :first
"""
ADD = """
    INSERT INTO departures VALUES (:carrier, :flights, :delayed, :minutes)
    ON CONFLICT (carrier) DO UPDATE SET
        flights = flights + :flights, delayed = delayed + :delayed, minutes = minutes + :minutes
"""
PLACE = "SELECT next_offset FROM places WHERE topic = ? AND partition = ?"


def parsed(values: pa.Array | pa.ChunkedArray) -> pa.Table:
    """Return the carrier and departure delay of flights that are JSON objects."""
    lines = b"\n".join(values.to_pylist())
    options = pa_json.ParseOptions(explicit_schema=pa.schema(NAMES), unexpected_field_behavior="ignore")
    return pa_json.read_json(pa.BufferReader(lines), parse_options=options)


def totals(batch: ConsumerBatch) -> list[dict[str, object]]:
    """Return counts of flights and of flights with a known delay, and minutes of delay, by carrier, without a loop."""
    grouped = parsed(batch.to_arrow().column("value")).group_by("carrier")
    sums = grouped.aggregate([([], "count_all"), ("dep_delay", "count"), ("dep_delay", "sum")])
    return [
        {
            "carrier": row["carrier"],
            "flights": row["count_all"],
            "delayed": row["dep_delay_count"],
            "minutes": row["dep_delay_sum"] or 0,
        }
        for row in sums.to_pylist()
    ]


def store(path: str, batch: ConsumerBatch) -> None:
    """Store totals and offset in one transaction, unless another member has already stored them."""
    place = {"topic": batch.topic, "partition": batch.partition}
    with closing(sqlite3.connect(path, timeout=30)) as database, database:
        moved = database.execute(MOVE, {**place, "first": batch.base_offset, "next": batch.next_offset})
        if moved.rowcount:
            database.executemany(ADD, totals(batch))


def next_offset(path: str, partition: TopicPartition) -> int | None:
    """Return the offset after the last stored record of a partition, or None if no record is stored."""
    with closing(sqlite3.connect(path, timeout=30)) as database:
        found = database.execute(PLACE, (partition.topic, partition.partition)).fetchone()
    return None if found is None else int(found[0])


async def main(bootstrap: str, group: str, path: str) -> None:
    """Work until killed. SQLite waits for the disk and for other members in threads, so that heartbeats continue."""
    with closing(sqlite3.connect(path, timeout=30)) as database:
        database.executescript(TABLES)

    async def go_on(partitions: frozenset[TopicPartition]) -> None:
        for partition in partitions:
            offset = await asyncio.to_thread(next_offset, path, partition)
            if offset is not None:
                await consumer.seek(partition, offset)

    consumer = Consumer(
        bootstrap,
        group=group,
        topics=["flights"],
        on_assigned=go_on,
        session_timeout="5s",
        auto_commit_interval="500ms",
    )
    async with consumer:
        async for batch in consumer:
            await asyncio.to_thread(store, path, batch)


if __name__ == "__main__":
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--bootstrap", default="http://127.0.0.1:9520")
    arguments.add_argument("--group", required=True)
    arguments.add_argument("--database", required=True)
    given = arguments.parse_args()
    asyncio.run(main(given.bootstrap, given.group, given.database))
