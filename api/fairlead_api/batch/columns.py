"""Functions that build the columns of a record batch from lists, cast users' columns, and split batches.

`batches` calls this module for the SDK and the broker. This module must depend only on the Arrow schema of the body,
not on the bytes of a batch.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final, NoReturn, TypeAlias, TypeVar, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from fairlead_api.batch.header import RECORDS_MAX
from fairlead_api.problems import ProblemError

HEADER_TYPE: Final = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])
HEADERS_TYPE: Final = pa.list_(HEADER_TYPE)
TIMESTAMP_TYPE: Final = pa.timestamp("us", tz="UTC")
_FIELDS: Final[list[pa.Field]] = [
    pa.field("key", pa.binary()),
    pa.field("value", pa.binary()),
    pa.field("timestamp", TIMESTAMP_TYPE),
    pa.field("headers", HEADERS_TYPE),
]
SCHEMA: Final = pa.schema(_FIELDS)
"""Columns of every record batch."""
SCHEMA_WITH_OFFSETS: Final = SCHEMA.append(pa.field("offset_delta", pa.int32()))
"""Columns of a batch that compaction has rewritten, with offset deltas."""

Headers: TypeAlias = Sequence[tuple[str, bytes | None]]
"""Headers of one record in order; names may repeat."""

_Number = TypeVar("_Number", np.int32, np.int64)
_HEADER_FIELDS: Final = {"key", "value"}
_HEADERS_COLUMN: Final = 3
_NO_BYTES: Final = pa.py_buffer(b"")
_NO_OFFSETS: Final = pa.py_buffer(bytes(4))
# Arrays that are created when this module is imported are built from buffers: `pa.array` would import pandas if pandas
# is installed, which takes half a second.
_NO_HEADERS: Final = cast(
    "pa.StructArray",
    pa.Array.from_buffers(
        HEADER_TYPE,
        0,
        [None],
        children=[
            pa.Array.from_buffers(kind, 0, [None, _NO_OFFSETS, _NO_BYTES])
            for kind in (pa.string(), pa.binary())
        ],
    ),
)
_INT32: Final = struct.Struct("<i")
_COLUMN_BYTES_MAX: Final = 2**31 - 1
"""Maximum size of a column in bytes, since Arrow's offsets have 32 bits."""
_FIXED_WIDTH_BUFFERS: Final = 1
_BINARY_BUFFERS: Final = 2
_TEXT_TYPES: Final = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)
_BYTES_TYPES: Final = (
    *_TEXT_TYPES,
    pa.types.is_binary,
    pa.types.is_large_binary,
    pa.types.is_binary_view,
    pa.types.is_fixed_size_binary,
)


def record_batch(
    values: Sequence[bytes | None],
    keys: Sequence[bytes | None] | None = None,
    timestamps_us: Sequence[int | None] | npt.NDArray[np.int64] | None = None,
    headers: Sequence[Headers | None] | None = None,
    *,
    default_timestamp_us: int,
) -> pa.RecordBatch:
    """Build columns from lists of equal length, one list per column.

    Timestamps are in microseconds, UTC; None as a value, or instead of a list, means the default. Timestamps in an
    array of 64-bit numbers are used unchanged. Empty headers become null. Raises `invalid_record`, which names the
    column.
    """
    count = len(values)
    for name, column in (("key", keys), ("timestamp", timestamps_us), ("headers", headers)):
        if column is not None and len(column) != count:
            _invalid(f"column {name} has {len(column)} rows, column value has {count}")
    return pa.RecordBatch.from_arrays(
        [
            _null_keys(count) if keys is None else _binary("key", keys),
            _binary("value", values),
            _timestamps(timestamps_us, count, default_timestamp_us),
            null_headers(count) if headers is None else _headers(headers),
        ],
        schema=SCHEMA,
    )


def canonical(data: pa.RecordBatch | pa.Table, default_timestamp_us: int) -> pa.RecordBatch:
    """Cast a user's columns to the columns of a record batch.

    The data must have `value` and may have key, timestamp and headers. Text becomes its UTF-8 bytes. Timestamps of any
    unit become microseconds, rounded down, and are in UTC if they have no time zone. Missing or null timestamps become
    the default. Missing keys and headers, and headers without entries, become null. The chunks of a table are copied
    into a single chunk. Raises `invalid_record`, which names the column.
    """
    unknown = [name for name in data.schema.names if name not in SCHEMA.names]
    if unknown:
        _invalid(f"column {unknown[0]} is unknown; allowed: {', '.join(SCHEMA.names)}")
    for name in SCHEMA.names:
        if data.schema.names.count(name) > 1:
            _invalid(f"column {name} is repeated")
    if "value" not in data.schema.names:
        _invalid("column value is missing")
    columns = {name: _single(name, data.column(name)) for name in data.schema.names}
    count = data.num_rows
    return pa.RecordBatch.from_arrays(
        [
            _cast_binary("key", columns["key"]) if "key" in columns else _null_keys(count),
            _cast_binary("value", columns["value"]),
            _cast_timestamp(columns["timestamp"], default_timestamp_us)
            if "timestamp" in columns
            else _timestamps(None, count, default_timestamp_us),
            _cast_headers(columns["headers"]) if "headers" in columns else null_headers(count),
        ],
        schema=SCHEMA,
    )


def compact(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the batch with buffers that contain only its own rows.

    A batch whose buffers contain only its own rows is returned unchanged. Arrow's IPC writer truncates the buffers of a
    slice only roughly: it would write up to 63 bytes of neighbouring values, and all offsets of an empty child.
    """
    columns = batch.columns
    loose = [number for number, column in enumerate(columns) if not _is_compact(column)]
    if not loose:
        return batch
    for number in loose:
        columns[number] = _compacted(columns[number])
    return pa.RecordBatch.from_arrays(columns, schema=batch.schema)


def _compacted(column: pa.Array) -> pa.Array:
    """Return the array with buffers that contain only its rows; for values without nulls only offsets are copied."""
    count = len(column)
    # Arrow may omit the buffer of values if it is empty.
    if column.type != pa.binary() or column.null_count or not count or column.buffers()[2] is None:
        return pa.concat_arrays([column])
    offsets, values = cast("list[pa.Buffer]", column.buffers()[1:])
    bounds = np.frombuffer(memoryview(offsets), np.int32, count + 1, column.offset * 4)
    first = int(bounds[0])
    own = values.slice(first, int(bounds[count]) - first)
    return pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer((bounds - first).data), own], 0)


def split(batch: pa.RecordBatch, bytes_max: int) -> list[pa.RecordBatch]:
    """Split a batch into slices of at most `bytes_max` bytes of columns; a larger record forms a separate slice.

    A slice has at most `RECORDS_MAX` rows. The limit in bytes applies to the columns before compression, without the
    header and the metadata (about 600 bytes together).
    """
    pieces: list[pa.RecordBatch] = []
    waiting = [batch] if batch.num_rows else []
    while waiting:
        piece = waiting.pop()
        if (piece.nbytes <= bytes_max and piece.num_rows <= RECORDS_MAX) or piece.num_rows == 1:
            pieces.append(piece)
            continue
        middle = piece.num_rows // 2
        waiting += [piece.slice(middle), piece.slice(0, middle)]
    return pieces


def header_counts(columns: pa.RecordBatch) -> npt.NDArray[np.int32]:
    """Return the number of headers in each row of a valid batch with the columns of the schema; 0 for null headers."""
    lists = cast("pa.ListArray", columns.column(_HEADERS_COLUMN))
    counts = np.diff(numbers_of(lists.offsets, np.int32))
    if lists.null_count:
        # The two offsets around a null value may differ by any number.
        counts[nulls_of(lists)] = 0
    return counts


def payload_sizes(columns: pa.RecordBatch) -> npt.NDArray[np.int64]:
    """Return the number of bytes of each record's key, value and headers in a valid batch; the array has three rows."""
    lists = cast("pa.ListArray", columns.column(_HEADERS_COLUMN))
    items = cast("pa.StructArray", lists.values)
    before = np.zeros(len(items) + 1, np.int64)
    np.cumsum(_lengths(items.field(0)) + _lengths(items.field(1)), out=before[1:])
    headers = np.diff(before[numbers_of(lists.offsets, np.int32)])
    if lists.null_count:
        headers[nulls_of(lists)] = 0
    return np.stack([_lengths(columns.column(0)), _lengths(columns.column(1)), headers])


def _lengths(column: pa.Array) -> npt.NDArray[np.int64]:
    """Return the number of bytes in each value of a binary or text column; 0 for nulls."""
    offsets = column.buffers()[1]
    if offsets is None or not len(column):
        return np.zeros(len(column), np.int64)
    bounds = np.frombuffer(memoryview(offsets), np.int32, len(column) + 1, column.offset * 4)
    lengths = np.diff(bounds).astype(np.int64)
    if column.null_count:
        # The two offsets around a null value may differ by any number.
        lengths[nulls_of(column)] = 0
    return lengths


def null_headers(count: int) -> pa.Array:
    """Return null headers for `count` records; `pa.nulls` would also allocate offsets for headers that do not exist."""
    return pa.ListArray.from_buffers(HEADERS_TYPE, count, _nothing(count), count, 0, [_NO_HEADERS])


def one_empty_record() -> pa.RecordBatch:
    """Return a batch of one record at time 0 with an empty value and without key and headers."""
    value = pa.Array.from_buffers(pa.binary(), 1, [None, pa.py_buffer(bytes(8)), _NO_BYTES], 0)
    return pa.RecordBatch.from_arrays(
        [_null_keys(1), value, constant_timestamps(1, 0), null_headers(1)], schema=SCHEMA
    )


def constant_timestamps(count: int, timestamp_us: int) -> pa.Array:
    """Return a column with `count` equal timestamps."""
    times = pa.py_buffer(np.full(count, timestamp_us, np.int64).data)
    return pa.Array.from_buffers(TIMESTAMP_TYPE, count, [None, times], 0)


def nulls_of(column: pa.Array) -> npt.NDArray[np.bool_]:
    """Return which values of a column are null. Arrow's own conversion to numpy would import pandas if installed."""
    bitmap = column.buffers()[0]
    if not column.null_count or bitmap is None:
        return np.zeros(len(column), np.bool_)
    stop = column.offset + len(column)
    bits = np.unpackbits(
        np.frombuffer(memoryview(bitmap), np.uint8, (stop + 7) // 8), count=stop, bitorder="little"
    )
    return bits[column.offset :] == 0


def numbers_of(column: pa.Array, kind: type[_Number]) -> npt.NDArray[_Number]:
    """Return a view of the numbers of a column without nulls; `kind` must match the Arrow type."""
    buffer = column.buffers()[1]
    assert buffer is not None, "a column of numbers has a values buffer"
    return np.frombuffer(memoryview(buffer), kind, len(column), column.offset * np.dtype(kind).itemsize)


def _null_keys(count: int) -> pa.Array:
    return pa.Array.from_buffers(pa.binary(), count, [*_nothing(count), _NO_BYTES], count)


def _nothing(count: int) -> list[pa.Buffer | None]:
    """Return the validity bitmap and the offsets of a column that contains only nulls: all bits and offsets are 0."""
    return [pa.py_buffer(bytes((count + 7) // 8)), pa.py_buffer(bytes(4 * (count + 1)))]


def _binary(name: str, values: Sequence[bytes | None]) -> pa.Array:
    try:
        return _single(name, pa.array(values, pa.binary()))
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise ProblemError("invalid_record", f"column {name}: {error}") from error


def _timestamps(
    timestamps_us: Sequence[int | None] | npt.NDArray[np.int64] | None, count: int, default_us: int
) -> pa.Array:
    if timestamps_us is None:
        return constant_timestamps(count, default_us)
    if isinstance(timestamps_us, np.ndarray):
        adjacent = np.ascontiguousarray(timestamps_us, np.int64)
        return pa.Array.from_buffers(TIMESTAMP_TYPE, count, [None, pa.py_buffer(adjacent.data)], 0)
    times = [default_us if time is None else time for time in timestamps_us]
    try:
        return pa.array(times, pa.int64()).cast(TIMESTAMP_TYPE)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise ProblemError("invalid_record", f"column timestamp: {error}") from error


def _headers(headers: Sequence[Headers | None]) -> pa.Array:
    """Return the headers as an array built from its buffers; Arrow cannot convert a list of pairs to structs."""
    names: list[str] = []
    values: list[bytes | None] = []
    offsets = [0]
    for record in headers:
        for name, value in record or ():
            names.append(name)
            values.append(value)
        offsets.append(len(names))
    if not names:
        return null_headers(len(headers))
    try:
        fields: list[pa.Array] = [pa.array(names, pa.string()), pa.array(values, pa.binary())]
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise ProblemError("invalid_record", f"column headers: {error}") from error
    if fields[0].null_count:
        _invalid("column headers: the name of a header is null")
    items = pa.StructArray.from_arrays(fields, fields=list(HEADER_TYPE))
    bounds = np.array(offsets, np.int32)
    filled = np.packbits(bounds[1:] != bounds[:-1], bitorder="little")
    buffers: list[pa.Buffer | None] = [pa.py_buffer(filled.data), pa.py_buffer(bounds.data)]
    return pa.ListArray.from_buffers(HEADERS_TYPE, len(headers), buffers, -1, 0, [items])


def _single(name: str, column: pa.Array | pa.ChunkedArray) -> pa.Array:
    """Return a column as one array, decoded if it is dictionary-encoded."""
    if isinstance(column, pa.ChunkedArray):
        if column.nbytes > _COLUMN_BYTES_MAX:
            _invalid(f"column {name} has {column.nbytes} bytes; allowed: {_COLUMN_BYTES_MAX} in one batch")
        column = _joined(column)
    return column.dictionary_decode() if isinstance(column, pa.DictionaryArray) else column


def _joined(column: pa.ChunkedArray) -> pa.Array:
    """Return the chunks as one array; a single chunk is not copied."""
    if column.num_chunks == 1:
        return cast("pa.Array", column.chunk(0))
    return pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)


def _cast(name: str, column: pa.Array, target: pa.DataType, *, safe: bool = True) -> pa.Array:
    try:
        return column.cast(target, safe=safe)
    except pa.ArrowException as error:
        raise ProblemError("invalid_record", f"column {name} of type {column.type}: {error}") from error


def _cast_binary(name: str, column: pa.Array) -> pa.Array:
    if not _is_bytes(column.type) and not pa.types.is_null(column.type):
        _invalid(f"column {name} has type {column.type}; allowed: binary and string types")
    return _cast(name, column, pa.binary())


def _cast_timestamp(column: pa.Array, default_us: int) -> pa.Array:
    if not pa.types.is_timestamp(column.type) and not pa.types.is_null(column.type):
        _invalid(f"column timestamp has type {column.type}; allowed: timestamp of any unit")
    cuts_nanoseconds = pa.types.is_timestamp(column.type) and column.type.unit == "ns"
    times = _cast("timestamp", column, TIMESTAMP_TYPE, safe=not cuts_nanoseconds)
    return times.fill_null(pa.scalar(default_us, TIMESTAMP_TYPE)) if times.null_count else times


def _cast_headers(column: pa.Array) -> pa.Array:
    if column.null_count == len(column):
        return null_headers(len(column))
    if not _holds_headers(column.type):
        _invalid(
            f"column headers has type {column.type}; allowed: list<struct<key: string, value: binary>> or a map"
        )
    # Importing pyarrow.compute creates its functions, which takes a tenth of a second.
    import pyarrow.compute as pc  # noqa: PLC0415

    headers = _cast("headers", column, HEADERS_TYPE)
    items = cast("pa.StructArray", pc.list_flatten(headers))
    if items.null_count or items.field(0).null_count:
        _invalid("column headers: a header or its name is null")
    empty = pc.equal(pc.list_value_length(headers), pa.scalar(0, pa.int32()))
    return pc.if_else(empty, pa.scalar(None, HEADERS_TYPE), headers) if pc.any(empty).as_py() else headers


def _is_bytes(kind: pa.DataType) -> bool:
    return any(accepts(kind) for accepts in _BYTES_TYPES)


def _holds_headers(kind: pa.DataType) -> bool:
    """Return whether Arrow casts the type to headers without loss, unlike list views and structs with other fields."""
    if pa.types.is_map(kind):
        return pa.types.is_string(kind.key_type) and _is_bytes(kind.item_type)
    if not pa.types.is_list(kind) and not pa.types.is_large_list(kind):
        return False
    header = cast("pa.ListType", kind).value_type
    if not pa.types.is_struct(header) or header.num_fields != len(_HEADER_FIELDS):
        return False
    fields = {field.name: field.type for field in header}
    if fields.keys() != _HEADER_FIELDS:
        return False
    return any(accepts(fields["key"]) for accepts in _TEXT_TYPES) and _is_bytes(fields["value"])


def _is_compact(column: pa.Array) -> bool:
    """Return whether the buffers of an array of the schema contain only the rows of the array."""
    count = len(column)
    bitmap, *buffers = [None if buffer is None else memoryview(buffer) for buffer in column.buffers()]
    if column.offset or (bitmap is not None and len(bitmap) > (count + 7) // 8) or buffers[0] is None:
        return False
    if len(buffers) == _FIXED_WIDTH_BUFFERS:
        return len(buffers[0]) == count * column.type.byte_width
    if len(buffers[0]) != 4 * (count + 1) or _INT32.unpack_from(buffers[0])[0]:
        return False
    stop: int = _INT32.unpack_from(buffers[0], 4 * count)[0]
    if len(buffers) == _BINARY_BUFFERS:
        return stop == (0 if buffers[1] is None else len(buffers[1]))
    items = cast("pa.StructArray", cast("pa.ListArray", column).values)
    return (
        stop == len(items)
        and not items.offset
        and _is_compact(items.field(0))
        and _is_compact(items.field(1))
    )


def _invalid(detail: str) -> NoReturn:
    raise ProblemError("invalid_record", detail)
