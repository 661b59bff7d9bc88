"""Pipeline that copies topics to another cluster, at least once, with keys, values, headers, times and partitions.

The target cluster assigns its own offsets. If the pipeline stops in the middle of a batch, records of the batch may be
written twice. Apart from duplicates, the order of records within a partition is kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from fairlead_spark.pipelines import Pipeline, PipelineOption, PipelineOptionError
from fairlead_spark.pipelines.topics import (
    MAX_OFFSETS,
    STARTING_OFFSETS,
    WHOLE_RECORDS,
    cluster_id,
    ensure_topics,
    names_in,
    read_topics,
    require_topics,
    write_topics,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

NAME = "mirror"


def check(options: Mapping[str, str]) -> None:
    """Raise `PipelineOptionError` if the mirror would read its own copies."""
    if not names_in(options["topics"]):
        message = "pipeline mirror needs a name in the option topics"
        raise PipelineOptionError(message)
    here, there = set(names_in(options["bootstrap"])), set(names_in(options["target"]))
    if here & there and not options["prefix"]:
        message = (
            f"pipeline mirror would write into the topics that it reads: {', '.join(sorted(here & there))} is in"
            " bootstrap and in target; name another cluster, or give the copies a prefix"
        )
        raise PipelineOptionError(message)


def refuse_itself(options: Mapping[str, str]) -> None:
    """Raise an error if the source and the target have the same cluster id, regardless of their addresses.

    If the option `prefix` is set, the copies have other topic names and may be in the same cluster.

    Raises:
        PipelineOptionError: every pass would copy the topics into themselves. FairleadError: a cluster does not answer.
    """
    if options["prefix"]:
        return
    here, there = (cluster_id(options[name]) for name in ("bootstrap", "target"))
    if here == there:
        message = (
            f"pipeline mirror would write into the topics that it reads: {options['bootstrap']} and "
            f"{options['target']} are both cluster {here}; name another cluster, or give the copies a prefix"
        )
        raise PipelineOptionError(message)


def writer(spark: SparkSession, options: Mapping[str, str]) -> DataStreamWriter:
    """Build the streaming query."""
    from pyspark.sql import functions as sql

    refuse_itself(options)
    names, prefix = names_in(options["topics"]), options["prefix"]
    partitions = require_topics(options["bootstrap"], names)
    copied = {prefix + name: count for name, count in partitions.items()}
    ensure_topics(options["target"], copied, WHOLE_RECORDS)
    records = read_topics(spark, options, ",".join(names), headers=True)
    copies = records.select(
        sql.concat(sql.lit(prefix), sql.col("topic")).alias("topic"),
        "partition",
        "key",
        "value",
        "headers",
        "timestamp",
    )
    return write_topics(copies, options["target"])


PIPELINE = Pipeline(
    name=NAME,
    summary="Copies topics to another cluster, with keys, partitions, headers and timestamps.",
    options=(
        PipelineOption("topics", "Topics to copy, names separated by commas.", None),
        PipelineOption("target", "Brokers of the target cluster, URLs separated by commas.", None),
        PipelineOption("prefix", "Prefix of the names of the copies."),
        STARTING_OFFSETS,
        MAX_OFFSETS,
    ),
    writer=writer,
    check=check,
    reads=("topics",),
)
