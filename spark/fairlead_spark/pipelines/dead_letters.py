"""Dead letters: records that a pipeline cannot use, written unchanged to a separate topic with the reason.

    parsed, reason = parse_json("value", "user STRING, at TIMESTAMP", required=("user", "at"))
    good, letters = split(records.withColumn("click", parsed), reason, pipeline="sessions", topic="clicks.dead-letters")

`letters` is written to the same sink as the results of `good`, so that one checkpoint covers the results and the dead
letters.

A separate query for dead letters would need its own checkpoint, and `foreachBatch` runs after the aggregation, when
individual records are no longer available.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from fairlead_spark.pipelines import PipelineOption

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

DEAD_LETTERS = PipelineOption(
    "deadLetters",
    "Topic for records that cannot be parsed; empty: the name of the input with the suffix .dead-letters.",
)
SUFFIX = ".dead-letters"
OBSERVATION = "input"
"""Name of the observation that contains the numbers of `records` and `dead_letters` of a batch, in the field
`observedMetrics` of the query's progress."""
CORRUPT = "_corrupt"
HEADER_PREFIX = "dead-letter."
ORIGIN = ("topic", "partition", "offset")
YEAR_1_US = -62_135_596_800_000_000
YEAR_10000_US = 253_402_300_800_000_000
"""First microsecond after the allowed times; brokers apply the same limit to records. Later times would overflow in
Spark's windows and stop the query, and a time given in milliseconds instead of seconds would move the watermark past
all later records."""


def dead_letter_topic(options: Mapping[str, str], source: str) -> str:
    """Return the topic for dead letters: the option, else the name of the input with the suffix `.dead-letters`."""
    return options[DEAD_LETTERS.name] or source + SUFFIX


def parse_json(column: str, ddl: str, *, required: Sequence[str] = ()) -> tuple[Column, Column]:
    """Return two columns for a column with JSON objects as bytes: the parsed object, and the reason if it is invalid.

    `ddl` lists the fields and their types in Spark's notation ("user STRING, at TIMESTAMP"); other fields are dropped,
    and missing fields are null. The reason is null if the object is valid JSON and has every field of `required`, no
    TIMESTAMP outside the years 1 to 9999, and no DOUBLE or FLOAT that is not finite.
    """
    from pyspark.sql import functions as sql
    from pyspark.sql.types import DoubleType, FloatType, StructType, TimestampType

    options = {"columnNameOfCorruptRecord": CORRUPT, "timeZone": "UTC"}
    parsed = sql.from_json(sql.col(column).cast("string"), f"{ddl}, {CORRUPT} STRING", options)
    fields = StructType.fromDDL(ddl)
    assert isinstance(fields, StructType), "the DDL describes a structure"

    def reason_of(found: Column) -> Column:
        corrupt = found.isNull() | found[CORRUPT].isNotNull()
        reason = sql.when(corrupt, f"no JSON object with the fields {ddl}")
        for name in required:
            reason = reason.when(found[name].isNull(), f"no field {name}")
        for field in fields:
            if isinstance(field.dataType, TimestampType):
                inside = sql.unix_micros(found[field.name]).between(YEAR_1_US, YEAR_10000_US - 1)
                reason = reason.when(~inside, f"field {field.name} is not in the years 1 to 9999")
            elif isinstance(field.dataType, DoubleType | FloatType):
                finite = sql.abs(found[field.name]) < sql.lit(float("inf"))
                reason = reason.when(~finite, f"field {field.name} is not a finite number")
        return reason

    reason = sql.when(sql.col(column).isNull(), "no value").otherwise(computed_once(parsed, reason_of))
    return parsed, reason


def computed_once(value: Column, use: Callable[[Column], Column]) -> Column:
    """Return an expression that uses a value several times, such as a parsed object, and computes the value once.

    Spark computes a column again for each use in a condition: a reason with seven conditions would parse each record
    seven times. The variable of a lambda expression is computed once.
    """
    from pyspark.sql import functions as sql

    return sql.transform(sql.array(value), use)[0]


def split(records: DataFrame, reason: Column, *, pipeline: str, topic: str) -> tuple[DataFrame, DataFrame]:
    """Return the records whose reason is null, unchanged, and the dead letters with topic, key, value and headers.

    `records` must have at least the columns key, value, topic, partition and offset. A dead letter has the key and
    value of the record, and the headers `dead-letter.reason`, `.pipeline`, `.topic`, `.partition` and `.offset`.
    """
    from pyspark.sql import functions as sql

    marked = records.withColumn("_reason", reason)
    good = marked.where(sql.col("_reason").isNull()).drop("_reason")
    # Records are counted only in the branch of dead letters, since both branches of the query read every record.
    counted = marked.observe(
        OBSERVATION, sql.count(sql.lit(1)).alias("records"), sql.count("_reason").alias("dead_letters")
    )
    texts = {"reason": sql.col("_reason"), "pipeline": sql.lit(pipeline)}
    texts |= {name: sql.col(name).cast("string") for name in ORIGIN}
    headers = sql.array(
        *[
            sql.struct(sql.lit(HEADER_PREFIX + name).alias("key"), text.cast("binary").alias("value"))
            for name, text in texts.items()
        ]
    )
    dead = counted.where(sql.col("_reason").isNotNull())
    return good, dead.select(sql.lit(topic).alias("topic"), "key", "value", headers.alias("headers"))


def without_headers(records: DataFrame) -> DataFrame:
    """Return the topic, key, value and null headers of records, so that a union with dead letters is possible."""
    from pyspark.sql import functions as sql

    none = sql.lit(None).cast("array<struct<key:string,value:binary>>")
    return records.select("topic", "key", "value", none.alias("headers"))
