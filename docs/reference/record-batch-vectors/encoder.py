"""Encode record batches as docs/reference/record-batch.md describes, with only `struct` and a plain CRC-32C loop.

`generate` uses this module. The module uses no Arrow library, so that the vectors verify the page and do not depend on
the version of a library. Every number of a batch can be set to a wrong value.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass, field

NOW_US = 1_700_000_000_000_000
"""Leader's time for the expected results of the vectors: 14 November 2023."""
Headers = tuple[tuple[str | bytes | None, bytes | None], ...]


def crc32c(data: bytes) -> int:
    """Return the CRC-32C (Castagnoli) of bytes, with the reflected polynomial 0x82F63B78."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


@dataclass(frozen=True)
class Row:
    """One record."""

    value: bytes | None
    key: bytes | None = None
    timestamp_us: int | None = NOW_US
    headers: Headers | None = None


@dataclass
class Message:
    """An Arrow message before its encoding, so that a vector can set any of its numbers to a wrong value."""

    rows: int = 0
    nodes: list[list[int]] = field(default_factory=list)
    buffers: list[bytes] = field(default_factory=list)
    places: list[list[int]] = field(default_factory=list)
    version: int = 4
    kind: int = 3
    body_bytes_more: int = 0

    def place(self) -> bytes:
        """Place the buffers one after the other, each at a multiple of 8; return the body."""
        body = b""
        for buffer in self.buffers:
            self.places.append([len(body), len(buffer)])
            body += buffer + bytes(-len(buffer) % 8)
        return body

    def encode(self, lie: Callable[[Message], None] | None = None) -> bytes:
        """Return the encapsulated message; `lie` can change the nodes and buffers in the metadata."""
        body = self.place()
        if lie:
            lie(self)
        metadata = struct.pack("<I6H", 16, 12, 20, 4, 6, 16, 8)
        metadata += struct.pack(
            "<ihBxqI4x", 12, self.version, self.kind, len(body) + self.body_bytes_more, 24
        )
        metadata += struct.pack("<5H6x", 10, 24, 8, 16, 20)
        metadata += struct.pack("<i4xqII", 16, self.rows, 12, 16 + 16 * len(self.nodes))
        metadata += struct.pack("<4xI", len(self.nodes)) + b"".join(
            struct.pack("<qq", *node) for node in self.nodes
        )
        metadata += struct.pack("<4xI", len(self.places)) + b"".join(
            struct.pack("<qq", *at) for at in self.places
        )
        return struct.pack("<II", 0xFFFFFFFF, len(metadata)) + metadata + body


def bitmap(present: list[bool]) -> bytes:
    """Return a validity bitmap: bit i, from the least significant bit, is 1 if row i is not null."""
    bits = sum(1 << row for row, there in enumerate(present) if there)
    return bits.to_bytes((len(present) + 7) // 8, "little")


def add_bytes(message: Message, values: list[bytes | None]) -> None:
    """Add the buffers of a binary or string column: bitmap, offsets, data."""
    nulls = values.count(None)
    stops = [0]
    for value in values:
        stops.append(stops[-1] + len(value or b""))
    message.nodes.append([len(values), nulls])
    message.buffers.append(bitmap([value is not None for value in values]) if nulls else b"")
    message.buffers.append(struct.pack(f"<{len(stops)}i", *stops))
    message.buffers.append(b"".join(value or b"" for value in values))


def add_numbers(message: Message, kind: str, values: list[int | None]) -> None:
    """Add the buffers of a column of fixed width: bitmap, data."""
    nulls = values.count(None)
    message.nodes.append([len(values), nulls])
    message.buffers.append(bitmap([value is not None for value in values]) if nulls else b"")
    message.buffers.append(struct.pack(f"<{len(values)}{kind}", *(value or 0 for value in values)))


def build_message(rows: list[Row], deltas: list[int] | None = None) -> Message:
    """Return the message of records, with the column of offset deltas if deltas are given."""
    message = Message(rows=len(rows))
    add_bytes(message, [row.key for row in rows])
    add_bytes(message, [row.value for row in rows])
    add_numbers(message, "q", [row.timestamp_us for row in rows])
    pairs = [pair for row in rows for pair in row.headers or ()]
    stops = [0]
    for row in rows:
        stops.append(stops[-1] + len(row.headers or ()))
    missing = [row.headers is None for row in rows]
    message.nodes += [[len(rows), sum(missing)], [len(pairs), 0]]
    message.buffers.append(bitmap([not gone for gone in missing]) if any(missing) else b"")
    message.buffers += [struct.pack(f"<{len(stops)}i", *stops), b""]
    add_bytes(message, [name.encode() if isinstance(name, str) else name for name, _ in pairs])
    add_bytes(message, [value for _, value in pairs])
    if deltas is not None:
        add_numbers(message, "i", list(deltas))
    return message


@dataclass(frozen=True)
class Batch:
    """A batch before its encoding; every field can be set to a wrong value."""

    rows: list[Row] = field(default_factory=lambda: [Row(b"hello")])
    deltas: list[int] | None = None
    edit: Callable[[Message], None] | None = None
    lie: Callable[[Message], None] | None = None
    wrap: Callable[[bytes], bytes] = bytes
    codec: int = 0
    format: int = 1
    attributes: int = 0
    last_offset_delta: int | None = None
    record_count: int | None = None
    min_timestamp_us: int | None = None
    max_timestamp_us: int | None = None
    producer: tuple[int, int, int] = (-1, -1, -1)
    uncompressed_more: int = 0
    schema_id: int = 0
    extension: bytes = b""
    padding: bytes | None = None
    stamp: tuple[int, int, int, int] | None = None
    spoil: Callable[[bytes], bytes] = bytes

    def encode(self) -> bytes:
        """Return the bytes of the batch."""
        parts = build_message(self.rows, self.deltas)
        if self.edit:
            self.edit(parts)
        message = parts.encode(self.lie) if self.rows else b""
        body = self.wrap(message)
        padding = bytes(-len(body) % 8) if self.padding is None else self.padding
        times = [row.timestamp_us for row in self.rows if row.timestamp_us is not None] or [NOW_US]
        count = len(self.rows) if self.record_count is None else self.record_count
        fields = struct.pack(
            "<BBHiiqqqiiIHH",
            self.format,
            self.codec,
            self.attributes | len(padding) << 3,
            count - 1 if self.last_offset_delta is None else self.last_offset_delta,
            count,
            min(times) if self.min_timestamp_us is None else self.min_timestamp_us,
            max(times) if self.max_timestamp_us is None else self.max_timestamp_us,
            *self.producer,
            len(message) + self.uncompressed_more,
            self.schema_id,
            len(self.extension),
        )
        content = self.spoil(fields + self.extension + body + padding)
        base_offset, leader_epoch, append_time_us, flags = self.stamp or (0, 0, 0, 0)
        head = struct.pack("<qIiqHH", base_offset, 24 + len(content), leader_epoch, append_time_us, flags, 0)
        return head + struct.pack("<II", crc32c(head) if self.stamp else 0, crc32c(content)) + content


def lz4_stored(data: bytes) -> bytes:
    """Return an LZ4 frame of one stored block: independent blocks, 64 KiB, no checksums."""
    return bytes.fromhex("04224d18604082") + struct.pack("<I", 1 << 31 | len(data)) + data + bytes(4)


def lz4_junk(data: bytes) -> bytes:
    """Return an LZ4 frame whose only block is marked as compressed although its bytes are not."""
    return bytes.fromhex("04224d18604082") + struct.pack("<I", len(data)) + data + bytes(4)


def zstd_stored(data: bytes) -> bytes:
    """Return a zstd frame of one stored block: single segment, two bytes of content size."""
    head = struct.pack("<IBH", 0xFD2FB528, 0b0110_0000, len(data) - 256)
    return head + (len(data) << 3 | 1).to_bytes(3, "little") + data


def zstd_run(data: bytes) -> bytes:
    """Return a zstd frame that decompresses to 128 KiB of zeros, whatever the data."""
    head = struct.pack("<IBI", 0xFD2FB528, 0b1010_0000, 131072)
    return head + (131072 << 3 | 0b011).to_bytes(3, "little") + b"\0"


def entry(kind: int, value: bytes) -> bytes:
    """Return one extension entry."""
    return struct.pack("<HH", kind, len(value)) + value


def padded(extension: bytes) -> bytes:
    """Return an extension, padded with zeros to a multiple of 8 bytes."""
    return extension + bytes(-len(extension) % 8)
