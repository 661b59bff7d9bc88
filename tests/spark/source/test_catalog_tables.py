"""Topics as tables of Spark's catalog: read, written and followed by SQL."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from pyspark.errors import PySparkException

from fairlead.blocking import Admin, Producer
from fairlead_spark import register_topics
from refusals import raises

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_a_topic_is_a_table_of_sql(spark: SparkSession, bootstrap: str, topic: str) -> None:
    """Every query of a table sees the newest records; INSERT INTO appends to its topic; a stream reads the topic.

    Rows for which Spark names no table are not written to any topic.
    """
    other = f"{topic}-other"
    with Admin(bootstrap) as admin:
        admin.create_topic(topic, partitions=1)
        admin.create_topic(other, partitions=1)
    tables = register_topics(spark, bootstrap, pattern=f"{topic}.*", acks="1")
    table = tables[topic]
    with Producer(bootstrap) as producer:
        producer.send(topic, b"0", key=b"a").result()
        counts = [spark.sql(f"SELECT count(*) FROM {table}").first()[0]]
        producer.send(topic, b"1", key=b"b").result()
    spark.sql(f"INSERT INTO {table} (key, value) VALUES (X'63', X'32')")
    spark.sql(f"INSERT INTO {tables[other]} (key, value) SELECT key, value FROM {table} WHERE offset < 2")
    with pytest.raises(PySparkException):
        spark.sql(f"INSERT INTO {tables[other]} SELECT * FROM {table}")
    counts.append(spark.sql(f"SELECT count(*) FROM {table} WITH (startingOffsets = 'earliest')").first()[0])
    stream = spark.readStream.option("startingOffsets", "earliest").table(tables[other])
    query = stream.writeStream.format("memory").queryName(table.replace(".", "_")).trigger(availableNow=True)
    assert query.start().awaitTermination(400), "the query takes too long"
    copied = spark.table(table.replace(".", "_")).collect()

    assert tables == {
        topic: f"fairlead.{topic.replace('-', '_')}",
        other: f"fairlead.{other.replace('-', '_')}",
    }
    assert counts == [1, 3]
    assert sorted((row.topic, bytes(row.key), bytes(row.value)) for row in copied) == [
        (other, b"a", b"0"),
        (other, b"b", b"1"),
    ]


def test_topics_of_one_name_are_refused(spark: SparkSession, bootstrap: str, topic: str) -> None:
    """Two topics that would become the same table, and wrong options, are refused before a table is created."""
    with Admin(bootstrap) as admin:
        admin.create_topic(f"{topic}.a", partitions=1)
        admin.create_topic(f"{topic}-a", partitions=1)
    with raises(ValueError, "pattern"):
        register_topics(spark, bootstrap, pattern=f"{topic}.*", database="refused")

    assert not spark.catalog.databaseExists("refused")
