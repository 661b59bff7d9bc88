"""Column statistics of a Parquet file, in the format of the Delta log. Readers use statistics to skip files.

The module does no I/O. Bounds may be wider than the range of the values but never narrower: with narrower bounds,
readers would skip records. Binary and nested columns get no bounds. A file gets no bounds at all if a column has values
that readers may order differently (floats with NaN or infinity: readers may order NaN above all numbers, and Parquet
footers omit NaN), or decimals that JSON would round.
"""

from __future__ import annotations

import json
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    import pyarrow.parquet as pq

Bound: TypeAlias = int | float | str

# Maximum number of columns with statistics, as in Delta's own writers: readers mostly filter by the first columns, and
# statistics make every commit larger.
COLUMNS_MAX = 32
# Table properties that declare which columns have bounds, instead of the first 32 columns.
INDEXED_COLUMNS = "delta.dataSkippingNumIndexedCols"
STATS_COLUMNS = "delta.dataSkippingStatsColumns"
# Maximum length of a string in a bound. Longer strings are truncated, since the log should not contain whole values.
TEXT_LENGTH_MAX = 32
# Suffix of a truncated string, which then sorts above every string with the same prefix in the readers' code point
# order.
ABOVE_ALL = "\U0010ffff"


def statistics_of(footer: pq.FileMetaData, schema: pa.Schema, endless: Collection[str] = frozenset()) -> str:
    """Return the statistics of one file as JSON text for an `add` action in Delta's log.

    `endless` contains the names of the columns with NaN or infinity.
    """
    nulls: dict[str, int] = {}
    ends: dict[str, tuple[Any, Any]] = {}
    bounded = True
    places = leaves(footer, schema)
    for name in flat(schema)[:COLUMNS_MAX]:
        if name not in places:
            bounded = False
            continue
        of_groups = [
            group.column(places[name]).statistics
            for group in map(footer.row_group, range(footer.num_row_groups))
        ]
        known = [one for one in of_groups if one is not None and one.null_count is not None]
        if len(known) == len(of_groups):
            nulls[name] = sum(one.null_count or 0 for one in known)
        if nulls.get(name) == footer.num_rows or pa.types.is_binary(schema.field(name).type):
            continue
        found = (
            None if name in endless else ends_of([one for one in of_groups if one is None or one.num_values])
        )
        if found is None:
            bounded = False
        else:
            ends[name] = found
    document: dict[str, Any] = {"numRecords": footer.num_rows, "nullCount": nulls}
    if bounded:
        document["minValues"] = {name: least for name, (least, _) in ends.items()}
        document["maxValues"] = {name: greatest for name, (_, greatest) in ends.items()}
    return json.dumps(document)


def are_enough(columns: int, properties: Mapping[str, str]) -> bool:
    """Return whether bounds for the first `COLUMNS_MAX` columns are enough for readers of a table."""
    if columns <= COLUMNS_MAX:
        return True
    return (
        STATS_COLUMNS not in properties
        and 0 <= int(properties.get(INDEXED_COLUMNS, COLUMNS_MAX)) <= COLUMNS_MAX
    )


def without_bounds(statistics: str) -> str:
    """Return the statistics of a file reduced to the number of records and the numbers of nulls."""
    document = json.loads(statistics)
    return json.dumps({name: document[name] for name in ("numRecords", "nullCount")})


def endless_columns(rows: pa.Table) -> set[str]:
    """Return the names of the columns that contain NaN or infinity."""
    return {
        field.name
        for field in rows.schema
        if pa.types.is_floating(field.type)
        and pc.call_function("all", [pc.call_function("is_finite", [rows[field.name]])]).as_py() is False
    }


def ends_of(groups: Sequence[pq.Statistics | None]) -> tuple[Bound, Bound] | None:
    """Return the bounds of a column from the statistics of its row groups; None if a row group has no statistics."""
    try:
        found = [one for one in groups if one is not None and one.has_min_max]
        values: list[Any] = [end for one in found for end in (one.min, one.max)]
        if len(values) < 2 * len(groups):
            return None
        return lower(min(values)), upper(max(values))
    except (ValueError, OverflowError):
        # The column has strings that are not UTF-8, dates outside Python's calendar, or decimals that JSON would
        # round.
        return None


def flat(schema: pa.Schema) -> list[str]:
    """Return the names of the columns that are not structures, lists or maps."""
    return [field.name for field in schema if not pa.types.is_nested(field.type)]


def leaves(footer: pq.FileMetaData, schema: pa.Schema) -> dict[str, int]:
    """Return the index of each flat column of the schema among the columns of a file.

    Names with a dot are skipped, since a Parquet footer writes the names of nested columns with a dot.
    """
    names = {name for name in flat(schema) if "." not in name}
    paths = [footer.schema.column(index).path for index in range(footer.num_columns)]
    return {path: index for index, path in enumerate(paths) if path in names}


def lower(value: Any) -> Bound:
    """Return a bound that is not above `value`; timestamps are truncated to milliseconds."""
    match value:
        case datetime():
            return moment(value)
        case date():
            return value.isoformat()
        case str():
            return value[:TEXT_LENGTH_MAX]
        case Decimal():
            return exact(value)
        case _:
            # The value in the footer is an integer, a float or a boolean.
            number: Bound = value
            return number


def upper(value: Any) -> Bound:
    """Return a bound that is not below `value`."""
    match value:
        case datetime():
            return moment(value + timedelta(microseconds=-value.microsecond % 1000))
        case str() if len(value) > TEXT_LENGTH_MAX:
            return value[:TEXT_LENGTH_MAX] + ABOVE_ALL
        case _:
            return lower(value)


def exact(value: Decimal) -> int | float:
    """Return a decimal as a JSON number. Raises `ValueError` if the JSON number would have a different value."""
    whole = value == value.to_integral_value() and abs(value) < 2**53
    number = int(value) if whole else float(value)
    # Some readers do not accept an exponent in a decimal.
    if not set(str(number)) <= set("-0123456789.") or Decimal(str(number)) != value:
        message = f"{value} is not {number}"
        raise ValueError(message)
    return number


def moment(value: datetime) -> str:
    """Return a timestamp as text, truncated to milliseconds; a timestamp with a zone, which is UTC, ends with Z."""
    text = value.replace(tzinfo=None).isoformat(timespec="milliseconds")
    return text + "Z" if value.tzinfo is not None else text
