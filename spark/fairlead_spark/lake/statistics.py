"""What a Parquet file says of its columns, in the form in which Delta's log keeps it for readers that skip files.

Pure. A bound may be wider than the values and never narrower, or a reader would pass over records. Left out are bounds
of what has no order that all readers share: floats (a reader may order NaN above all numbers, Parquet's footers leave
it out), decimals (JSON would round them), binaries, booleans and what is inside of other columns.
"""

from __future__ import annotations

import json
from contextlib import suppress
from datetime import date, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pyarrow as pa

if TYPE_CHECKING:
    import pyarrow.parquet as pq

# As Delta's own writers: readers filter by the first columns, and every commit carries these texts.
COLUMNS_MAX = 32
# Longer texts are cut: the log holds bounds, not contents.
TEXT_LENGTH_MAX = 32
# Above every text that begins alike, in the order by code points that readers use.
ABOVE_ALL = "\U0010ffff"


def statistics_of(footer: pq.FileMetaData, schema: pa.Schema) -> str:
    """Return the statistics of one file, as the text in an `add` action of Delta's log."""
    nulls: dict[str, int] = {}
    least: dict[str, Any] = {}
    greatest: dict[str, Any] = {}
    for index, name in leaves(footer, schema)[:COLUMNS_MAX]:
        of_groups = [
            group.column(index).statistics for group in map(footer.row_group, range(footer.num_row_groups))
        ]
        known = [one for one in of_groups if one is not None and one.null_count is not None]
        if len(known) < len(of_groups):
            continue
        nulls[name] = sum(one.null_count or 0 for one in known)
        bounds = [one for one in known if one.num_values]
        if bounds and is_ordered(schema.field(name).type) and all(one.has_min_max for one in bounds):
            # Text that is not UTF-8, and days that Python's calendar does not have: bounds are of use, never needed.
            with suppress(ValueError, OverflowError):
                ends: list[Any] = [end for one in bounds for end in (one.min, one.max)]
                at_least, at_most = lower(min(ends)), upper(max(ends))
                least[name], greatest[name] = at_least, at_most
    return json.dumps(
        {"numRecords": footer.num_rows, "minValues": least, "maxValues": greatest, "nullCount": nulls}
    )


def leaves(footer: pq.FileMetaData, schema: pa.Schema) -> list[tuple[int, str]]:
    """Return the columns of a file that are columns of the table, by number and name.

    A name with a dot is passed over: a footer spells a column inside another one in the same way.
    """
    names = {field.name for field in schema if not pa.types.is_nested(field.type) and "." not in field.name}
    paths = [footer.schema.column(index).path for index in range(footer.num_columns)]
    return [(index, path) for index, path in enumerate(paths) if path in names]


def is_ordered(kind: pa.DataType) -> bool:
    """Whether all readers order values of this type alike."""
    return (
        pa.types.is_integer(kind)
        or pa.types.is_string(kind)
        or pa.types.is_date(kind)
        or pa.types.is_timestamp(kind)
    )


def lower(value: Any) -> int | str:
    """Return a bound that is not above `value`; moments have milliseconds in the log."""
    match value:
        case datetime():
            return moment(value)
        case date():
            return value.isoformat()
        case str():
            return value[:TEXT_LENGTH_MAX]
        case _:
            return int(value)


def upper(value: Any) -> int | str:
    """Return a bound that is not below `value`."""
    match value:
        case datetime():
            return moment(value + timedelta(microseconds=-value.microsecond % 1000))
        case str() if len(value) > TEXT_LENGTH_MAX:
            return value[:TEXT_LENGTH_MAX] + ABOVE_ALL
        case _:
            return lower(value)


def moment(value: datetime) -> str:
    """Return a moment with whole milliseconds, cut; with a Z when it has a zone, which is UTC."""
    text = value.replace(tzinfo=None).isoformat(timespec="milliseconds")
    return text + "Z" if value.tzinfo is not None else text
