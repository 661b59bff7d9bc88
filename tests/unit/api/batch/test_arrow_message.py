"""The metadata of an Arrow message is checked against the schema before Arrow reads it."""

from __future__ import annotations

import struct
from collections.abc import Callable

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead_api.batch.arrow_message import METADATA_BYTES_MAX, read_message
from fairlead_api.batch.columns import SCHEMA, SCHEMA_WITH_OFFSETS, compact, record_batch
from fairlead_api.problems import ProblemError
from refusals import refuses

BUFFERS, NODES = 17, 7
PREFIX = 8


def columns(rows: int = 3) -> pa.RecordBatch:
    """Return columns with nulls in each column that allows them."""
    values = [None if row % 3 == 1 else b"v" * row for row in range(rows)]
    headers = [None if row % 2 else [("name", b"x")] for row in range(rows)]
    return record_batch(values, values, None, headers, default_timestamp_us=5)


class Written:
    """A message written by Arrow, whose numbers can be changed in place."""

    def __init__(self, batch: pa.RecordBatch) -> None:
        self.data = bytearray(batch.serialize().to_pybytes())
        self.root = PREFIX + self.u32(PREFIX)
        self.batch = self.follow(self.field(self.root, 2))
        self.nodes, self.buffers = (self.follow(self.field(self.batch, number)) + 4 for number in (1, 2))
        self.body = PREFIX + self.u32(4)

    def u32(self, at: int) -> int:
        """Read a u32."""
        return int(struct.unpack_from("<I", self.data, at)[0])

    def vtable(self, table: int) -> int:
        """Return the position of a table's vtable."""
        return int(table - struct.unpack_from("<i", self.data, table)[0])

    def slot(self, table: int, number: int) -> int:
        """Return the position of the vtable entry that contains the offset of a field."""
        return self.vtable(table) + 4 + 2 * number

    def field(self, table: int, number: int) -> int:
        """Return the position of a field."""
        return int(table + struct.unpack_from("<H", self.data, self.slot(table, number))[0])

    def follow(self, place: int) -> int:
        """Follow a reference."""
        return place + self.u32(place)

    def put(self, kind: str, at: int, number: int) -> None:
        """Write a number."""
        struct.pack_into("<" + kind, self.data, at, number)

    def put_node(self, index: int, part: int, number: int) -> None:
        """Change the length (0) or the null count (1) of a node."""
        self.put("q", self.nodes + 16 * index + 8 * part, number)

    def put_buffer(self, index: int, part: int, number: int) -> None:
        """Change the start (0) or the size (1) of a buffer."""
        self.put("q", self.buffers + 16 * index + 8 * part, number)

    def buffer_start(self, index: int) -> int:
        """Return the position of a buffer in the message."""
        return int(self.body + struct.unpack_from("<q", self.data, self.buffers + 16 * index)[0])


@pytest.mark.parametrize("rows", [0, 1, 3, 8, 100])
def test_what_arrow_writes_is_read(rows: int) -> None:
    """Row count, null counts and the position of the timestamps in a message equal those of its columns."""
    batch = columns(rows)
    message = bytes(batch.serialize().to_pybytes())
    found = read_message(message)
    nulls = (rows + 1) // 3

    assert found.rows == rows
    assert found.null_counts == (nulls, nulls, 0, rows // 2, 0, 0, 0)
    assert message[found.timestamps_start :][: 8 * rows] == struct.pack("<q", 5) * rows


def test_the_offset_column_is_expected_when_asked_for() -> None:
    """A message with the offset column has one more node, and is malformed if the column is not expected."""
    batch = columns().append_column("offset_delta", pa.array([0, 1, 2], pa.int32()))
    assert batch.schema == SCHEMA_WITH_OFFSETS
    message = batch.serialize().to_pybytes()

    assert read_message(message, offset_column=True).null_counts == (1, 1, 0, 1, 0, 0, 0, 0)
    with refuses("malformed_batch", 8, 7):
        read_message(message)
    with refuses("malformed_batch", 7, 8):
        read_message(columns().serialize().to_pybytes(), offset_column=True)


def written_with(
    options: pa.ipc.IpcWriteOptions | None = None, custom_metadata: dict[str, str] | None = None
) -> bytes:
    """Return the message that Arrow's stream writer writes with the given options."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, SCHEMA, options=options) as writer:
        writer.write_batch(columns(50), custom_metadata=custom_metadata)
    reader = pa.ipc.MessageReader.open_stream(sink.getvalue())
    reader.read_next_message()
    return bytes(reader.read_next_message().serialize().to_pybytes())


def of_other_schema() -> bytes:
    """Return a message with one column too few."""
    return bytes(columns().select(["key", "value", "timestamp"]).serialize().to_pybytes())


def with_views() -> bytes:
    """Return a message whose key is a view column, so that the message has variadic buffer counts."""
    batch = columns()
    view = batch.column("key").cast(pa.binary_view())
    return bytes(batch.set_column(0, "key", view).serialize().to_pybytes())


@pytest.mark.parametrize(
    ("message", "named"),
    [
        (b"", "0"),
        (bytes(7), "7"),
        (bytes(64), "0x00000000"),
        (b"\xff" * 4 + struct.pack("<I", 12) + bytes(64), "12"),
        (b"\xff" * 4 + struct.pack("<I", 72) + bytes(64), "72"),
        (b"\xff" * 4 + struct.pack("<I", METADATA_BYTES_MAX + 8) + bytes(9000), "4104"),
        (b"\xff" * 4 + bytes(4), ""),
        (bytes(SCHEMA.serialize().to_pybytes()), "1"),
        (written_with(pa.ipc.IpcWriteOptions(metadata_version=pa.ipc.MetadataVersion.V4)), "3"),
        (written_with(pa.ipc.IpcWriteOptions(compression="lz4")), "compressed"),
        (of_other_schema(), "7"),
        (with_views(), "variadic"),
        (bytes(columns().serialize().to_pybytes()) + bytes(8), "length"),
    ],
)
def test_another_message_is_refused(message: bytes, named: str) -> None:
    """A message with a wrong kind, version, schema or length is malformed, and the detail describes the error."""
    with refuses("malformed_batch", *named.split()):
        read_message(message)


def test_custom_metadata_is_refused() -> None:
    """A message with custom metadata is refused, unless its list of custom metadata is empty."""
    written = Written(columns())
    written.data = bytearray(written_with(custom_metadata={"who": "smuggler"}))
    with refuses("malformed_batch", "metadata"):
        read_message(written.data)
    root = PREFIX + written.u32(PREFIX)
    written.put("I", written.follow(written.field(root, 4)), 0)

    assert read_message(written.data).rows == 50


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda it: it.put("q", it.field(it.batch, 0), 4), "key 3 4"),
        (lambda it: it.put("H", it.slot(it.batch, 0), 0), "key 3 0"),
        (lambda it: it.put_node(0, 0, -1), "key -1"),
        (lambda it: it.put_node(6, 0, 1), "headers.item.value 1 2"),
        (lambda it: it.put_node(4, 0, -1), "headers.item 0 -1"),
        (lambda it: it.put_node(1, 1, 4), "value 4 3"),
        (lambda it: it.put_node(1, 1, -1), "value -1 3"),
        (lambda it: it.put_node(1, 1, 0), "value 0"),
        (lambda it: it.put_node(2, 1, 1), "bitmap timestamp 0"),
        (lambda it: it.put_buffer(0, 1, 0), "bitmap key 0"),
        (lambda it: it.put_buffer(1, 1, 12), "buffer key 8 12"),
        (lambda it: it.put_buffer(7, 1, 16), "buffer timestamp"),
        (lambda it: it.put_buffer(2, 1, -1), "buffer key"),
        (lambda it: it.put_buffer(4, 0, 4), "buffer value"),
        (lambda it: it.put_buffer(4, 0, -8), "buffer value"),
        (lambda it: it.put_buffer(16, 1, 2**62), "buffers"),
        (lambda it: it.put_buffer(16, 0, 2**62), "buffers"),
        (lambda it: it.put("I", it.nodes - 4, 6), "6 nodes"),
        (lambda it: it.put("I", it.buffers - 4, 18), "18 buffers"),
        (lambda it: it.put("H", it.slot(it.batch, 1), 0), "0 nodes"),
        (lambda it: it.put("I", it.field(it.root, 2), 2**31), ""),
        (lambda it: it.put("H", it.slot(it.root, 2), 0), ""),
        (lambda it: it.put("i", it.root, it.root), ""),
        (lambda it: it.put("i", it.root, -(2**31)), ""),
        (lambda it: it.put("I", PREFIX, 2**32 - 1), ""),
        (lambda it: it.put("I", it.field(it.batch, 2), 2**31), ""),
        (lambda it: it.put("H", it.vtable(it.root), 0), "version type 0"),
        (lambda it: it.put("H", it.slot(it.root, 3), 0), "length 0"),
    ],
)
def test_a_number_that_lies_is_refused(change: Callable[[Written], None], named: str) -> None:
    """The refusal of a message names the length, count, position or reference that contradicts other parts."""
    written = Written(columns())
    read_message(written.data)
    change(written)

    with refuses("malformed_batch", *named.split()):
        read_message(written.data)


@pytest.mark.parametrize("rows", [1, 7, 8, 9, 16, 21])
def test_bitmaps_of_ones_are_taken_for_no_nulls(rows: int) -> None:
    """A bitmap that some libraries write for a column without nulls is accepted only if every row's bit is set."""
    values = pa.array([b"x"] * rows)
    bitmap = pa.py_buffer(b"\xff" * ((rows + 7) // 8))
    _, offsets, data = values.buffers()
    batch = record_batch([b"x"] * rows, default_timestamp_us=1)
    some_null = pa.Array.from_buffers(pa.binary(), rows, [pa.py_buffer(bytes(bitmap.size)), offsets, data])
    written = Written(compact(batch.set_column(1, "value", some_null)))
    written.put_node(1, 1, 0)
    at = written.buffer_start(3)
    written.data[at : at + bitmap.size] = bitmap.to_pybytes()

    assert read_message(written.data).null_counts[1] == 0
    for row in (0, rows - 1):
        changed = bytearray(written.data)
        changed[at + row // 8] ^= 1 << row % 8
        with refuses("malformed_batch", "value", 0):
            read_message(changed)
    short = Written(batch.set_column(1, "value", some_null))
    short.put_node(1, 1, 0)
    short.put_buffer(3, 1, bitmap.size - 1)
    if bitmap.size > 1:
        with refuses("malformed_batch", "value"):
            read_message(short.data)


@given(st.data())
def test_no_change_of_the_metadata_escapes(data: st.DataObject) -> None:
    """Metadata that consists of arbitrary bytes is read or refused as malformed; no other error is raised."""
    written = Written(columns())
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, written.body - 1))
        written.data[at] = data.draw(st.integers(0, 255))
    code = "accepted"
    try:
        read_message(written.data)
    except ProblemError as problem:
        code = problem.code

    assert code in ("accepted", "malformed_batch")
