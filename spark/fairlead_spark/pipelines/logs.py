"""Pipeline that counts log lines by source and level, and measurements by source and metric, in event time windows.

A record is a JSON object: a log line has `source`, `at` and `level`, and a measurement has `source`, `at`, `metric` and
`value`. All other records are written to the topic for dead letters. A window is written once, when the watermark has
passed the end of the window.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from fairlead_spark.pipelines import Pipeline, PipelineOption
from fairlead_spark.pipelines.dead_letters import computed_once, parse_json
from fairlead_spark.pipelines.summing_up import READING, as_records, summed_up

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

NAME = "logs"
ENTRY = "source STRING, at TIMESTAMP, level STRING, metric STRING, value DOUBLE"


def parsed_entry() -> tuple[Column, Column]:
    """Return two columns for the bytes in column `value`: the entry, and the reason if the entry is invalid."""
    from pyspark.sql import functions as sql

    entry, reason = parse_json("value", ENTRY, required=("source", "at"))

    def incomplete(found: Column) -> Column:
        neither = found["level"].isNull() & found["metric"].isNull()
        unmeasured = found["metric"].isNotNull() & found["value"].isNull()
        return sql.when(neither, "neither level nor metric").when(
            unmeasured, "a metric without the field value"
        )

    return entry, sql.coalesce(reason, computed_once(entry, incomplete))


def windows(entries: DataFrame, *, length: str, watermark: str, topic: str) -> DataFrame:
    """Return a record for each window, source and level or metric: the key is the source, the value is a JSON object.

    `entries` has a column `entry`. In the JSON objects, `records` is the number of entries. `mean`, `least` and
    `greatest` are statistics of the values of a metric, and are null for a level. Levels are converted to lower case.
    """
    from pyspark.sql import functions as sql

    grouped = (
        entries.select("entry.*")
        .withColumn("level", sql.when(sql.col("metric").isNull(), sql.lower("level")))
        .withWatermark("at", watermark)
        .groupBy(sql.window("at", length), "source", "level", "metric")
        .agg(
            sql.count(sql.lit(1)).alias("records"),
            *[
                sql.when(sql.col("metric").isNotNull(), of("value")).alias(name)
                for name, of in (("mean", sql.avg), ("least", sql.min), ("greatest", sql.max))
            ],
        )
    )
    fields = sql.struct(
        "source",
        "level",
        "metric",
        sql.col("window.start").alias("window_start"),
        sql.col("window.end").alias("window_end"),
        *["records", "mean", "least", "greatest"],
    )
    return as_records(grouped, topic, "source", fields)


def writer(spark: SparkSession, options: Mapping[str, str]) -> DataStreamWriter:
    """Build the streaming query."""

    def sum_up(good: DataFrame) -> DataFrame:
        return windows(
            good, length=options["window"], watermark=options["watermark"], topic=options["output"]
        )

    return summed_up(spark, options, NAME, "entry", parsed_entry(), sum_up)


PIPELINE = Pipeline(
    name=NAME,
    summary="Counts log lines and measurements per source, level or metric, and window of event time.",
    options=(
        PipelineOption("input", "Topic of log lines and measurements, JSON objects.", "logs"),
        PipelineOption("output", "Topic of the windows.", "log-windows"),
        PipelineOption("window", "Length of a window.", "1 minute"),
        PipelineOption("watermark", "Maximum lateness of entries.", "5 minutes"),
        *READING,
    ),
    writer=writer,
    reads=("input",),
)
