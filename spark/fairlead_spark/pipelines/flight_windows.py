"""Pipeline that counts the flights and delays of each carrier in windows of event time.

A flight counts in the window of its `time_hour` until the watermark has passed the end of the window. The watermark is
the latest observed time minus the option `watermark`. Each window is written once, when the watermark has passed its
end. Flights of a window that arrive after the window was written are dropped and counted.
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

NAME = "flight_windows"
FLIGHT = "carrier STRING, dep_delay DOUBLE, time_hour TIMESTAMP"


def windows(flights: DataFrame, *, length: str, watermark: str, topic: str) -> DataFrame:
    """Return a record for each carrier and window, with the carrier as the key and a JSON object as the value.

    `flights` has a column `flight` with the fields of a flight. In the JSON objects, `flights` is the number of
    flights, `delayed` is the number of flights with a known departure delay, and `minutes` is the sum of these delays.
    """
    from pyspark.sql import functions as sql

    grouped = (
        flights.select("flight.*")
        .withWatermark("time_hour", watermark)
        .groupBy(sql.window("time_hour", length), "carrier")
        .agg(
            sql.count(sql.lit(1)).alias("flights"),
            sql.count("dep_delay").alias("delayed"),
            sql.coalesce(sql.sum("dep_delay"), sql.lit(0.0)).alias("minutes"),
        )
    )
    fields = sql.struct(
        "carrier",
        sql.col("window.start").alias("window_start"),
        sql.col("window.end").alias("window_end"),
        "flights",
        "delayed",
        "minutes",
    )
    return as_records(grouped, topic, "carrier", fields)


def writer(spark: SparkSession, options: Mapping[str, str]) -> DataStreamWriter:
    """Build the streaming query."""

    def sum_up(good: DataFrame) -> DataFrame:
        return windows(
            good, length=options["window"], watermark=options["watermark"], topic=options["output"]
        )

    return summed_up(
        spark, options, NAME, "flight", parse_json("value", FLIGHT, required=("carrier", "time_hour")), sum_up
    )


PIPELINE = Pipeline(
    name=NAME,
    summary="Counts flights and delays per carrier and hour of event time, including late flights.",
    options=(
        PipelineOption(
            "input", "Topic of flights, JSON objects with carrier, time_hour and dep_delay.", "flights"
        ),
        PipelineOption("output", "Topic of the windows.", "flight-windows"),
        PipelineOption("window", "Length of a window.", "1 hour"),
        PipelineOption("watermark", "Maximum lateness of flights.", "2 hours"),
        *READING,
    ),
    writer=writer,
    reads=("input",),
)
