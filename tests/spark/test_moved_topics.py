"""Queries of Spark continue in the other cluster after their topic was handed over to that cluster."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from cluster_kit import Cluster
from fairlead.blocking.loop_thread import LoopThread
from link_kit import handed_over, link, url

if TYPE_CHECKING:
    from pyspark.sql import Row, SparkSession


@pytest.fixture
def loop() -> Iterator[LoopThread]:
    """Yield a thread with the event loop of two clusters."""
    thread = LoopThread("linked brokers")
    thread.start()
    try:
        yield thread
    finally:
        thread.stop()


def test_a_query_follows_its_topic_from_its_checkpoint(
    spark: SparkSession, loop: LoopThread, topic: str, tmp_path: Path
) -> None:
    """A streaming query reads each record once, and the sink writes to the cluster that accepts the records.

    The query also continues from its checkpoint with the address of the other cluster.
    """
    paths = [tmp_path / each for each in ("source", "target")]
    for path in paths:
        path.mkdir()
    source, target = clusters = [loop.run(Cluster.open(path)) for path in paths]
    try:
        for cluster in clusters:
            loop.run(cluster.start(1))
        loop.run(source.topic(topic, replication_factor=1))
        options = {"bootstrap": url(source), "followMoves": "true"}
        _write(spark, options, topic, "in the source")
        first = _read(spark, options, topic, tmp_path)
        loop.run(link(source, target))
        loop.run(handed_over(target, topic))
        _write(spark, options, topic, "in the target")
        both = _read(spark, options, topic, tmp_path)
        moved = {"bootstrap": url(target)}
        _write(spark, moved, topic, "later")
        later = _read(spark, moved, topic, tmp_path)
    finally:
        for cluster in clusters:
            loop.run(cluster.close())

    assert [(row.offset, row.text) for row in first] == [(0, "in the source")]
    assert [(row.offset, row.text) for row in both] == [(0, "in the source"), (1, "in the target")]
    assert [(row.offset, row.text) for row in later[2:]] == [(2, "later")]


def _write(spark: SparkSession, options: dict[str, str], topic: str, text: str) -> None:
    rows = spark.createDataFrame([(text,)], "value string")
    rows.write.format("fairlead").mode("append").options(**options, topic=topic).save()


def _read(spark: SparkSession, options: dict[str, str], topic: str, folder: Path) -> list[Row]:
    """Run the streaming query over the available records; return all rows that it has written so far."""
    table = str(folder / "rows")
    reader = spark.readStream.format("fairlead").options(
        **options, subscribe=topic, startingOffsets="earliest"
    )
    rows = reader.load()
    query = (
        rows.selectExpr("offset", "CAST(value AS STRING) AS text")
        .writeStream.trigger(availableNow=True)
        .option("checkpointLocation", str(folder / "checkpoint"))
        .start(table, format="parquet")
    )
    query.awaitTermination()
    return spark.read.parquet(table).orderBy("offset").collect()
