"""Header of a record batch: 88 bytes with two checksums and the stamp of the leader.

Every part that moves batches uses this module: the log, the runtime, followers and the SDK. The layout is permanent and
is described in docs/reference/record-batch.md. This module must not depend on Arrow: `validation` reads the body, so
that batches are moved without being decoded.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from enum import IntEnum, IntFlag
from typing import Final, NoReturn, TypeAlias

import msgspec
from google_crc32c import extend

from fairlead_api.problems import ProblemError

Buffer: TypeAlias = bytes | bytearray | memoryview
"""Types of byte buffers, which are read without copying."""

FORMAT: Final = 1
HEADER_BYTES: Final = 88
"""Size of the header in bytes; the extension follows the header."""
STAMP_BYTES: Final = 36
"""Number of bytes before the range of the content checksum: 32 bytes of the stamp and 4 bytes of the content checksum
itself."""
LENGTH_STOP: Final = 12
"""End of the length field; a batch is longer than the value of the length field by this number of bytes."""
FORMAT_STOP: Final = 37
"""Number of bytes needed to read the format; bytes 0 to 36 keep their meaning in every later format."""
NO_PRODUCER: Final = -1
RECORDS_MAX: Final = 1 << 20
"""Maximum number of records in a batch. A compressed batch of a few kilobytes can contain millions of empty records,
each of which occupies about 800 bytes of memory in a client that handles records one by one."""
HEADERS_MAX: Final = 1 << 20
"""Maximum number of headers of all records in a batch; each header also becomes an object in a client."""
RECORD_HEADERS_MAX: Final = 4096
"""Maximum number of headers of a record; a client that reads JSON has all headers in memory at once."""

_STAMP: Final = struct.Struct("<qIiqHH")
_LENGTH: Final = struct.Struct("<I")
_CHECKSUM: Final = struct.Struct("<I")
_CHECKSUMS: Final = struct.Struct("<II")
_HEADER: Final = struct.Struct("<qIiqH2xIIBBHiiqqqiiIHH")
_SPAN: Final = struct.Struct("<qI28xi")
_LENGTH_AT: Final = 8
_STAMP_CHECKSUM_AT: Final = 28
_CONTENT_CHECKSUM_AT: Final = 32
_COPIED_BYTES_MAX: Final = 8192
_PRODUCER_PART: Final = struct.Struct("<BBHiiqqqiiIHH")
_UNSTAMPED_HEAD: Final = bytes(8)
_UNSTAMPED_TAIL: Final = bytes(20)


class Codec(IntEnum):
    """Codec with which the whole body is compressed."""

    NONE = 0
    LZ4 = 1
    """One LZ4 frame (not a bare block)."""
    ZSTD = 2


class Attribute(IntFlag):
    """Bits of the attributes field; bits 3 to 5 contain the padding length, the other bits are zero."""

    TRANSACTIONAL = 1
    CONTROL = 2
    OFFSET_COLUMN = 4


class StampFlag(IntFlag):
    """Bits of the stamp flags, a field that the leader writes."""

    APPEND_TIME = 1
    """The timestamp of every record is the append time."""


# The bits are plain integers, since an operation on an IntFlag takes a microsecond and the bits are read for each
# batch.
_TRANSACTIONAL: Final = int(Attribute.TRANSACTIONAL)
_CONTROL: Final = int(Attribute.CONTROL)
_OFFSET_COLUMN: Final = int(Attribute.OFFSET_COLUMN)
_APPEND_TIME: Final = int(StampFlag.APPEND_TIME)
PADDING_SHIFT: Final = 3
PADDING_MASK: Final = 0b111 << PADDING_SHIFT
RESERVED_ATTRIBUTES: Final = 0xFFFF & ~(PADDING_MASK | _TRANSACTIONAL | _CONTROL | _OFFSET_COLUMN)


class BatchHeader(msgspec.Struct, frozen=True, gc=False):
    """Fields of a batch header, in the order of the bytes.

    A header is created for each batch on every path; a frozen dataclass of twenty fields would take ten times as long
    as this msgspec struct.
    """

    base_offset: int
    length: int
    leader_epoch: int
    append_time_us: int
    stamp_flags: int
    stamp_checksum: int
    content_checksum: int
    format: int
    codec: int
    attributes: int
    last_offset_delta: int
    record_count: int
    min_timestamp_us: int
    max_timestamp_us: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    uncompressed_bytes: int
    """Length of the body in bytes before compression."""
    schema_id: int
    extension_bytes: int

    @property
    def total_bytes(self) -> int:
        """Length of the whole batch, a multiple of 8."""
        return LENGTH_STOP + self.length

    @property
    def last_offset(self) -> int:
        """Offset of the last record."""
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        """Base offset of the next batch."""
        return self.base_offset + self.last_offset_delta + 1

    @property
    def padding_bytes(self) -> int:
        """Number of zero bytes after the body, 0 to 7."""
        return (self.attributes & PADDING_MASK) >> PADDING_SHIFT

    @property
    def body_start(self) -> int:
        """Start of the body, in bytes from the start of the batch."""
        return HEADER_BYTES + self.extension_bytes

    @property
    def body_stop(self) -> int:
        """End of the body, in bytes from the start of the batch."""
        return self.total_bytes - self.padding_bytes

    @property
    def has_append_time(self) -> bool:
        """Whether the timestamp of every record is the append time."""
        return bool(self.stamp_flags & _APPEND_TIME)

    @property
    def max_time_us(self) -> int:
        """Largest timestamp in the batch, as consumers and the time index see it."""
        return self.append_time_us if self.has_append_time else self.max_timestamp_us

    @property
    def is_control(self) -> bool:
        """Whether the batch is a control batch, which is meant for brokers and never delivered to users."""
        return bool(self.attributes & _CONTROL)

    @property
    def is_transactional(self) -> bool:
        """Whether the batch belongs to a transaction."""
        return bool(self.attributes & _TRANSACTIONAL)

    @property
    def has_offset_column(self) -> bool:
        """Whether the batch has a column of offset deltas, which compaction adds."""
        return bool(self.attributes & _OFFSET_COLUMN)

    @property
    def has_producer(self) -> bool:
        """Whether producer id, epoch and base sequence are set."""
        return self.producer_id != NO_PRODUCER


def read_header(buffer: Buffer, at: int = 0) -> BatchHeader:
    """Read the header at a position; the buffer need not contain the body.

    Raises `malformed_batch` when fewer than 88 bytes are left or the lengths are inconsistent, and
    `unsupported_version` for an unknown format. The checksums are not verified.
    """
    left = len(buffer) - at
    if left < FORMAT_STOP:
        _malformed(f"only {left} bytes remain for a header of {HEADER_BYTES} bytes")
    if buffer[at + STAMP_BYTES] != FORMAT:
        raise ProblemError(
            "unsupported_version",
            f"record batch format {buffer[at + STAMP_BYTES]} is unknown; supported: {FORMAT}",
            data={"value": buffer[at + STAMP_BYTES], "supported": [FORMAT]},
        )
    if left < HEADER_BYTES:
        _malformed(f"only {left} bytes remain for a header of {HEADER_BYTES} bytes")
    header = BatchHeader(*_HEADER.unpack_from(buffer, at))
    _check_layout(header)
    return header


def _check_layout(header: BatchHeader) -> None:
    if (LENGTH_STOP + header.length) % 8 or header.extension_bytes % 8:
        _malformed(
            f"12 + length {header.length} and extension length {header.extension_bytes} must be multiples of 8"
        )
    if header.body_start > header.body_stop:
        _malformed(
            f"length {header.length} has no room for the header, an extension of {header.extension_bytes} bytes"
            f" and {header.padding_bytes} bytes of padding"
        )
    if header.last_offset_delta < 0 or header.record_count < 0:
        _malformed(
            f"last offset delta {header.last_offset_delta} and record count {header.record_count}"
            " must not be negative"
        )


def batch_span(buffer: Buffer, at: int = 0) -> tuple[int, int, int]:
    """Return (base offset, bytes of the whole batch, last offset delta) for a fast iteration over batches.

    The caller guarantees that the buffer has 44 bytes and that the bytes come from a checked log. The only check is for
    a length shorter than a header; such a length raises `malformed_batch`, so that an iteration always advances.
    """
    base_offset, length, last_offset_delta = _SPAN.unpack_from(buffer, at)
    if length < HEADER_BYTES - LENGTH_STOP:
        _malformed(f"length {length} is smaller than that of an empty batch, {HEADER_BYTES - LENGTH_STOP}")
    return base_offset, LENGTH_STOP + length, last_offset_delta


def iterate_headers(buffer: Buffer, start: int = 0) -> Iterator[tuple[int, BatchHeader]]:
    """Yield (position, header) of each batch in concatenated batches.

    Raises the problems of `read_header`, and `malformed_batch` if the last batch is incomplete.
    """
    at, stop = start, len(buffer)
    while at < stop:
        header = read_header(buffer, at)
        if at + header.total_bytes > stop:
            _malformed(
                f"the batch at byte {at} has {header.total_bytes} bytes, but only {stop - at} bytes remain"
            )
        yield at, header
        at += header.total_bytes


def make_stamp(
    header: BatchHeader, base_offset: int, leader_epoch: int, append_time_us: int, stamp_flags: int = 0
) -> bytes:
    """Return the 36 bytes that replace the first 36 bytes of a produced batch.

    The first 32 bytes are the leader's stamp with its checksum; the last 4 of the 36 bytes are the producer's checksum
    from `header`.
    """
    stamp = _STAMP.pack(base_offset, header.length, leader_epoch, append_time_us, stamp_flags, 0)
    return stamp + _CHECKSUMS.pack(extend(0, stamp), header.content_checksum)


def pack_header(header: BatchHeader, content: Sequence[Buffer]) -> bytes:
    """Return the 88 bytes of an unstamped header; `content` is extension, body and padding.

    The stamped fields and the content checksum of `header` are ignored: the leader writes the stamp, and the checksum
    is computed here.
    """
    fields = _PRODUCER_PART.pack(
        header.format,
        header.codec,
        header.attributes,
        header.last_offset_delta,
        header.record_count,
        header.min_timestamp_us,
        header.max_timestamp_us,
        header.producer_id,
        header.producer_epoch,
        header.base_sequence,
        header.uncompressed_bytes,
        header.schema_id,
        header.extension_bytes,
    )
    running = extend(0, fields)
    for part in content:
        running = checksum(part, 0, len(part), running)
    return _STAMP.pack(0, header.length, 0, 0, 0, 0) + _CHECKSUMS.pack(0, running) + fields


def check_stamp_checksum(buffer: Buffer, at: int = 0) -> None:
    """Raise `crc_mismatch` unless the checksum at byte 28 is the CRC32C of bytes 0 to 27."""
    computed = extend(0, bytes(buffer[at : at + _STAMP_CHECKSUM_AT]))
    stored = _CHECKSUM.unpack_from(buffer, at + _STAMP_CHECKSUM_AT)[0]
    if computed != stored:
        _mismatch("bytes 0 to 27", stored, computed)


def check_content_checksum(buffer: Buffer, at: int, header: BatchHeader) -> None:
    """Raise `crc_mismatch` unless the checksum at byte 32 is the CRC32C of byte 36 to the end of the batch."""
    computed = checksum(buffer, at + STAMP_BYTES, at + header.total_bytes)
    if computed != header.content_checksum:
        _mismatch("byte 36 to the end", header.content_checksum, computed)


def check_checksums(buffer: Buffer, at: int, header: BatchHeader) -> None:
    """Check both checksums of a stored batch. Raises `crc_mismatch` for a mismatch."""
    check_stamp_checksum(buffer, at)
    check_content_checksum(buffer, at, header)


def check_sizes(batch: Buffer, bytes_max: int) -> None:
    """Check that the buffer has the length of exactly one batch, without reading other fields.

    Raises `batch_too_large` for a batch of more than `bytes_max` bytes, and `malformed_batch` if the length field does
    not match the buffer or the length is not a multiple of 8.
    """
    if len(batch) > bytes_max:
        raise ProblemError(
            "batch_too_large",
            f"the batch has {len(batch)} bytes; allowed: {bytes_max}",
            data={"limit_bytes": bytes_max},
        )
    if len(batch) < FORMAT_STOP:
        _malformed(f"{len(batch)} bytes are too few for a batch")
    length = _LENGTH.unpack_from(batch, _LENGTH_AT)[0]
    if LENGTH_STOP + length != len(batch) or len(batch) % 8:
        _malformed(
            f"length {length} in a batch of {len(batch)} bytes; 12 + length must equal that size and be a multiple of 8"
        )


def check_unread_checksum(batch: Buffer) -> None:
    """Check the content checksum of exactly one batch before its header is read; the batch format may be unknown."""
    stored = _CHECKSUM.unpack_from(batch, _CONTENT_CHECKSUM_AT)[0]
    computed = checksum(batch, STAMP_BYTES, len(batch))
    if computed != stored:
        _mismatch("byte 36 to the end", stored, computed)


def checksum(buffer: Buffer, start: int, stop: int, before: int = 0) -> int:
    """Return the CRC32C of a range, continued from `before`, the checksum of the preceding bytes.

    google_crc32c refuses memoryviews, and slicing bytes copies the slice. google_crc32c accepts a numpy view, so long
    ranges are read without copying. For short ranges a copy is faster than a numpy view.
    """
    if stop - start <= _COPIED_BYTES_MAX:
        return int(extend(before, bytes(buffer[start:stop])))
    import numpy as np  # noqa: PLC0415 - importing numpy takes 0.1 s

    return int(extend(before, np.frombuffer(buffer, np.uint8, stop - start, start)))


def is_stamped(buffer: Buffer, at: int = 0) -> bool:
    """Return whether a leader has stamped the batch: an unstamped batch has a stamp of zeros except for the length."""
    return bool(
        bytes(buffer[at : at + _LENGTH_AT]) != _UNSTAMPED_HEAD
        or bytes(buffer[at + LENGTH_STOP : at + _CONTENT_CHECKSUM_AT]) != _UNSTAMPED_TAIL
    )


def _malformed(detail: str) -> NoReturn:
    raise ProblemError("malformed_batch", detail)


def _mismatch(what: str, stored: int, computed: int) -> NoReturn:
    raise ProblemError(
        "crc_mismatch", f"the checksum of {what} is {computed:#010x}, the batch has {stored:#010x}"
    )
