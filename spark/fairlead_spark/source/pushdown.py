"""Filters of Spark that leave out what need not be read: on topic, partition, offset and time.

Only with the option `pushdown`: while `spark.sql.python.filterPushdown.enabled` is false, Spark refuses every read of
a reader that takes filters. Streams are never given any. And only where Spark keeps the reads of one frame apart, or
they would get each other's rows.
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
"""Whether a read that a filter narrowed is that of its own scan alone; the limit came to Spark together with that.

Spark 4 keeps it with the frame that was loaded: a scan without a filter, and every other one of the same query, reads
what the last filter left.
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
"""Filters that a narrowed read fulfils, so that Spark need not look again."""
_PARTLY: Final[dict[tuple[type[Filter], str], _Step]] = {
    (GreaterThan, "timestamp"): lambda bounds, value: bounds.times_from(_microseconds(value)),
    (GreaterThanOrEqual, "timestamp"): lambda bounds, value: bounds.times_from(_microseconds(value)),
    (EqualTo, "timestamp"): lambda bounds, value: bounds.times_from(_microseconds(value)),
}
"""Filters that only tell where to begin: behind an older record may be a newer one, and another older one."""


def reader_of(options: ReadOptions) -> BatchReader:
    """Return a reader that takes filters, where no other read can get what they leave."""
    if KEEPS_READS_APART:
        return PushdownReader(options)
    _LOG.warning("pushdown=true does nothing with this release of Spark; bound the read by offsets or times")
    return BatchReader(options)


class PushdownReader(BatchReader):
    """A batch reader that takes filters."""

    _bounds = Narrowing()

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Take the filters that narrow the read, and return the filters that Spark must apply."""
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
        """Return what the filters leave of the ranges."""
        at_time: StreamOffsets | None = None
        if self._bounds.timestamp_min_us is not None:
            at_time = view.offsets(AtTime(self._bounds.timestamp_min_us // 1000), "startingTimestamp")
        return self._bounds.applied(ranges, at_time)


def _column_of(given: Filter) -> str:
    path: tuple[str, ...] = getattr(given, "attribute", ())
    return path[0] if len(path) == 1 else ""


def _microseconds(value: datetime) -> int:
    moment = value if value.tzinfo is not None else value.astimezone()
    return (moment - _EPOCH) // timedelta(microseconds=1)
