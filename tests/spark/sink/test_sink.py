"""Tests of the sink, which writes rows of Spark as records, in batches and in streams."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from fairlead.blocking import Admin, Consumer, Producer
from fairlead.records import Record
from fairlead_api.partitioning import partition_for_key
from refusals import raises

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PARTITIONS = 3
SECONDS_MAX = 180
"""Time limit for a micro-batch, which takes a tenth of a second on idle cores and half a minute when twenty processes
share them.
"""


def records(bootstrap: str, topic: str) -> list[Record]:
    """Return every record of a topic, by partition and in order."""
    with Consumer(bootstrap) as consumer:
        consumer.assign(topic=topic)
        found = list(consumer.records(until=consumer.end_offsets()))
    return sorted(found, key=lambda record: (record.partition, record.offset))


def write(rows: DataFrame, bootstrap: str, **options: str) -> None:
    """Append rows with the sink."""
    rows.write.format("fairlead").mode("append").option("bootstrap", bootstrap).options(**options).save()


def test_every_part_of_a_record_is_written_where_its_columns_say(
    spark: SparkSession, bootstrap: str, topic: str
) -> None:
    """Columns choose the partition and the topic, and a null partition is chosen by the key as in Kafka.

    Timestamps and headers of rows are written unchanged.
    """
    other = f"{topic}-other"
    with Admin(bootstrap) as admin:
        for name in (topic, other):
            admin.create_topic(name, partitions=PARTITIONS)
    rows = spark.range(0, 3000, numPartitions=2).selectExpr(
        "CAST(id AS STRING) AS value",
        "CASE WHEN id % 5 = 0 THEN NULL ELSE CAST(CONCAT('carrier-', id % 7) AS BINARY) END AS key",
        f"IF(id % 2 = 0, '{topic}', '{other}') AS topic",
        "CAST(IF(id % 3 = 0, id % 4 % 3, NULL) AS INT) AS partition",
        "TIMESTAMP_MICROS(1700000000000000 + id) AS timestamp",
        "IF(id % 10 = 0, ARRAY(NAMED_STRUCT('key', 'n', 'value', CAST(id AS STRING) || '')), NULL) AS headers",
    )
    rows = rows.withColumn("headers", rows["headers"].cast("array<struct<key:string,value:binary>>"))

    write(rows, bootstrap)

    for parity, name in enumerate((topic, other)):
        found = records(bootstrap, name)
        assert sorted(int(record.value or b"") for record in found) == list(range(parity, 3000, 2))
        for record in found:
            number = int(record.value or b"")
            key = None if number % 5 == 0 else f"carrier-{number % 7}".encode()
            assert record.key == key
            assert record.timestamp_us == 1_700_000_000_000_000 + number
            assert list(record.headers) == ([("n", str(number).encode())] if number % 10 == 0 else [])
            if number % 3 == 0:
                assert record.partition == number % 4 % 3
            elif key is not None:
                assert record.partition == partition_for_key(key, PARTITIONS)


def test_what_cannot_be_written_is_refused_by_name(spark: SparkSession, bootstrap: str, topic: str) -> None:
    """An invalid schema, invalid options and overwriting are refused before a task runs.

    The error names the column or option and the allowed values.
    """
    rows = spark.range(3).selectExpr("CAST(id AS STRING) AS value")

    with raises(Exception, "value", "bigint", "binary"):
        write(spark.range(3).withColumnRenamed("id", "value"), bootstrap, topic=topic)
    with raises(Exception, "topik", "topic"):
        write(rows, bootstrap, topik=topic)
    with raises(Exception, "mode='overwrite'", "append"):
        rows.write.format("fairlead").mode("overwrite").options(bootstrap=bootstrap, topic=topic).save()
    with Admin(bootstrap) as admin:
        assert topic not in {each.name for each in admin.list_topics()}


@pytest.mark.scenario
def test_a_task_that_cannot_write_everything_fails(spark: SparkSession, bootstrap: str, topic: str) -> None:
    """A write to a missing partition, or to a missing cluster, fails with an error within seconds."""
    with Admin(bootstrap) as admin:
        admin.create_topic(topic, partitions=1)
    rows = spark.range(10).selectExpr("CAST(id AS STRING) AS value", "CAST(id AS INT) AS partition")

    with raises(Exception, topic, 0):
        write(rows.coalesce(1), bootstrap, topic=topic)
    with raises(Exception, "WriteError"):
        write(rows.select("value").coalesce(1), "http://127.0.0.1:9", topic=topic, deliveryTimeout="2s")


def test_a_stream_is_written_once_where_nothing_fails(
    spark: SparkSession, bootstrap: str, topic: str, tmp_path: Path
) -> None:
    """Several micro-batches write the rows unchanged, with keys in their partitions and in order."""
    copy = f"{topic}-copy"
    with Admin(bootstrap) as admin:
        for name in (topic, copy):
            admin.create_topic(name, partitions=PARTITIONS)
    with Producer(bootstrap) as producer:
        for number in range(2000):
            producer.send(topic, str(number).encode(), key=str(number % 11).encode())
    stream = spark.readStream.format("fairlead").option("bootstrap", bootstrap).option("subscribe", topic)
    rows = stream.option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", "700").load()
    writer = rows.writeStream.format("fairlead").option("bootstrap", bootstrap).option("topic", copy)

    query = (
        writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
        .option("compression", "zstd")
        .trigger(availableNow=True)
        .start()
    )

    assert query.awaitTermination(SECONDS_MAX)
    assert query.recentProgress[-1].batchId >= 2
    was, became = records(bootstrap, topic), records(bootstrap, copy)
    assert Counter(record.partition for record in was) == Counter(record.partition for record in became)
    assert [(record.key, record.value, record.timestamp_us) for record in became] == [
        (record.key, record.value, record.timestamp_us) for record in was
    ]
