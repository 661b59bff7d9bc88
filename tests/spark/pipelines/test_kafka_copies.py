"""Copies of Kafka's records and their comparison, with rows in the form of Kafka's connector and a real broker.

test_from_kafka.py runs the same jobs against Apache Kafka.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from fairlead import TopicPartition
from fairlead.blocking import Admin, Producer
from fairlead_spark.pipelines import PipelineOptionError
from fairlead_spark.pipelines.compare_kafka import counts_of, pairs_of, translated
from fairlead_spark.pipelines.from_kafka import copies_of
from fairlead_spark.pipelines.kafka_cluster import ConnectorMissing, KafkaCluster
from fairlead_spark.pipelines.topics import ensure_topics
from refusals import raises

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

START = datetime(2026, 6, 1, tzinfo=UTC)
KAFKA_ROW = (
    "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp, timestampType int, "
    "headers array<struct<key:string,value:binary>>"
)
"""Schema of Kafka's connector."""
Record = tuple[int, int, bytes | None, bytes | None, list[tuple[str, bytes | None]] | None]
"""Partition, offset in Kafka, key, value and headers."""


def in_kafka(spark: SparkSession, topic: str, records: Sequence[Record]) -> DataFrame:
    """Return records as rows of Kafka's connector."""
    rows = [
        (key, value, topic, partition, offset, START + timedelta(milliseconds=offset), 0, headers)
        for partition, offset, key, value, headers in records
    ]
    return spark.createDataFrame(rows, KAFKA_ROW)


def copy(bootstrap: str, rows: DataFrame) -> None:
    """Write copies of rows, in one task, so that they keep their order."""
    written = copies_of(rows.coalesce(1)).write.format("fairlead").option("bootstrap", bootstrap)
    written.mode("append").save()


def copied(spark: SparkSession, bootstrap: str, topic: str) -> DataFrame:
    """Return the rows of a topic with their headers."""
    reader = spark.read.format("fairlead").option("bootstrap", bootstrap).option("subscribe", topic)
    return reader.option("includeHeaders", "true").load()


def test_copies_are_equal_and_offsets_are_translated(spark: SparkSession, bootstrap: str, topic: str) -> None:
    """Every kind of record is copied unchanged, and a group continues at its next record, never after it."""
    records: list[Record] = [
        (0, 0, b"a", b"1", None),
        (0, 1, None, b"2", [("n", b"x"), ("n", None)]),
        (0, 3, b"a", None, [("kafka-offset", b"7")]),  # offset 2 is the marker of a transaction
        (0, 4, b"", b"", []),
        (1, 10, b"b", b"3", None),  # offsets below 10 are expired
    ]
    ensure_topics(bootstrap, {topic: 2}, exactly=True)
    rows = in_kafka(spark, topic, records)
    copy(bootstrap, rows.where("partition = 1 OR offset < 3"))
    copy(bootstrap, rows.where("partition = 0 AND offset > 0"))  # a stopped batch is written again
    pairs = pairs_of(rows, copied(spark, bootstrap, topic))
    wanted = [
        *(("billing", TopicPartition(topic, 0), offset) for offset in (0, 1, 2, 3, 4, 5)),
        *(("audit", TopicPartition(topic, 1), offset) for offset in (3, 10, 11)),
    ]

    counts = counts_of(pairs)
    offsets = {(each.group, each.kafka_offset): each.offset for each in translated(spark, pairs, wanted)}

    assert counts == {
        "records": 5,
        "copied": 5,
        "missing": 0,
        "not_copied_yet": 0,
        "changed": 0,
        "repeated": 1,
        "deleted_in_kafka": 0,
        "of_other_programs": 0,
    }
    assert offsets == {
        # The log of partition 0 has the offsets 0, 1, 1, 3, 4 of Kafka.
        **{("billing", kafka): here for kafka, here in {0: 0, 1: 1, 2: 3, 3: 3, 4: 4, 5: 5}.items()},
        **{("audit", kafka): here for kafka, here in {3: 0, 10: 0, 11: 1}.items()},
    }


def test_each_difference_is_counted(spark: SparkSession, bootstrap: str, topic: str) -> None:
    """Missing, late, changed and deleted records, and records of other programs, have separate counts."""
    records: list[Record] = [
        (part, offset, b"k", b"%d" % offset, None) for part in (0, 1) for offset in range(5)
    ]
    ensure_topics(bootstrap, {topic: 2})
    changed: list[Record] = [(0, 3, b"k", b"another", None)]
    copy(
        bootstrap, in_kafka(spark, topic, [records[0], records[1], *changed, records[4]])
    )  # without offset 2
    copy(bootstrap, in_kafka(spark, topic, records[5:7]))  # without the last three records
    with Producer(bootstrap) as producer:
        producer.send(topic, b"of a new producer", partition=1)
        producer.flush()

    counts = counts_of(pairs_of(in_kafka(spark, topic, records[1:]), copied(spark, bootstrap, topic)))

    assert counts == {
        "records": 9,
        "copied": 5,
        "missing": 1,
        "not_copied_yet": 3,
        "changed": 1,
        "repeated": 0,
        "deleted_in_kafka": 1,
        "of_other_programs": 1,
    }


def test_a_copy_needs_the_same_number_of_partitions(bootstrap: str, topic: str) -> None:
    """A topic with more partitions than in Kafka is refused, since keys would change their partitions."""
    with Admin(bootstrap) as admin:
        admin.create_topic(topic, partitions=3)

    with raises(PipelineOptionError, topic, 3, 2):
        ensure_topics(bootstrap, {topic: 2}, exactly=True)


def test_a_session_without_the_connector(spark: SparkSession) -> None:
    """The error names the package that the session lacks, in the version of the session."""
    options: dict[str, Any] = {"topics": "orders", "kafka": "127.0.0.1:1", "kafkaConfig": ""}

    with pytest.raises(ConnectorMissing) as caught:
        KafkaCluster(spark, options)

    assert f"spark.jars.packages=org.apache.spark:spark-sql-kafka-0-10_2.13:{spark.version}" in str(
        caught.value
    )
