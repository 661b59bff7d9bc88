"""Conversion of stored batches to Arrow batches for Spark: one schema per read, and 1 to 4 MiB per batch if possible.

Small batches are combined and large batches are split, since Spark's JVM is slower with small and with large batches. A
stored batch of 256 KiB or more is passed on without being copied into a combined batch; batches gathered earlier are
passed on first. Spark checks the schema of the first batch only, so this module gives all batches the same types.
The readers call this module in tasks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Final

import pyarrow as pa

from fairlead.records import ConsumerBatch
from fairlead.settings import KIB, MIB

BATCH_BYTES_MIN: Final = 1 * MIB
"""Minimum size of a combined batch: the JVM's fixed cost per batch equals the cost of tens of thousands of bytes."""
BATCH_BYTES_MAX: Final = 4 * MIB
ALONE_BYTES: Final = 256 * KIB
"""Minimum size of a stored batch that is passed on by itself, without being copied into a combined batch."""

TYPES: Final = {
    "key": pa.binary(),
    "value": pa.binary(),
    "topic": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestampType": pa.int32(),
    "headers": pa.list_(
        pa.field(
            "element",
            pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]),
        )
    ),
}


def schema_of(columns: Sequence[str]) -> pa.Schema:
    """Return the Arrow schema that Spark expects for the columns."""
    return pa.schema([pa.field(name, TYPES[name]) for name in columns])


def spark_batches(batches: Iterable[ConsumerBatch], columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Yield the records as Arrow batches with one schema."""
    schema = schema_of(columns)
    held: list[pa.RecordBatch] = []
    held_bytes = 0
    for stored in batches:
        rows = _rows(stored, schema)
        if not rows.num_rows:
            continue
        size = rows.nbytes
        if held and (size >= ALONE_BYTES or held_bytes + size > BATCH_BYTES_MAX):
            yield _joined(held)
            held, held_bytes = [], 0
        if size >= ALONE_BYTES:
            yield from _cut(rows, size)
            continue
        held.append(rows)
        held_bytes += size
        if held_bytes >= BATCH_BYTES_MIN:
            yield _joined(held)
            held, held_bytes = [], 0
    if held:
        yield _joined(held)


def _joined(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)  # type: ignore[attr-defined]


def _cut(batch: pa.RecordBatch, size: int) -> Iterator[pa.RecordBatch]:
    rows = max(1, batch.num_rows * BATCH_BYTES_MAX // size)
    return (batch.slice(start, rows) for start in range(0, batch.num_rows, rows))


def _rows(stored: ConsumerBatch, schema: pa.Schema) -> pa.RecordBatch:
    columns = stored.to_arrow()
    count = columns.num_rows
    arrays = [
        _same(stored, count, field) if field.name in _SAME else _as(columns.column(field.name), field.type)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _as(array: pa.Array, type_: pa.DataType) -> pa.Array:
    return array if array.type == type_ else array.cast(type_)


_SAME: Final[dict[str, Callable[[ConsumerBatch], object]]] = {
    "topic": lambda stored: stored.topic,
    "partition": lambda stored: stored.partition,
    "timestampType": lambda stored: int(stored.has_append_time),
}
"""Columns that have the same value in all records of a stored batch."""


def _same(stored: ConsumerBatch, count: int, field: pa.Field) -> pa.Array:
    # The length of a cached array is a power of two, so that few arrays are cached; shorter columns are slices of a
    # cached array.
    room = 1 << max(count - 1, 1023).bit_length()
    return _repeated(_SAME[field.name](stored), room, field.type).slice(0, count)


@lru_cache(maxsize=64)
def _repeated(value: object, count: int, type_: pa.DataType) -> pa.Array:
    return pa.repeat(pa.scalar(value, type_), count)  # type: ignore[call-overload]
