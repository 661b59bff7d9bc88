"""Check the metadata of an Arrow IPC record batch message before Arrow reads the message.

Arrow's reader trusts lengths, counts and positions, and detects most invalid values only when it validates the columns
after reading them. This module parses the flatbuffer with bounds checks at every step and compares the metadata with
the only schema of a record batch. `validation` calls this module for each body. This module must not use Arrow's
library: it works on plain bytes and follows Arrow's columnar format specification (Message.fbs) and the binary format
of flatbuffers.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, NoReturn, TypeAlias

import msgspec

from fairlead_api.batch.header import Buffer
from fairlead_api.problems import ProblemError

CONTINUATION: Final = 0xFFFFFFFF
"""First four bytes of an encapsulated message."""
METADATA_V5: Final = 4
RECORD_BATCH: Final = 3
"""Value of the union type MessageHeader for a record batch."""
PREFIX_BYTES: Final = 8
"""Size in bytes of the continuation marker plus the length field of the metadata."""
METADATA_BYTES_MAX: Final = 4096
"""Maximum accepted size of the metadata in bytes. A message with the schema has about 500 bytes of metadata."""
KNOWN_METADATA_MAX: Final = 512
"""Maximum number of messages whose metadata are cached, at most 4 MiB in total. Batches whose records have equal sizes
have equal metadata."""

_PREFIX: Final = struct.Struct("<II")
_U8: Final = struct.Struct("<B")
_U16: Final = struct.Struct("<H")
_I16: Final = struct.Struct("<h")
_U32: Final = struct.Struct("<I")
_I32: Final = struct.Struct("<i")
_I64: Final = struct.Struct("<q")

# Both flatbuffer tables have five fields, in the order of Message.fbs. The fields of a Message are version, type of the
# header, header, body length and custom metadata; the fields of a RecordBatch are length, nodes, buffers, compression
# and variadic buffer counts.
_TABLE_FIELDS: Final = 5
_VTABLE_SLOTS: Final = tuple(struct.Struct(f"<{count}H") for count in range(_TABLE_FIELDS + 1))


@dataclass(frozen=True, slots=True)
class Node:
    """Column of the schema or child of a column; parent columns precede their child columns.

    `rows_of` is the index of the node with the same number of rows: `_BATCH_ROWS` for the batch, `_ANY_ROWS` if only
    the offsets of a list determine the number. `buffers` are the sizes of the buffers after the validity bitmap, as
    (bytes per row, additional bytes).
    """

    name: str
    rows_of: int
    buffers: tuple[tuple[int, int], ...]


_Bitmap: TypeAlias = tuple[str, int, int, int]
"""Name of the column, start of the bitmap in the body, its size in bytes, number of rows."""

_BATCH_ROWS: Final = -1
_ANY_ROWS: Final = -2
_OFFSETS: Final = (4, 4)
_DATA: Final = (0, 0)
"""Unknown size of a data buffer: only the offsets determine the size, and Arrow's validation compares the size
with the offsets."""
_BINARY: Final = (_OFFSETS, _DATA)
_COLUMNS: Final = (
    Node("key", _BATCH_ROWS, _BINARY),
    Node("value", _BATCH_ROWS, _BINARY),
    Node("timestamp", _BATCH_ROWS, ((8, 0),)),
    Node("headers", _BATCH_ROWS, (_OFFSETS,)),
    Node("headers.item", _ANY_ROWS, ()),
    Node("headers.item.key", 4, _BINARY),
    Node("headers.item.value", 4, _BINARY),
)
_OFFSET_DELTA: Final = Node("offset_delta", _BATCH_ROWS, ((4, 0),))
KEY_NODE: Final = 0
TIMESTAMP_NODE: Final = 2
HEADER_NODE: Final = 4
HEADER_NAME_NODE: Final = 5
OFFSET_DELTA_NODE: Final = 7
_TIMESTAMP_BUFFER: Final = 7


class _Layout:
    """Nodes and buffers that the schema requires, arranged so that one pass over a message's numbers checks all."""

    __slots__ = ("bitmaps", "buffer_numbers", "buffers", "node_numbers", "nodes")

    def __init__(self, nodes: tuple[Node, ...]) -> None:
        self.nodes = nodes
        buffers: list[tuple[int, int, int]] = []
        bitmaps: list[int] = []
        for number, node in enumerate(nodes):
            bitmaps.append(len(buffers))
            buffers += [(number, *size) for size in (_DATA, *node.buffers)]
        self.buffers = tuple(buffers)
        """Node, bytes per row and additional bytes of each buffer."""
        self.bitmaps = tuple(bitmaps)
        """Index of each node's validity bitmap among the buffers."""
        self.node_numbers = struct.Struct(f"<{2 * len(nodes)}q")
        self.buffer_numbers = struct.Struct(f"<{2 * len(buffers)}q")


_PLAIN: Final = _Layout(_COLUMNS)
_WITH_OFFSETS: Final = _Layout((*_COLUMNS, _OFFSET_DELTA))


class ArrowMessage(msgspec.Struct, frozen=True, gc=False):
    """Contents of checked metadata."""

    rows: int
    null_counts: tuple[int, ...]
    """Number of nulls in each node, which is a column or a child of a column."""
    timestamps_start: int
    """Start of the values of the timestamp column, in bytes from the start of the message."""
    headers: int
    """Total number of headers of all records."""
    body_start: int
    """Start of the Arrow body, in bytes from the start of the message."""
    places: tuple[int, ...]
    """Start and size of each buffer in the Arrow body."""


def read_message(message: Buffer, *, offset_column: bool = False) -> ArrowMessage:
    """Check the metadata of a message against the schema of a record batch; the columns are not read.

    The check guarantees metadata version 5, a record batch, no IPC compression, no custom metadata, and exactly the
    nodes and buffers of the schema. The lengths in the metadata are consistent. Buffers are in order, 8-aligned, inside
    the message and long enough for their rows. Columns with a null count of zero have no nulls in their validity
    bitmaps. Arrow's full validation checks offsets and data. Raises `malformed_batch`.
    """
    try:
        return _read(message, _WITH_OFFSETS if offset_column else _PLAIN)
    except struct.error:
        raise ProblemError(
            "malformed_batch", "the Arrow metadata refers to positions outside itself"
        ) from None


def number_places(message: Buffer) -> tuple[bytes, tuple[tuple[int, int], ...]]:
    """Return the metadata of a plain-schema message, and the positions of the numbers in that metadata.

    Each entry is the position of the first int64 value and the number of int64 values: body length, rows, buffers
    (start and size of each), nodes (length and null count of each). The message must come from this process and have at
    least one record.
    """
    metadata = _metadata(message)
    *_, length_at, _ = _fields(metadata, _U32.unpack_from(metadata)[0])
    batch = _batch_table(metadata, len(message) - PREFIX_BYTES - len(metadata))
    rows_at, nodes_at, buffers_at, *_ = _fields(metadata, batch)
    return metadata, (
        (length_at, 1),
        (rows_at, 1),
        (_target(metadata, buffers_at) + 4, 2 * len(_PLAIN.buffers)),
        (_target(metadata, nodes_at) + 4, 2 * len(_PLAIN.nodes)),
    )


def _read(message: Buffer, layout: _Layout) -> ArrowMessage:
    metadata = _metadata(message)
    body_start = PREFIX_BYTES + len(metadata)
    found, bitmaps = _read_metadata(metadata, len(message) - body_start, layout)
    for name, start, size, rows in bitmaps:
        if not _all_valid(message[body_start + start : body_start + start + size], rows):
            _malformed(f"column {name} has a null count of 0, but its validity bitmap has nulls")
    return found


@lru_cache(KNOWN_METADATA_MAX)
def _read_metadata(
    metadata: bytes, body_bytes: int, layout: _Layout
) -> tuple[ArrowMessage, tuple[_Bitmap, ...]]:
    """Return the contents of the metadata, and the validity bitmaps of columns with a null count of zero."""
    batch = _batch_table(metadata, body_bytes)
    length, nodes_at, buffers_at, compression, variadic_counts = _fields(metadata, batch)
    if compression:
        _malformed(
            "the Arrow message is compressed; allowed: compression of the whole body by the codec of the batch"
        )
    if _elements(metadata, variadic_counts):
        _malformed("the Arrow message has variadic buffer counts; the schema has no view columns")
    rows: int = _I64.unpack_from(metadata, length)[0] if length else 0
    nodes = _structs(metadata, nodes_at, len(layout.nodes), layout.node_numbers, "nodes")
    buffers = _structs(metadata, buffers_at, len(layout.buffers), layout.buffer_numbers, "buffers")
    _check_nodes(layout, rows, nodes)
    _check_buffers(layout, nodes[::2], buffers, body_bytes)
    body_start = PREFIX_BYTES + len(metadata)
    timestamps_start = body_start + buffers[2 * _TIMESTAMP_BUFFER]
    found = ArrowMessage(rows, nodes[1::2], timestamps_start, nodes[2 * HEADER_NODE], body_start, buffers)
    return found, tuple(_idle_bitmaps(layout, nodes, buffers))


def _metadata(message: Buffer) -> bytes:
    if len(message) < PREFIX_BYTES:
        _malformed(f"{len(message)} bytes are too few for an Arrow message")
    marker, metadata_bytes = _PREFIX.unpack_from(message)
    if marker != CONTINUATION:
        _malformed(f"the Arrow message begins with {marker:#010x}; allowed: {CONTINUATION:#010x}")
    if metadata_bytes % 8 or metadata_bytes > min(METADATA_BYTES_MAX, len(message) - PREFIX_BYTES):
        _malformed(
            f"Arrow metadata of {metadata_bytes} bytes in a message of {len(message)};"
            f" allowed: a multiple of 8 up to {METADATA_BYTES_MAX}"
        )
    return bytes(message[PREFIX_BYTES : PREFIX_BYTES + metadata_bytes])


def _batch_table(metadata: bytes, body_bytes: int) -> int:
    """Check the Message table, and return the position of its RecordBatch table."""
    version_at, kind_at, header_at, length_at, custom = _fields(metadata, _U32.unpack_from(metadata)[0])
    version = _I16.unpack_from(metadata, version_at)[0] if version_at else 0
    kind = _U8.unpack_from(metadata, kind_at)[0] if kind_at else 0
    if version != METADATA_V5 or kind != RECORD_BATCH:
        _malformed(
            f"Arrow message of version {version} and type {kind};"
            f" allowed: {METADATA_V5} (V5) and {RECORD_BATCH} (RecordBatch)"
        )
    declared = _I64.unpack_from(metadata, length_at)[0] if length_at else 0
    if declared != body_bytes:
        _malformed(f"Arrow body length {declared}; the message has {body_bytes} bytes of body")
    if _elements(metadata, custom):
        _malformed("the Arrow message has custom metadata; none is allowed")
    return _target(metadata, header_at)


def _fields(metadata: bytes, at: int) -> tuple[int, ...]:
    """Return the positions of the fields of the table at `at`; the position of an absent field is 0.

    A table begins with the signed distance back to its vtable. The vtable contains the u16 size of the vtable, the u16
    size of the table, and for each field the u16 distance from the table, 0 for an absent field.
    """
    vtable: int = at - _I32.unpack_from(metadata, at)[0]
    if vtable < 0:  # struct would interpret a negative position as relative to the end
        raise struct.error
    slots = min(max((_U16.unpack_from(metadata, vtable)[0] - 4) // 2, 0), _TABLE_FIELDS)
    places = [
        at + distance if distance else 0
        for distance in _VTABLE_SLOTS[slots].unpack_from(metadata, vtable + 4)
    ]
    return (*places, *[0] * (_TABLE_FIELDS - slots))


def _target(metadata: bytes, place: int) -> int:
    """Return the target position of the flatbuffer reference at a position."""
    if not place:
        raise struct.error
    return place + int(_U32.unpack_from(metadata, place)[0])


def _elements(metadata: bytes, place: int) -> int:
    """Return the number of elements of the vector that is referenced at a position; an absent vector has 0 elements."""
    return int(_U32.unpack_from(metadata, _target(metadata, place))[0]) if place else 0


def _structs(metadata: bytes, place: int, count: int, numbers: struct.Struct, what: str) -> tuple[int, ...]:
    """Return the numbers of a vector of structs; the vector must have `count` elements."""
    found = _elements(metadata, place)
    if found != count:
        _malformed(f"the Arrow message has {found} {what}; the schema has {count}")
    return numbers.unpack_from(metadata, _target(metadata, place) + 4)


def _check_nodes(layout: _Layout, rows: int, nodes: tuple[int, ...]) -> None:
    for node, length, nulls in zip(layout.nodes, nodes[::2], nodes[1::2], strict=True):
        if node.rows_of != _ANY_ROWS:
            expected = rows if node.rows_of == _BATCH_ROWS else nodes[2 * node.rows_of]
            if length != expected:
                _malformed(f"column {node.name} has {length} rows; allowed: {expected}")
        if not 0 <= nulls <= length:
            _malformed(f"column {node.name} has {nulls} nulls in {length} rows")


def _check_buffers(
    layout: _Layout, lengths: tuple[int, ...], buffers: tuple[int, ...], body_bytes: int
) -> None:
    """Check that each buffer begins after the end of the previous buffer, so that no buffers overlap."""
    stop = 0
    for (number, row_bytes, more), start, size in zip(
        layout.buffers, buffers[::2], buffers[1::2], strict=True
    ):
        rows = lengths[number]
        needed = row_bytes * rows + more if rows else 0
        if start & 7 or start < stop or size < needed:
            _malformed(
                f"a buffer of column {layout.nodes[number].name} begins at {start} with {size} bytes;"
                f" allowed: multiples of 8 from {stop}, at least {needed} bytes"
            )
        stop = start + size
    if stop > body_bytes:
        _malformed(f"the Arrow buffers end at {stop}; the message has {body_bytes} bytes of body")


def _idle_bitmaps(layout: _Layout, nodes: tuple[int, ...], buffers: tuple[int, ...]) -> Iterator[_Bitmap]:
    """Check the sizes of all bitmaps, and yield the bitmaps of nodes without nulls."""
    for number, bitmap in enumerate(layout.bitmaps):
        rows, nulls = nodes[2 * number], nodes[2 * number + 1]
        start, size = buffers[2 * bitmap], buffers[2 * bitmap + 1]
        if (nulls or size) and size < (rows + 7) // 8:
            _malformed(
                f"the validity bitmap of column {layout.nodes[number].name} has {size} bytes for {rows} rows"
            )
        if size and not nulls:
            yield layout.nodes[number].name, start, size, rows


def _all_valid(bitmap: Buffer, rows: int) -> bool:
    """Return whether a bitmap agrees with a null count of zero, since readers use either the bitmap or the count."""
    whole, rest = divmod(rows, 8)
    mask = (1 << rest) - 1
    return bytes(bitmap[:whole]).count(0xFF) == whole and (not rest or bitmap[whole] & mask == mask)


def _malformed(detail: str) -> NoReturn:
    raise ProblemError("malformed_batch", detail)
