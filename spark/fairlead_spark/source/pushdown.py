"""Pushdown of Spark's filters on topic, partition, offset and time.

Pushdown must be enabled with the option `pushdown`, since Spark refuses every read by a reader with filter support
while `spark.sql.python.filterPushdown.enabled` is false. Spark passes no filters to streams. Pushdown also requires a
release of Spark that separates the reads of one data frame; otherwise, a read could get the rows of another read.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from pyspark.sql.datasource import (
    DataSourceReader,
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
)

from fairlead_spark.options import ReadOptions
from fairlead_spark.planning.narrowing import Narrowing
from fairlead_spark.planning.offsets import StreamOffsets
from fairlead_spark.planning.positions import AtTime
from fairlead_spark.planning.ranges import OffsetRange
from fairlead_spark.source.cluster_view import ClusterView
from fairlead_spark.source.readers import BatchReader

_LOG: Final = logging.getLogger("fairlead.spark")

KEEPS_READS_APART: Final = hasattr(DataSourceReader, "pushLimit")
"""Whether Spark uses a read with filters for one scan only, as in releases that have `pushLimit`.

Spark 4 stores the filtered read in the loaded data frame. With pushdown in Spark 4, other scans in the same query, even
scans without a filter, would read only the records that match the last filter.
"""
NEVER_NULL: Final = {"topic", "partition", "offset", "timestamp", "timestampType"}
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

_Step = Callable[[Narrowing, Any], Narrowing]
_EXACT: Final[dict[tuple[type[Filter], str], _Step]] = {
    (EqualTo, "topic"): lambda bounds, value: bounds.only_topics([value]),
    (EqualNullSafe, "topic"): lambda bounds, value: bounds.only_topics([value]),
    (In, "topic"): lambda bounds, values: bounds.only_topics(values),
    (EqualTo, "partition"): lambda bounds, value: bounds.only_partitions([value]),
    (EqualNullSafe, "partition"): lambda bounds, value: bounds.only_partitions([value]),
    (In, "partition"): lambda bounds, values: bounds.only_partitions(values),
    (EqualTo, "offset"): lambda bounds, value: bounds.offsets_from(value).offsets_before(value + 1),
    (GreaterThan, "offset"): lambda bounds, value: bounds.offsets_from(value + 1),
    (GreaterThanOrEqual, "offset"): lambda bounds, value: bounds.offsets_from(value),
    (LessThan, "offset"): lambda bounds, value: bounds.offsets_before(value),
    (LessThanOrEqual, "offset"): lambda bounds, value: bounds.offsets_before(value + 1),
}
"""Filters that a restricted read satisfies completely, so that Spark need not apply these filters again."""
_PARTLY: Final[dict[tuple[type[Filter], str], _Step]] = {
    (GreaterThan, "timestamp"): lambda bounds, value: bounds.times_from(_microseconds(value)),
    (GreaterThanOrEqual, "timestamp"): lambda bounds, value: bounds.times_from(_microseconds(value)),
    (EqualTo, "timestamp"): lambda bounds, value: bounds.times_from(_microseconds(value)),
}
"""Filters that only decide where a read begins: older records may follow newer records, so Spark must apply these
filters again."""


def reader_of(options: ReadOptions, *, of_table: bool) -> BatchReader:
    """Return a reader with filter support if Spark separates reads, else a reader without filter support."""
    if KEEPS_READS_APART:
        return PushdownReader(options, of_table=of_table)
    _LOG.warning("pushdown=true has no effect in this release of Spark; bound the read by offsets or times")
    return BatchReader(options, of_table=of_table)


class PushdownReader(BatchReader):
    """A batch reader with filter support."""

    _bounds = Narrowing()

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Store the filters that restrict the read; yield the filters that Spark must still apply."""
        for given in filters:
            column = _column_of(given)
            if isinstance(given, IsNotNull) and column in NEVER_NULL:
                continue
            kind = (type(given), column)
            value = getattr(given, "value", None)
            if value is not None and kind in _EXACT:
                self._bounds = _EXACT[kind](self._bounds, value)
                continue
            if value is not None and kind in _PARTLY:
                self._bounds = _PARTLY[kind](self._bounds, value)
            yield given

    def narrowed(self, view: ClusterView, ranges: Sequence[OffsetRange]) -> Sequence[OffsetRange]:
        """Return the ranges restricted by the stored filters."""
        at_time: StreamOffsets | None = None
        if self._bounds.timestamp_min_us is not None:
            at_time = view.offsets(AtTime(self._bounds.timestamp_min_us // 1000), "timestamp")
        return self._bounds.applied(ranges, at_time)


def _column_of(given: Filter) -> str:
    path: tuple[str, ...] = getattr(given, "attribute", ())
    return path[0] if len(path) == 1 else ""


def _microseconds(value: datetime) -> int:
    moment = value if value.tzinfo is not None else value.astimezone()
    return (moment - _EPOCH) // timedelta(microseconds=1)
