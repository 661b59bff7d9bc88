"""Pipeline that writes topics to a Delta table, each record exactly once, partitioned by the day of its timestamp.

The checkpoint records the offsets of a batch before the batch is read, and the table records which batches it contains.
If the query stops at any point, the interrupted batch is either written again or skipped as a whole. If two queries
with separate checkpoints write the same topic to one table, every record is duplicated.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from fairlead_spark.pipelines import Pipeline, PipelineOption, PipelineOptionError
from fairlead_spark.pipelines.topics import (
    MAX_OFFSETS,
    MIN_PARTITIONS,
    STARTING_OFFSETS,
    names_in,
    read_topics,
    require_topics,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

NAME = "topic_to_delta"
TRUTHS = ("true", "false")
UPKEEP = {"compactEvery": 1, "vacuumHours": 168}
"""Options for small and old files of the table, each with its minimum value, as in `format("fairlead-delta")`."""
# The day is computed in UTC, independent of the time zone of the session. Brokers accept only timestamps in the years 1
# to 9999, so every day is a readable partition.
DAY = "date_from_unix_date(CAST(floor(unix_seconds(timestamp) / 86400) AS INT))"


def rows(records: DataFrame, *, text: bool, headers: bool) -> DataFrame:
    """Return the rows of the table for records: contents, position, timestamp, and day in UTC.

    With `text`, bytes that are not UTF-8 are replaced by U+FFFD, since a single invalid string makes a whole Parquet
    column unreadable.
    """
    from pyspark.sql import functions as sql

    contents = [
        sql.make_valid_utf8(sql.col(name).cast("string")).alias(name) if text else sql.col(name)
        for name in ("key", "value")
    ]
    kept = ["topic", "partition", "offset", "timestamp"] + ["headers"] * headers
    return records.select(*contents, *kept, sql.expr(DAY).alias("date"))


def store_options(text: str) -> dict[str, str]:
    """Parse the options of the object store from `NAME=VALUE` pairs separated by commas.

    Raises:
        PipelineOptionError: a part has no name or no value.
    """
    found = {}
    for number, part in enumerate(names_in(text), 1):
        name, sign, value = part.partition("=")
        if not (name and sign):
            # The message shows no values: values may be secrets, and a part between two commas may belong to a secret.
            message = (
                f"pipeline {NAME} has option storage, whose part {number} is not NAME=VALUE; "
                "it must be NAME=VALUE pairs separated by commas"
            )
            raise PipelineOptionError(message)
        found[f"storage.{name}"] = value
    return found


def check(options: Mapping[str, str]) -> None:
    """Raise `PipelineOptionError` for options that are invalid regardless of the cluster."""
    if not names_in(options["topics"]):
        message = f"pipeline {NAME} needs a name in the option topics"
        raise PipelineOptionError(message)
    for name in ("text", "headers"):
        if options[name] not in TRUTHS:
            message = f"pipeline {NAME} has option {name}={options[name]!r}; it must be true or false"
            raise PipelineOptionError(message)
    store_options(options["storage"])
    for name, least in UPKEEP.items():
        if options[name] and not (options[name].isdecimal() and int(options[name]) >= least):
            message = f"pipeline {NAME} has option {name}={options[name]!r}; it must be a whole number, {least} or more"
            raise PipelineOptionError(message)
    if options["vacuumHours"] and not options["compactEvery"]:
        message = f"pipeline {NAME} has option vacuumHours, which needs the option compactEvery"
        raise PipelineOptionError(message)


def writer(spark: SparkSession, options: Mapping[str, str]) -> DataStreamWriter:
    """Build the streaming query."""
    names = names_in(options["topics"])
    require_topics(options["bootstrap"], names)
    headers = options["headers"] == "true"
    records = read_topics(spark, options, ",".join(names), headers=headers)
    table = rows(records, text=options["text"] == "true", headers=headers)
    upkeep = {name: options[name] for name in UPKEEP if options[name]}
    return (
        table.writeStream.format("fairlead-delta")
        .option("path", options["path"])
        .option("partitionBy", "date")
        # The column `headers` is added to a table that was created without it.
        .option("mergeSchema", "true")
        .options(**upkeep, **store_options(options["storage"]))
        .outputMode("append")
    )


PIPELINE = Pipeline(
    name=NAME,
    summary="Writes topics to a Delta table, each record exactly once, partitioned by day.",
    options=(
        PipelineOption("topics", "Topics to read, names separated by commas.", None),
        PipelineOption(
            "path", "Location of the table: an absolute folder, or a URI such as s3://BUCKET/TABLE.", None
        ),
        PipelineOption(
            "text", "true: key and value are text, with U+FFFD for invalid UTF-8; false: bytes.", "false"
        ),
        PipelineOption("headers", "true: the table also has a column with the headers of records.", "false"),
        PipelineOption(
            "storage",
            "Options of the object store, NAME=VALUE pairs separated by commas; secrets are safer in the environment.",
        ),
        PipelineOption(
            "compactEvery", "Batches after which small files are joined into larger ones; empty: never."
        ),
        PipelineOption(
            "vacuumHours",
            "Age, 168 or more, at which files of older versions are deleted after a compaction; empty: never.",
        ),
        STARTING_OFFSETS,
        MAX_OFFSETS,
        MIN_PARTITIONS,
    ),
    writer=writer,
    check=check,
    reads=("topics",),
)
