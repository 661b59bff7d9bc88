"""Records that a pipeline cannot use: kept as they are in a topic of their own, with the reason, and counted.

    parsed, reason = parse_json("value", "user STRING, at TIMESTAMP", required=("user", "at"))
    good, letters = split(records.withColumn("click", parsed), reason, pipeline="sessions", topic="clicks.dead-letters")

`letters` goes into the same sink as what becomes of `good`, so that one checkpoint holds for both.

A second query would need a checkpoint of its own, and `foreachBatch` stands behind the aggregation, where the records
are gone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from fairlead_spark.pipelines import PipelineOption

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

DEAD_LETTERS = PipelineOption(
    "deadLetters",
    "Topic for records that do not parse; empty: that of the input with .dead-letters behind it.",
)
SUFFIX = ".dead-letters"
OBSERVATION = "input"
"""Under this name each batch reports `records`, all that it read, and `dead_letters`, those among them it could not
use (`observedMetrics` of the query's progress)."""
CORRUPT = "_corrupt"
HEADER_PREFIX = "dead-letter."
ORIGIN = ("topic", "partition", "offset")
YEAR_1_US = -62_135_596_800_000_000
YEAR_10000_US = 253_402_300_800_000_000
"""As brokers bound the times of records. Of others Spark makes windows that overflow, which would end the query, and a
number of milliseconds in place of seconds would move the watermark behind all that comes after it."""


def dead_letter_topic(options: Mapping[str, str], source: str) -> str:
    """Return where dead letters go: the option, else the input's name with `.dead-letters` behind it."""
    return options[DEAD_LETTERS.name] or source + SUFFIX


def parse_json(column: str, ddl: str, *, required: Sequence[str] = ()) -> tuple[Column, Column]:
    """Return two columns for a column of bytes that should be JSON objects: the object, and the reason if it is none.

    `ddl` names the fields and their types as Spark does ("user STRING, at TIMESTAMP"); other fields are left out, and
    missing fields are null. The reason is null if the object parsed, has every field of `required`, no TIMESTAMP
    outside of the years 1 to 9999, and no DOUBLE or FLOAT that is not finite.
    """
    from pyspark.sql import functions as sql
    from pyspark.sql.types import DoubleType, FloatType, StructType, TimestampType

    options = {"columnNameOfCorruptRecord": CORRUPT, "timeZone": "UTC"}
    parsed = sql.from_json(sql.col(column).cast("string"), f"{ddl}, {CORRUPT} STRING", options)
    reason = sql.when(sql.col(column).isNull(), "no value")
    reason = reason.when(
        parsed.isNull() | parsed[CORRUPT].isNotNull(), f"no JSON object with the fields {ddl}"
    )
    for name in required:
        reason = reason.when(parsed[name].isNull(), f"no field {name}")
    fields = StructType.fromDDL(ddl)
    assert isinstance(fields, StructType), "fields are asked for"
    for field in fields:
        if isinstance(field.dataType, TimestampType):
            inside = sql.unix_micros(parsed[field.name]).between(YEAR_1_US, YEAR_10000_US - 1)
            reason = reason.when(~inside, f"field {field.name} is not in the years 1 to 9999")
        elif isinstance(field.dataType, DoubleType | FloatType):
            finite = sql.abs(parsed[field.name]) < sql.lit(float("inf"))
            reason = reason.when(~finite, f"field {field.name} is no finite number")
    return parsed, reason


def split(records: DataFrame, reason: Column, *, pipeline: str, topic: str) -> tuple[DataFrame, DataFrame]:
    """Return the records without a reason, as they are, and the dead letters for the sink: topic, key, value, headers.

    `records` has at least key, value, topic, partition and offset. A dead letter has the key and value of the record,
    and in its headers `dead-letter.reason`, `.pipeline`, `.topic`, `.partition` and `.offset`.
    """
    from pyspark.sql import functions as sql

    told = records.withColumn("_reason", reason)
    good = told.where(sql.col("_reason").isNull()).drop("_reason")
    # Counted on this side alone: both sides see every record.
    counted = told.observe(
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
    """Return topic, key and value of records with an empty column of headers, to be put together with dead letters."""
    from pyspark.sql import functions as sql

    none = sql.lit(None).cast("array<struct<key:string,value:binary>>")
    return records.select("topic", "key", "value", none.alias("headers"))
