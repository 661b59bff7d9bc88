"""The newest row of each key of a compacted topic, as a Spark plan.

A source in Python returns rows, and cannot add an aggregation to the plan. Programs therefore pass the frame of a read
to `latest_by_key`, and Spark computes the newest rows: tasks reduce their rows before the exchange. The module must not
depend on the source.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F  # noqa: N812 - the usual name

from fairlead_spark.option_values import OptionError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

KEY: Final = ("topic", "partition", "key")
"""Columns that identify a key: equal keys are in the same partition, which gives their records an order."""
_NEEDED: Final = (*KEY, "value", "offset")
_NEWEST: Final = "_newest"


def latest_by_key(frame: DataFrame, *, deleted: bool = False) -> DataFrame:
    """Return the row with the highest offset of each key, with the columns of the frame.

    `frame` is a batch read of `format("fairlead")`, or a micro-batch of a stream. Records without a key are left out.
    `deleted`: whether keys whose newest record is a tombstone have a row, with a null value. Raises `OptionError` if a
    needed column is missing.
    """
    missing = [name for name in _NEEDED if name not in frame.columns]
    if missing:
        raise OptionError(
            "columns", ",".join(frame.columns), f"the columns {', '.join(_NEEDED)} for latest_by_key"
        )
    rest = [name for name in frame.columns if name not in KEY]
    newest = (
        frame.where(F.col("key").isNotNull())
        .groupBy(*KEY)
        .agg(F.max_by(F.struct(*rest), F.col("offset")).alias(_NEWEST))
    )
    rows = newest.select(
        *(F.col(name) if name in KEY else F.col(f"{_NEWEST}.{name}").alias(name) for name in frame.columns)
    )
    return rows if deleted else rows.where(F.col("value").isNotNull())
