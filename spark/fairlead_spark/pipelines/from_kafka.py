"""Pipeline that copies topics of a Kafka cluster, at least once, with keys, values, headers, times and partitions.

The last header of each copy, `kafka-offset`, contains the record's offset in Kafka, from which `compare_kafka` counts
missing and repeated records and translates the offsets of groups. If the pipeline stops in the middle of a batch,
records of the batch may be written twice. Apart from repeated records, the order within a partition is kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from fairlead_api.configuration import ConfigInput
from fairlead_spark.pipelines import Pipeline, PipelineOptionError
from fairlead_spark.pipelines import kafka_cluster as kafka
from fairlead_spark.pipelines.topics import (
    MAX_OFFSETS,
    STARTING_OFFSETS,
    WHOLE_RECORDS,
    cluster_id,
    ensure_topics,
    write_topics,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

NAME = "from_kafka"


def check(options: Mapping[str, str]) -> None:
    """Raise `PipelineOptionError` for options that are invalid regardless of the clusters."""
    kafka.check(NAME, options)


def writer(spark: SparkSession, options: Mapping[str, str]) -> DataStreamWriter:
    """Build the streaming query."""
    cluster = kafka.KafkaCluster(spark, options)
    _refuse_itself(cluster, options)
    for topic, partitions in cluster.partitions().items():
        config: dict[str, ConfigInput] = {**cluster.configuration(topic), **WHOLE_RECORDS}
        ensure_topics(options["bootstrap"], {topic: partitions}, config, exactly=True)
    return write_topics(copies_of(cluster.stream()), options["bootstrap"])


def copies_of(records: DataFrame) -> DataFrame:
    """Return the rows to write for records of Kafka's connector."""
    return records.select(
        "topic",
        "partition",
        "key",
        "value",
        kafka.with_offset().alias("headers"),
        kafka.timestamp().alias("timestamp"),
    )


def _refuse_itself(cluster: kafka.KafkaCluster, options: Mapping[str, str]) -> None:
    """Raise `PipelineOptionError` if the option `kafka` names a Kafka listener of the cluster that is written."""
    here, there = cluster_id(options["bootstrap"]), cluster.cluster_id()
    if here == there:
        message = (
            f"pipeline {NAME} would write into the topics that it reads: {options[kafka.KAFKA.name]} and "
            f"{options['bootstrap']} are both cluster {here}"
        )
        raise PipelineOptionError(message)


PIPELINE = Pipeline(
    name=NAME,
    summary="Copies topics of a Kafka cluster, with keys, partitions, headers, timestamps and offsets in Kafka.",
    options=(kafka.TOPICS, kafka.KAFKA, kafka.KAFKA_CONFIG, STARTING_OFFSETS, MAX_OFFSETS),
    writer=writer,
    check=check,
)
