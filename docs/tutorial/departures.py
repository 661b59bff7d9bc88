"""A member of a consumer group that counts flights and departure delays by carrier, each flight exactly once.

Totals and offsets go into one transaction of an SQLite database, so the member may be killed at any time: the next
owner of its partitions continues at the offsets in the database. `make demo` runs four of these and kills one:

    python departures.py --group board --database board.db --bootstrap http://127.0.0.1:9520
"""

from __future__ import annotations

import argparse
import asyncio
import sqlite3

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
    """Return the flights, the flights with a known delay and the minutes of delay by carrier, without a loop."""
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


def store(database: sqlite3.Connection, batch: ConsumerBatch) -> None:
    """Store totals and offset in one transaction; fail if another member has already stored this batch."""
    place = {"topic": batch.topic, "partition": batch.partition}
    with database:
        moved = database.execute(MOVE, {**place, "first": batch.base_offset, "next": batch.next_offset})
        if moved.rowcount == 0:
            raise RuntimeError(f"{batch} is stored already")
        database.executemany(ADD, totals(batch))


async def main(bootstrap: str, group: str, path: str) -> None:
    """Work until killed."""
    database = sqlite3.connect(path, timeout=30)
    database.executescript(TABLES)

    async def go_on(partitions: frozenset[TopicPartition]) -> None:
        for partition in partitions:
            found = database.execute(PLACE, (partition.topic, partition.partition)).fetchone()
            if found is not None:
                await consumer.seek(partition, found[0])

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
            store(database, batch)


if __name__ == "__main__":
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--bootstrap", default="http://127.0.0.1:9520")
    arguments.add_argument("--group", required=True)
    arguments.add_argument("--database", required=True)
    given = arguments.parse_args()
    asyncio.run(main(given.bootstrap, given.group, given.database))
