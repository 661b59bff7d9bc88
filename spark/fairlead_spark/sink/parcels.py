"""Splits the tables of a query into parcels of rows with the same topic and, if the query sets it, partition.

The writers in the workers call this module. The split is vectorised, copies no data if all rows have the same
destination, and keeps the order of rows. For rows without a partition, the producer chooses the partition by the key,
as Kafka does.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from fairlead_spark.sink.columns import SchemaError, SinkColumns

NOWHERE: Final = -1
"""Value that stands for a null partition during the split."""


@dataclass(frozen=True, slots=True)
class Parcel:
    """Rows with the same destination. If `partition` is None, the producer chooses partitions by key."""

    topic: str
    partition: int | None
    records: pa.Table


def parcels(table: pa.Table, columns: SinkColumns, topic: str | None) -> Iterator[Parcel]:
    """Yield the parcels of a table.

    Raises `SchemaError` for rows without a topic, for a partition below 0, for offsets in a write that refuses them,
    and for names that are not UTF-8, since Spark does not check the bytes of strings.
    """
    if columns.offset is not None and table.column(columns.offset).null_count < table.num_rows:
        message = (
            "rows with offsets were read from a topic, and Spark does not pass the table that they are written to; "
            "name the columns, as in INSERT INTO flights (key, value) SELECT key, value FROM ..."
        )
        raise SchemaError(message)
    headers = dict(columns.record).get("headers")
    if headers is not None:
        _check_header_names(table, headers)
    for name, rows in _by_topic(table, columns, topic):
        for partition, part in _by_partition(rows, columns):
            records = pa.table({part_name: part.column(column) for part_name, column in columns.record})
            yield Parcel(name, partition, records)


def _by_topic(table: pa.Table, columns: SinkColumns, topic: str | None) -> Iterator[tuple[str, pa.Table]]:
    if columns.topic is None:
        assert topic is not None, "without a column topic, the option topic is set"
        yield topic, table
        return
    names = table.column(columns.topic)
    if names.null_count:
        message = f"column {columns.topic} is null in {names.null_count} of {len(names)} rows; every row needs a topic"
        raise SchemaError(message)
    distinct = _distinct(names, columns.topic)
    for name in distinct:
        yield (
            name,
            table if len(distinct) == 1 else table.filter(pc.equal(names, pa.scalar(name, names.type))),
        )


def _distinct(names: pa.ChunkedArray, column: str) -> list[str]:
    try:
        return [str(name) for name in names.unique().to_pylist()]
    except UnicodeDecodeError as error:
        row, name = next((row, name) for row, name in enumerate(_raw(names), start=1) if _is_no_text(name))
        message = (
            f"column {column} is {name!r} in row {row} of {len(names)}, which is not UTF-8 text; allowed: the name of "
            "a topic"
        )
        raise SchemaError(message) from error


def _check_header_names(table: pa.Table, column: str) -> None:
    """Raise `SchemaError` for invalid header names, since a broker would refuse the whole batch."""
    headers = table.column(column)
    names = pc.struct_field(pc.list_flatten(headers), "key")
    try:
        names.validate(full=True)
    except pa.ArrowInvalid as error:
        rows = pc.add(pc.list_parent_indices(pa.concat_arrays(headers.chunks)), 1).to_pylist()
        row, name = next(
            (row, name) for row, name in zip(rows, _raw(names), strict=True) if _is_no_text(name)
        )
        message = (
            f"column {column} has a header called {name!r} in row {row} of {table.num_rows}, which is not UTF-8 "
            "text; allowed: names that are text, values of any bytes"
        )
        raise SchemaError(message) from error


def _raw(texts: pa.Array | pa.ChunkedArray) -> list[bytes | None]:
    return texts.cast(pa.large_binary()).to_pylist()


def _is_no_text(raw: bytes | None) -> bool:
    if raw is None:
        return False
    try:
        raw.decode()
    except UnicodeDecodeError:
        return True
    return False


def _by_partition(table: pa.Table, columns: SinkColumns) -> Iterator[tuple[int | None, pa.Table]]:
    if columns.partition is None or table.column(columns.partition).null_count == table.num_rows:
        yield None, table
        return
    column = table.column(columns.partition)
    lowest = pc.min(column).as_py()
    if lowest < 0:
        message = (
            f"column {columns.partition} is {lowest}; allowed: 0 and above, or null, so that the key decides"
        )
        raise SchemaError(message)
    partitions = column.fill_null(pa.scalar(NOWHERE, column.type)).to_numpy()
    distinct, starts = _groups(partitions)
    if len(distinct) == 1:
        yield int(distinct[0]), table
        return
    order = np.argsort(partitions, kind="stable")
    for partition, (start, end) in zip(distinct, pairwise([*starts, len(partitions)]), strict=True):
        yield (None if partition == NOWHERE else int(partition)), table.take(order[start:end])


def _groups(partitions: npt.NDArray[np.int32]) -> tuple[list[int], list[int]]:
    distinct, counts = np.unique(partitions, return_counts=True)
    return distinct.tolist(), [0, *np.cumsum(counts)[:-1].tolist()]
