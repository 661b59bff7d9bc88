"""Arrow IPC streams as request and answer bodies.

Callers: ``produce`` and ``topic_produce`` read the streams, ``fetch`` writes them. Request bodies are not trusted: a
stream of 300 bytes can declare a billion rows, contain buffers that decompress to gigabytes, or repeat one value
through a dictionary or a view. Messages are therefore read one by one, only plain types are accepted, and every batch
is fully validated before any value is read.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Final

import pyarrow as pa

from fairlead_api.batch.batches import SCHEMA, canonical
from fairlead_api.batch.header import Buffer
from fairlead_api.problems import ProblemError

OFFSET_FIELD: Final = pa.field("offset", pa.int64(), nullable=False)
FETCH_SCHEMA: Final = SCHEMA.append(OFFSET_FIELD)
# The columns of a record take at least 20 bytes (8 for the timestamp, 4 + 4 + 4 for offsets), and a decoded batch may
# take up to 64 MiB.
RECORDS_MAX: Final = (64 << 20) // 20

_SCHEMA_MESSAGE: Final = "schema"
_BATCH_MESSAGE: Final = "record batch"
# Slots of the flatbuffer tables Message and RecordBatch (Arrow's Message.fbs) that lead to the compression.
_MESSAGE_HEADER_SLOT: Final = 4 + 2 * 2
_BATCH_COMPRESSION_SLOT: Final = 4 + 2 * 3
_U16: Final = struct.Struct("<H")
_I32: Final = struct.Struct("<i")
_U32: Final = struct.Struct("<I")


def read_arrow_stream(body: Buffer, default_timestamp_us: int) -> pa.RecordBatch:
    """Return all records of a stream in the columns of a record batch.

    Raises ProblemError malformed_request when the stream is not readable, invalid_record when a column has an
    unsupported type, batch_too_large when the stream has more records than a batch can contain.
    """
    try:
        batches = list(_batches(body))
    except (pa.ArrowException, ValueError, OSError, EOFError, struct.error) as error:
        raise _malformed(str(error)) from error
    if not batches:
        raise ProblemError("malformed_request", "the Arrow stream has no records")
    data = batches[0] if len(batches) == 1 else pa.Table.from_batches(batches)
    if data.num_rows == 0:
        raise ProblemError("malformed_request", "the Arrow stream has no records")
    return canonical(data, default_timestamp_us)


def write_arrow_stream(batches: Sequence[pa.RecordBatch]) -> memoryview:
    """Return a stream of batches that have FETCH_SCHEMA."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, FETCH_SCHEMA) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return memoryview(sink.getvalue())


def _batches(body: Buffer) -> Iterator[pa.RecordBatch]:
    """Yield the validated batches of a stream, which is read message by message."""
    messages = pa.ipc.MessageReader.open_stream(pa.py_buffer(body))
    schema: pa.Schema | None = None
    rows = 0
    for message in messages:
        if schema is None:
            if message.type != _SCHEMA_MESSAGE:
                reason = f"it begins with a {message.type} message, not with its schema"
                raise _malformed(reason)
            schema = pa.ipc.read_schema(message)
            for field in schema:
                _check_type(field.name, field.type)
            continue
        if message.type != _BATCH_MESSAGE:
            reason = f"a {message.type} message is not allowed; only plain record batches are"
            raise _malformed(reason)
        if _is_compressed(bytes(message.metadata)):
            reason = "its buffers are compressed; send it without IPC compression"
            raise _malformed(reason)
        batch = pa.ipc.read_record_batch(message, schema)
        rows += batch.num_rows
        if rows > RECORDS_MAX:
            raise ProblemError(
                "batch_too_large",
                f"the body has more than {RECORDS_MAX} records; send it in several requests",
            )
        batch.validate(full=True)
        yield batch


def _check_type(column: str, kind: pa.DataType) -> None:
    """Raise invalid_record for a type whose values share bytes, because casting them could use too much memory."""
    if pa.types.is_nested(kind):
        nested = pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_map(kind)
        if nested or pa.types.is_struct(kind):
            for number in range(kind.num_fields):
                _check_type(column, kind.field(number).type)
            return
    elif not any(refused(kind) for refused in _SHARING_TYPES):
        return
    raise ProblemError(
        "invalid_record",
        f"column {column} has type {kind}; dictionary, view and run-end encoded types are not allowed",
        data={"parameter": column},
    )


_SHARING_TYPES: Final = (
    pa.types.is_dictionary,
    pa.types.is_run_end_encoded,
    pa.types.is_binary_view,
    pa.types.is_string_view,
)


def _is_compressed(metadata: bytes) -> bool:
    """Return whether a record batch message has a body compression. Raises struct.error for an invalid pointer."""
    message = _U32.unpack_from(metadata)[0]
    place = _field(metadata, message, _MESSAGE_HEADER_SLOT)
    if not place:
        return False
    batch = place + _U32.unpack_from(metadata, place)[0]
    return _field(metadata, batch, _BATCH_COMPRESSION_SLOT) != 0


def _field(metadata: bytes, table: int, slot: int) -> int:
    """Return the position of a field in a flatbuffer table; 0 when the field is absent."""
    vtable = table - _I32.unpack_from(metadata, table)[0]
    if vtable < 0:
        reason = "a flatbuffer table points before its message"
        raise struct.error(reason)
    if slot + 2 > _U16.unpack_from(metadata, vtable)[0]:
        return 0
    distance: int = _U16.unpack_from(metadata, vtable + slot)[0]
    return table + distance if distance else 0


def _malformed(reason: str) -> ProblemError:
    return ProblemError("malformed_request", f"the body is not an accepted Arrow IPC stream: {reason}")
