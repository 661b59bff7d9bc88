"""Pipeline that derives the sessions of a site's users from a topic of clicks.

A session ends when its user is inactive for the time in the option `gap`. Each session is written once, when the
watermark has passed the end of the session. The watermark is the latest observed time minus the option `watermark`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from fairlead_spark.pipelines import Pipeline, PipelineOption
from fairlead_spark.pipelines.dead_letters import parse_json
from fairlead_spark.pipelines.summing_up import READING, as_records, summed_up

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

NAME = "sessions"
CLICK = "user STRING, page STRING, at TIMESTAMP"


def sessions(clicks: DataFrame, *, gap: str, watermark: str, topic: str) -> DataFrame:
    """Return a record for each session, with the user as the key and a JSON object as the value.

    `clicks` has a column `click` with the fields of a click. The JSON object contains the times of the first and the
    last click, the number of clicks, the duration of the session in seconds, and the first and the last page.
    """
    from pyspark.sql import functions as sql

    grouped = (
        clicks.select("click.*")
        .withWatermark("at", watermark)
        .groupBy(sql.session_window("at", gap), "user")
        .agg(
            sql.min("at").alias("first"),
            sql.max("at").alias("last"),
            sql.count(sql.lit(1)).alias("clicks"),
            # If two clicks have the same time, the page that sorts first is the entry page, so that every run gives the
            # same result.
            sql.min(sql.struct("at", "page"))["page"].alias("entry"),
            sql.max(sql.struct("at", "page"))["page"].alias("exit"),
        )
    )
    seconds = (sql.unix_seconds("last") - sql.unix_seconds("first")).alias("seconds")
    fields = sql.struct("user", "first", "last", seconds, "clicks", "entry", "exit")
    return as_records(grouped, topic, "user", fields)


def writer(spark: SparkSession, options: Mapping[str, str]) -> DataStreamWriter:
    """Build the streaming query."""

    def sum_up(good: DataFrame) -> DataFrame:
        return sessions(good, gap=options["gap"], watermark=options["watermark"], topic=options["output"])

    return summed_up(
        spark, options, NAME, "click", parse_json("value", CLICK, required=("user", "at")), sum_up
    )


PIPELINE = Pipeline(
    name=NAME,
    summary="Derives user sessions from clicks, and writes each session to a topic when it has ended.",
    options=(
        PipelineOption("input", "Topic of clicks, JSON objects with user, page and at.", "clicks"),
        PipelineOption("output", "Topic of the sessions.", "sessions"),
        PipelineOption("gap", "How long a user must be inactive before the session ends.", "30 minutes"),
        PipelineOption("watermark", "Maximum lateness of clicks.", "10 minutes"),
        *READING,
    ),
    writer=writer,
    reads=("input",),
)
