"""Tests of joins of two streams: each source has its own offsets, and the state survives a restart."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import pytest
from pyspark.sql.functions import col, expr

from fairlead.blocking import Producer
from source_records import NOON

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import Column, DataFrame, Row, SparkSession

WINDOW = "interval 1 minute"


def stream(spark: SparkSession, bootstrap: str, topic: str, name: str) -> DataFrame:
    """Read a topic as columns `<name>_key`, `<name>` and `<name>_time`, with a watermark."""
    records = spark.readStream.format("fairlead").options(
        bootstrap=bootstrap, subscribe=topic, startingOffsets="earliest"
    )
    columns = {"key": f"{name}_key", "value": name, "timestamp": f"{name}_time"}
    texts = records.load().select(col("key").cast("string"), col("value").cast("string"), col("timestamp"))
    return texts.withColumnsRenamed(columns).withWatermark(f"{name}_time", WINDOW)


def run(joined: DataFrame, checkpoint: Path) -> set[tuple[str, ...]]:
    """Run the query up to the end of its topics, and return the joined rows."""
    seen: list[Row] = []

    def keep(frame: DataFrame, batch: int) -> None:
        """Store the rows of one trigger."""
        del batch
        seen.extend(frame.collect())

    writer = joined.writeStream.foreachBatch(keep).option("checkpointLocation", str(checkpoint))
    writer.trigger(availableNow=True).start().awaitTermination()
    rows = {tuple(row) for row in seen}
    assert len(rows) == len(seen), f"a row came twice: {seen}"
    return rows


def within_a_minute(early: str, late: str) -> Column:
    """Return the condition that one row is at most a minute after the other."""
    return expr(f"{late}_time between {early}_time and {early}_time + {WINDOW}")


@pytest.mark.scenario
def test_two_topics_are_joined_over_a_restart(
    spark: SparkSession, bootstrap: str, topic: str, tmp_path: Path
) -> None:
    """An order that the first run has read is joined once with its payment, which the second run reads.

    An order that is paid too late matches no payment.
    """
    paid = f"{topic}-paid"
    orders, payments = stream(spark, bootstrap, topic, "order"), stream(spark, bootstrap, paid, "payment")
    joined = orders.join(
        payments, (col("order_key") == col("payment_key")) & within_a_minute("order", "payment")
    ).select("order", "payment")
    with Producer(bootstrap) as producer:
        for key in (b"a", b"b", b"c"):
            producer.send(topic, b"order " + key, key=key, timestamp=NOON)
        producer.send(paid, b"at once", key=b"a", timestamp=NOON + timedelta(seconds=1))
        producer.flush()
        first = run(joined, tmp_path)
        producer.send(paid, b"later", key=b"b", timestamp=NOON + timedelta(seconds=30))
        producer.send(paid, b"too late", key=b"c", timestamp=NOON + timedelta(seconds=90))
        producer.flush()
        second = run(joined, tmp_path)

    assert first == {("order a", "at once")}
    assert second == {("order b", "later")}


@pytest.mark.scenario
def test_a_topic_is_joined_with_itself(
    spark: SparkSession, bootstrap: str, topic: str, tmp_path: Path
) -> None:
    """A topic that occurs twice in a query has two sources, and each source reads all records once."""
    left, right = stream(spark, bootstrap, topic, "left"), stream(spark, bootstrap, topic, "right")
    pairs = (col("left_key") == col("right_key")) & (col("left") < col("right"))
    joined = left.join(right, pairs & within_a_minute("left", "right")).select("left", "right")
    with Producer(bootstrap) as producer:
        for number in range(4):
            time = NOON + timedelta(seconds=40 * number)
            producer.send(topic, b"%d" % number, key=b"k", timestamp=time)
        producer.flush()
        rows = run(joined, tmp_path)

    assert rows == {("0", "1"), ("1", "2"), ("2", "3")}
