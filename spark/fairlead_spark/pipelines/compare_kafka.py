"""Report that compares topics of a Kafka cluster with their copies by `from_kafka`, record by record.

A record and its copy are found by topic, partition and the offset in Kafka, which the copy has in its header
`kafka-offset`. The same header translates the committed offsets of groups: a group continues at the first copy of the
first record that the group has not read in Kafka.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from fairlead import TopicPartition
from fairlead.blocking import Admin
from fairlead_spark.option_values import TRUTHS
from fairlead_spark.pipelines import Findings, PipelineOption, PipelineOptionError, Report
from fairlead_spark.pipelines import kafka_cluster as kafka
from fairlead_spark.pipelines.topics import RETRY_TIMEOUT, names_in

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

NAME: Final = "compare_kafka"
PLACE: Final = ["topic", "partition"]
GROUPS: Final = PipelineOption(
    "groups", "Groups whose offsets are translated, names separated by commas; *: all; empty: none."
)
OFFSETS: Final = PipelineOption("offsets", "CSV file for the translated offsets; the driver writes it.")
COMMIT: Final = PipelineOption(
    "commit", "true: commit the translated offsets to the groups, which must have no members.", "false"
)
COLUMNS: Final = ("group", "topic", "partition", "kafka_offset", "offset")
"""Header line of the CSV file."""


@dataclass(frozen=True, slots=True)
class Translation:
    """Committed offset of a group in Kafka, and the offset at which the group continues in the copy."""

    group: str
    place: TopicPartition
    kafka_offset: int
    offset: int


def check(options: Mapping[str, str]) -> None:
    """Raise `PipelineOptionError` for options that are invalid regardless of the clusters."""
    kafka.check(NAME, options)
    if options[COMMIT.name] not in TRUTHS:
        message = (
            f"pipeline {NAME} has option {COMMIT.name}={options[COMMIT.name]!r}; it must be true or false"
        )
        raise PipelineOptionError(message)
    used = bool(options[OFFSETS.name]) or TRUTHS[options[COMMIT.name]]
    if used != bool(names_in(options[GROUPS.name])):
        message = f"pipeline {NAME} needs the option {GROUPS.name} together with {OFFSETS.name} or {COMMIT.name}=true"
        raise PipelineOptionError(message)


def findings(spark: SparkSession, options: Mapping[str, str]) -> Findings:
    """Compare all records, translate the offsets of the groups, and return the counts.

    Raises:
        InputNotFound: Kafka has no such topic. KafkaUnavailable: Kafka does not answer.
        FairleadError: the cluster does not answer, or refuses the offsets of a group.
    """
    cluster = kafka.KafkaCluster(spark, options)
    cluster.partitions()  # a query on a missing topic would wait for the topic
    committed = _committed(cluster, names_in(options[GROUPS.name]))
    copies = spark.read.format("fairlead").option("bootstrap", options["bootstrap"])
    copies = copies.option("subscribe", ",".join(cluster.topics)).option("includeHeaders", "true")
    pairs = pairs_of(cluster.records(), copies.load()).persist()
    try:
        counts = counts_of(pairs)
        translations = translated(spark, pairs, committed)
    finally:
        pairs.unpersist()
    fault = _fault(counts)
    if options[OFFSETS.name]:
        _write(Path(options[OFFSETS.name]), translations)
    if TRUTHS[options[COMMIT.name]] and fault is None:
        _commit(options["bootstrap"], translations)
    return Findings({**counts, "translated_offsets": len(translations)}, fault)


def pairs_of(records: DataFrame, copies: DataFrame) -> DataFrame:
    """Return a row for each offset in Kafka that Kafka's records or the copies have.

    A row has the hash of the record, the offsets of its first and last copy, the number of copies, and the least and
    greatest hash of the copies. The offset in Kafka is null in the row of records that another program wrote.
    """
    from pyspark.sql import functions as sql

    timed = records.withColumn("timestamp", kafka.timestamp())
    originals = timed.select(
        *PLACE, timed["offset"].alias("kafka_offset"), kafka.content("headers").alias("original")
    )
    marked = copies.select(
        *PLACE,
        kafka.offset_of_copy().alias("kafka_offset"),
        "offset",
        kafka.content("slice(headers, 1, greatest(size(headers) - 1, 0))").alias("copy"),
    )
    grouped = marked.groupBy(*PLACE, "kafka_offset").agg(
        sql.min("offset").alias("first"),
        sql.max("offset").alias("last"),
        sql.count(sql.lit(1)).alias("copies"),
        sql.min("copy").alias("least"),
        sql.max("copy").alias("greatest"),
    )
    return originals.join(grouped, [*PLACE, "kafka_offset"], "full")


def counts_of(pairs: DataFrame) -> dict[str, int]:
    """Return the numbers of records in Kafka, of their copies, and of each kind of difference."""
    from pyspark.sql import functions as sql

    in_kafka, copied = sql.col("original").isNotNull(), sql.col("copies").isNotNull()
    marked = sql.col("kafka_offset").isNotNull()
    missing = in_kafka & ~copied
    changed = (sql.col("original") != sql.col("least")) | (sql.col("original") != sql.col("greatest"))
    places = pairs.groupBy(*PLACE).agg(
        sql.count_if(in_kafka).alias("records"),
        sql.count_if(in_kafka & copied).alias("copied"),
        sql.count_if(missing).alias("missing"),
        sql.count_if(in_kafka & copied & changed).alias("changed"),
        sql.sum(sql.when(marked & copied, sql.col("copies") - 1)).alias("repeated"),
        sql.count_if(marked & ~in_kafka).alias("deleted_in_kafka"),
        sql.sum(sql.when(~marked, sql.col("copies"))).alias("of_other_programs"),
        sql.min(sql.when(missing, sql.col("kafka_offset"))).alias("first_missing"),
        sql.max(sql.when(copied, sql.col("kafka_offset"))).alias("last_copied"),
    )
    totals: dict[str, int] = dict.fromkeys(
        (
            *("records", "copied", "missing", "not_copied_yet", "changed", "repeated", "deleted_in_kafka"),
            "of_other_programs",
        ),
        0,
    )
    for place in places.collect():
        row = place.asDict()
        if row["missing"] and row["first_missing"] > (
            -1 if row["last_copied"] is None else row["last_copied"]
        ):
            row["not_copied_yet"], row["missing"] = row["missing"], 0
        for name in totals:
            totals[name] += row.get(name) or 0
    return totals


def _fault(counts: Mapping[str, int]) -> str | None:
    wrong = [
        f"{counts[name]:,} {words}"
        for name, words in (
            ("missing", "missing"),
            ("not_copied_yet", "not copied yet"),
            ("changed", "changed"),
        )
        if counts[name]
    ]
    return f"of {counts['records']:,} records in Kafka, {', '.join(wrong)}" if wrong else None


def _committed(cluster: kafka.KafkaCluster, groups: list[str]) -> list[tuple[str, TopicPartition, int]]:
    names = cluster.groups() if groups == ["*"] else groups
    return [
        (group, place, offset) for group in names for place, offset in cluster.group_offsets(group).items()
    ]


def translated(
    spark: SparkSession, pairs: DataFrame, committed: Iterable[tuple[str, TopicPartition, int]]
) -> list[Translation]:
    """Return the offset of each group's next record in the copy, or after the last copy if there is no next record.

    A batch that was written twice has its records at two places, so the first place is used: the group may read records
    again, but never misses one.
    """
    from pyspark.sql import functions as sql

    wanted = list(committed)
    places = sorted({(place.topic, place.partition, offset) for _, place, offset in wanted})
    if not places:
        return []
    positions = spark.createDataFrame(places, "topic string, partition int, position bigint")
    next_record = sql.min(sql.when(sql.col("kafka_offset") >= sql.col("position"), sql.col("first")))
    after_last = sql.max(sql.when(sql.col("kafka_offset").isNotNull(), sql.col("last"))) + 1
    found = (
        pairs.join(sql.broadcast(positions), PLACE)
        .groupBy(*PLACE, "position")
        .agg(sql.coalesce(next_record, after_last).alias("offset"))
    )
    # A partition without copies has no row, or a null offset: its group begins at the first record.
    offsets = {(row.topic, row.partition, row.position): row.offset or 0 for row in found.collect()}
    return sorted(
        (
            Translation(group, place, offset, offsets.get((place.topic, place.partition, offset), 0))
            for group, place, offset in wanted
        ),
        key=lambda each: (each.group, each.place.topic, each.place.partition),
    )


def _write(path: Path, translations: Iterable[Translation]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        lines = csv.writer(file, lineterminator="\n")
        lines.writerow(COLUMNS)
        for each in translations:
            lines.writerow(
                (each.group, each.place.topic, each.place.partition, each.kafka_offset, each.offset)
            )


def _commit(bootstrap: str, translations: Iterable[Translation]) -> None:
    groups: dict[str, dict[TopicPartition, int]] = {}
    for each in translations:
        groups.setdefault(each.group, {})[each.place] = each.offset
    with Admin(bootstrap, retry_timeout=RETRY_TIMEOUT) as admin:
        for group, offsets in groups.items():
            admin.commit_group_offsets(group, offsets)


REPORT = Report(
    name=NAME,
    summary="Compares topics of Kafka with their copies by from_kafka, and translates the offsets of groups.",
    options=(kafka.TOPICS, kafka.KAFKA, kafka.KAFKA_CONFIG, GROUPS, OFFSETS, COMMIT),
    findings=findings,
    check=check,
    reads=(kafka.TOPICS.name,),
)
