from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException

from fairlead.blocking import Admin, Producer
from refusals import raises
from source_records import NOON

if TYPE_CHECKING:
    from pyspark.sql import DataFrameReader, SparkSession


def reader(spark: SparkSession, bootstrap: str, **options: str) -> DataFrameReader:
    """Return a batch reader with these options."""
    return spark.read.format("fairlead").options(bootstrap=bootstrap, **options)


@pytest.mark.parametrize("cluster", ["bootstrap", "three_brokers"])
def test_a_batch_read_is_every_record_once_in_typed_columns(
    spark: SparkSession, cluster: str, topic: str, request: pytest.FixtureRequest
) -> None:
    """A read from one or three brokers returns all partitions, nulls, headers, and times to the microsecond."""
    bootstrap = request.getfixturevalue(cluster)
    count = 30_000
    with Admin(bootstrap) as admin:
        admin.create_topic(topic, partitions=4)
    with Producer(bootstrap) as producer:
        producer.send_batch(
            topic,
            pa.table(
                {
                    "key": [b"k%d" % (number % 97) for number in range(count)],
                    "value": [b"v%d" % number for number in range(count)],
                    "timestamp": pa.array([NOON] * count, pa.timestamp("us", tz="UTC")),
                }
            ),
        )
        producer.flush()
        last = producer.send(topic, None, key=b"", headers=[("a", b"1"), ("a", None)], partition=2).result()

    frame = reader(spark, bootstrap, subscribe=topic, includeHeaders="true").load()
    table = frame.toArrow()
    row = next(
        row
        for row in table.slice(0).to_pylist()
        if (row["partition"], row["offset"]) == (last.partition, last.offset)
    )

    assert frame.columns == [
        "key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers",
    ]  # fmt: skip
    assert sorted(filter(None, table["value"].to_pylist())) == sorted(
        b"v%d" % number for number in range(count)
    )
    places = set(zip(table["partition"].to_pylist(), table["offset"].to_pylist(), strict=True))
    assert len(places) == count + 1
    assert {partition for partition, _ in places} == {0, 1, 2, 3}
    assert set(table["topic"].to_pylist()) == {topic}
    assert table["timestamp"].to_pylist().count(NOON) == count
    assert set(table["timestampType"].to_pylist()) == {0}
    assert (row["key"], row["value"]) == (b"", None)
    assert row["headers"] == [{"key": "a", "value": b"1"}, {"key": "a", "value": None}]


def test_a_frame_with_several_filters_gives_each_its_rows(
    spark: SparkSession, bootstrap: str, hundred: str
) -> None:
    """With pushdown, no filter gets rows that another filter reduced, in one query or in consecutive queries."""
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        frame = reader(
            spark, bootstrap, subscribe=hundred, columns="offset,timestamp", pushdown="true"
        ).load()
        low, high = frame.where("offset < 10"), frame.where("offset >= 95")
        both = sorted(row.offset for row in low.union(high).collect())
        late = frame.where("timestamp >= timestamp'2026-01-02 12:01:00Z' and offset < 70").count()
        counts = [high.count(), frame.count(), frame.where("offset = 3 or offset = 4").count()]
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")

    assert both == [*range(10), *range(95, 100)]
    assert late == 10
    assert counts == [5, 100, 2]


def test_errors_are_raised_before_a_job_runs(spark: SparkSession, bootstrap: str, hundred: str) -> None:
    """Spark raises errors in the options, and errors reported by the cluster, before a job runs."""
    with raises(PySparkException, "startingOffsets") as refused:
        reader(spark, bootstrap, subscribe=hundred, startingOffset="latest").load()
    assert "Traceback" not in str(refused.value)
    with raises(PySparkException, "columns"):
        reader(spark, bootstrap, subscribe=hundred).schema("value STRING").load().collect()
    with raises(PySparkException, "no-such-topic") as refused:
        reader(spark, bootstrap, subscribe="no-such-topic").load().collect()
    assert "Traceback" not in str(refused.value)
