"""Tests of the sink with `exactlyOnce`: readers of committed records see every row of a write once, or none."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest

from fairlead.blocking import Admin, Producer
from fairlead.blocking.loop_thread import LoopThread
from killed_queries import READY_SECONDS_MAX, Driver
from query_judge import read_topic
from refusals import raises
from tcp_relay import TcpRelay
from waiting import COMMAND_SECONDS, pause_blocking

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PARTITIONS = 3
RECORDS = 300
FIRST_COMMIT = rb"\"batch\": 0"
"""Text in the request that commits the first micro-batch."""


def committed(bootstrap: str, topic: str) -> Counter[str]:
    """Return how often readers of committed records see each value, when no transaction is open."""
    return Counter(read_topic(bootstrap, topic, "read_committed").values())


def write(rows: DataFrame, bootstrap: str, topic: str, **options: Any) -> None:
    """Append rows with `exactlyOnce`."""
    writer = (
        rows.write.format("fairlead").mode("append").option("bootstrap", bootstrap).option("topic", topic)
    )
    writer.options(exactlyOnce="true", **options).save()


def test_a_batch_write_becomes_visible_together_and_once(
    spark: SparkSession, bootstrap: str, topic: str
) -> None:
    """The rows of all tasks are committed together, and a repeated write with the same number is skipped.

    A read of committed records leaves out the aborted rows.
    """
    with Admin(bootstrap) as admin:
        admin.create_topic(topic, partitions=PARTITIONS)
    rows = spark.range(0, RECORDS, numPartitions=4).selectExpr("CAST(id AS STRING) AS value")
    for version in (1, 1, 2):
        write(rows, bootstrap, topic, txnAppId=topic, txnVersion=version)
    write(rows.where("CAST(value AS INT) < 10"), bootstrap, topic)

    stream = spark.read.format("fairlead").option("bootstrap", bootstrap).option("subscribe", topic)
    read = stream.option("isolation", "read_committed").load().select("value").collect()

    expected = Counter({str(number): 2 + (number < 10) for number in range(RECORDS)})
    assert committed(bootstrap, topic) == expected
    assert Counter(row.value.decode() for row in read) == expected


def test_a_failed_write_leaves_nothing(spark: SparkSession, bootstrap: str, topic: str) -> None:
    """A write with a failed task, or with too many tasks, commits no row and leaves no transaction open."""
    with Admin(bootstrap) as admin:
        admin.create_topic(topic, partitions=PARTITIONS)
    rows = spark.range(0, RECORDS, numPartitions=120).selectExpr(
        "CAST(id AS STRING) AS value", "0 AS partition"
    )
    wrong = rows.selectExpr(
        "value", f"CAST(IF(value = '{RECORDS - 1}', {PARTITIONS}, 0) AS INT) AS partition"
    )
    # Spark may kill the other task of a failed write, whose transaction ends after its timeout.
    with raises(Exception, topic, PARTITIONS):
        write(wrong.coalesce(2), bootstrap, topic, transactionTimeout="20s")
    with raises(Exception, "ExactlyOnceError", "coalesce", 99):
        write(rows, bootstrap, topic, transactionTimeout="20s")

    assert committed(bootstrap, topic) == Counter()


def test_a_repeated_micro_batch_is_committed_once(
    spark: SparkSession, bootstrap: str, topic: str, tmp_path: Path
) -> None:
    """A micro-batch whose commit is missing in Spark's checkpoint is repeated, and its rows are visible once.

    A checkpoint that is older than the topic is refused.
    """
    copy, commits = f"{topic}-copy", tmp_path / "checkpoint" / "commits"
    with Admin(bootstrap) as admin:
        for name in (topic, copy):
            admin.create_topic(name, partitions=PARTITIONS)
    with Producer(bootstrap) as producer:
        for number in range(RECORDS):
            producer.send(topic, str(number).encode())
    stream = spark.readStream.format("fairlead").option("bootstrap", bootstrap).option("subscribe", topic)
    rows = stream.option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", "100").load()
    writer = rows.select("value").writeStream.format("fairlead").option("bootstrap", bootstrap)
    writer = writer.option("exactlyOnce", "true").option("topic", copy).trigger(availableNow=True)
    writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
    writer.start().awaitTermination()
    last = max(int(entry.name) for entry in commits.iterdir() if entry.name.isdecimal())
    _forget(commits, last)
    writer.start().awaitTermination()
    found, written = committed(bootstrap, copy), len(read_topic(bootstrap, copy))
    for number in (last, last - 1):
        _forget(commits, number)
        _forget(commits.with_name("offsets"), number)
    with raises(Exception, "ExactlyOnceError", last, last - 1):
        writer.start().awaitTermination()

    assert last > 0
    assert found == Counter({str(number): 1 for number in range(RECORDS)})
    assert written > RECORDS


def _forget(folder: Path, number: int) -> None:
    """Remove an entry of a checkpoint, with its checksum."""
    (folder / str(number)).unlink()
    (folder / f".{number}.crc").unlink(missing_ok=True)


@contextmanager
def relayed(bootstrap: str) -> Iterator[tuple[LoopThread, TcpRelay]]:
    """Relay to a broker, on a thread."""
    thread = LoopThread("relay")
    thread.start()
    relay = TcpRelay(urlsplit(bootstrap).port or 0)
    thread.run(relay.start())
    try:
        yield thread, relay
    finally:
        relay.mend()
        thread.run(relay.cut())
        thread.stop()


@pytest.mark.scenario
def test_a_driver_killed_between_commit_and_checkpoint_repeats_nothing(
    bootstrap: str, topic: str, tmp_path: Path
) -> None:
    """The next driver repeats the micro-batch, whose rows are visible once.

    The first driver is killed when the cluster has committed its micro-batch and the answer is on its way.
    """
    once = f"{topic}-once"
    with Admin(bootstrap) as admin:
        for name in (topic, once):
            admin.create_topic(name, partitions=PARTITIONS)
    with Producer(bootstrap) as producer:
        for number in range(RECORDS):
            producer.send(topic, str(number).encode())
    settings = {
        "bootstrap": bootstrap,
        "folder": str(tmp_path),
        "topic": topic,
        "once": once,
        "sinks": ["once"],
    }
    commits = tmp_path / "checkpoints" / "once" / "commits"
    with relayed(bootstrap) as (thread, relay), Admin(bootstrap) as admin:
        relay.hold_answers_after(FIRST_COMMIT)
        driver = Driver({**settings, "sink_bootstrap": relay.url, "finish": False}, tmp_path / "driver.log")
        try:
            thread.run(asyncio.wait_for(relay.held.wait(), READY_SECONDS_MAX))
            deadline = time.monotonic() + READY_SECONDS_MAX
            while not any(each.metadata for each in admin.list_transactions("spark.")):
                assert time.monotonic() < deadline, "the first micro-batch is not committed"
                pause_blocking(COMMAND_SECONDS)
            was_noted = (commits / "0").exists()
        finally:
            driver.kill()
    again = Driver({**settings, "finish": True}, tmp_path / "driver.log")
    try:
        is_finished = again.wait_for("finished", 1, READY_SECONDS_MAX)
    finally:
        again.kill()

    assert (was_noted, is_finished) == (False, True)
    assert committed(bootstrap, once) == Counter({str(number): 1 for number in range(RECORDS)})
    assert len(read_topic(bootstrap, once)) > RECORDS
