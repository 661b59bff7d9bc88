"""Common parts of aggregating pipelines: one query reads, parses and aggregates records, and writes dead letters."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from fairlead_spark.pipelines.dead_letters import DEAD_LETTERS, dead_letter_topic, split, without_headers
from fairlead_spark.pipelines.topics import (
    JSON_OPTIONS,
    MAX_OFFSETS,
    MIN_PARTITIONS,
    PLACED,
    STARTING_OFFSETS,
    WHOLE_RECORDS,
    ensure_topics,
    read_topics,
    require_topics,
    write_topics,
)

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

READING = (DEAD_LETTERS, STARTING_OFFSETS, MAX_OFFSETS, MIN_PARTITIONS)
"""Options of all aggregating pipelines in addition to `input` and `output`."""


def summed_up(
    spark: SparkSession,
    options: Mapping[str, str],
    pipeline: str,
    entry: str,
    parsed: tuple[Column, Column],
    sum_up: Callable[[DataFrame], DataFrame],
) -> DataStreamWriter:
    """Return the query from `input` to `output`; create missing output topics.

    `parsed` has two columns for `value`: the parsed entry, and the reason if the entry is invalid. `sum_up` receives
    the valid entries in the column `entry`.
    """
    source, letters = options["input"], dead_letter_topic(options, options["input"])
    require_topics(options["bootstrap"], [source])
    ensure_topics(options["bootstrap"], {options["output"]: None})
    ensure_topics(options["bootstrap"], {letters: None}, WHOLE_RECORDS)
    found, reason = parsed
    entries = read_topics(spark, options, source, columns=PLACED).withColumn(entry, found)
    good, dead = split(entries, reason, pipeline=pipeline, topic=letters)
    return write_topics(without_headers(sum_up(good)).unionByName(dead), options["bootstrap"])


def as_records(rows: DataFrame, topic: str, key: str, fields: Column) -> DataFrame:
    """Return rows as records of a topic, with one column as the key and a structure, as a JSON object, as the value."""
    from pyspark.sql import functions as sql

    return rows.select(
        sql.lit(topic).alias("topic"),
        sql.col(key).cast("binary").alias("key"),
        sql.to_json(fields, JSON_OPTIONS).cast("binary").alias("value"),
    )
