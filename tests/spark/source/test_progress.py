"""Tests of the progress of streaming queries, which the command line shows as groups with their lag."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from fairlead import TopicPartition
from fairlead.blocking import Admin, Producer
from fairlead.errors import GroupNotFoundError
from fairlead_spark import GroupProgress
from fairlead_spark.options import ReadOptions
from fairlead_spark.source.readers import StreamReader

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

RECORDS = 500
SECONDS_MAX = 180


def lag(bootstrap: str, group: str) -> dict[str, Any]:
    """Return the output of `fairlead group lag`."""
    command = [str(Path(sys.executable).with_name("fairlead")), "group", "lag", group, "--output", "json"]
    environment = {**os.environ, "FAIRLEAD_BOOTSTRAP": bootstrap}
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
    said: dict[str, Any] = json.loads(done.stdout)
    return said


def lag_when(bootstrap: str, group: str, *, total: int) -> dict[str, Any]:
    """Wait until the command reports the given lag, and return its output.

    Spark calls query listeners some time after the query has ended.
    """
    deadline = time.monotonic() + SECONDS_MAX
    while (said := lag(bootstrap, group))["total_records"] != total and time.monotonic() < deadline:
        pass
    return said


def produce(bootstrap: str, topic: str) -> None:
    """Append records to both partitions."""
    with Producer(bootstrap) as producer:
        for number in range(RECORDS):
            producer.send(topic, str(number).encode(), partition=number % 2)


def read(spark: SparkSession, bootstrap: str, topic: str, checkpoint: Path, name: str) -> StreamingQuery:
    """Run a named query up to the end of the topic."""
    rows = spark.readStream.format("fairlead").option("bootstrap", bootstrap).option("subscribe", topic)
    writer = rows.option("startingOffsets", "earliest").load().writeStream.format("noop").queryName(name)
    query = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
    assert query.awaitTermination(SECONDS_MAX)
    return query


@pytest.mark.scenario
def test_the_command_line_shows_how_far_a_query_is(
    spark: SparkSession, bootstrap: str, topic: str, tmp_path: Path
) -> None:
    """The lag of a query's group is zero after the last micro-batch, then counts the records produced since.

    Other queries of the session do not change the lag.
    """
    group, checkpoint = f"{topic}-job", tmp_path / "checkpoint"
    with Admin(bootstrap) as admin:
        admin.create_topic(topic, partitions=2)
        admin.commit_group_offsets(group, {TopicPartition(topic, number): 0 for number in range(2)})
    produce(bootstrap, topic)
    progress = GroupProgress(bootstrap, group, query="counted")
    spark.streams.addListener(progress)
    try:
        read(spark, bootstrap, topic, tmp_path / "other", "other")
        before = lag(bootstrap, group)
        read(spark, bootstrap, topic, checkpoint, "counted")
        caught_up = lag_when(bootstrap, group, total=0)
        produce(bootstrap, topic)
        behind = lag(bootstrap, group)
        read(spark, bootstrap, topic, checkpoint, "counted")
        at_the_end = lag_when(bootstrap, group, total=0)
    finally:
        spark.streams.removeListener(progress)
        progress.close()

    assert (before["total_records"], behind["total_records"]) == (RECORDS, RECORDS)
    assert [row["committed_offset"] for row in caught_up["lag"]] == [RECORDS // 2] * 2
    assert [row["committed_offset"] for row in at_the_end["lag"]] == [RECORDS] * 2


@pytest.mark.scenario
def test_a_cluster_that_is_gone_does_not_stop_a_query(
    spark: SparkSession, bootstrap: str, topic: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A failed update of the progress is logged, and the query ends normally."""
    with Admin(bootstrap) as admin:
        admin.create_topic(topic, partitions=2)
    produce(bootstrap, topic)
    progress = GroupProgress("http://127.0.0.1:9", f"{topic}-job", retry_timeout="1s")
    spark.streams.addListener(progress)
    try:
        query = read(spark, bootstrap, topic, tmp_path / "checkpoint", "counted")
        deadline, looking_again = time.monotonic() + SECONDS_MAX, threading.Event()
        while "is not published" not in caplog.text and time.monotonic() < deadline:
            looking_again.wait(0.05)
    finally:
        spark.streams.removeListener(progress)
        progress.close()

    assert query.exception() is None
    assert f"progress of group {topic}-job is not published" in caplog.text


def test_a_trigger_that_is_done_is_the_groups_offset(bootstrap: str, topic: str) -> None:
    """With groupId, the offsets that Spark commits are published as the offsets of the group.

    Without the option groupId, no offsets are published.
    """
    options = {"bootstrap": bootstrap, "subscribe": topic, "startingOffsets": "earliest"}
    with Producer(bootstrap) as producer:
        for value in (b"1", b"2"):
            producer.send(topic, value).result()
    with Admin(bootstrap) as admin:
        silent = StreamReader(ReadOptions.parse(options))
        end = silent.latestOffset(silent.initialOffset(), ReadAllAvailable())
        silent.commit(end)
        with pytest.raises(GroupNotFoundError):
            admin.group_lag(f"group-of-{topic}")
        StreamReader(ReadOptions.parse(options | {"groupId": f"group-of-{topic}"})).commit(end)
        offsets = admin.group_offsets(f"group-of-{topic}")

    assert [(str(place), found.offset) for place, found in offsets.items()] == [(f"{topic}-0", 2)]
