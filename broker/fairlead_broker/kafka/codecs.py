"""Compression of the records in Kafka's batches: the codecs that clients send, and the codecs that clients accept.

`batches` calls this module. Records are decompressed with a limit, regardless of the size that they claim. This module
must not know the layout of batches or records.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import Final, Literal

import pyarrow as pa

from fairlead_api.batch.header import Buffer

SNAPPY_BLOCKS_MAX: Final = 65_536
"""Maximum number of blocks in snappy-java's framing. Clients write blocks of 32 KiB; millions of empty blocks would
take seconds."""

_SNAPPY_JAVA: Final = b"\x82SNAPPY\x00"
_SNAPPY_JAVA_HEAD_BYTES: Final = 16
_SNAPPY_SIZE_BYTES_MAX: Final = 5
_BLOCK_BYTES: Final = struct.Struct(">i")
_LZ4_HEAD: Final = bytes.fromhex("04224d18604082")
"""Head of an LZ4 frame with independent blocks of at most 64 KiB; the last byte is the checksum of the head."""
_LZ4_BLOCK_BYTES: Final = 65_536
_LZ4_SIZE: Final = struct.Struct("<I")
_LZ4_NOT_COMPRESSED: Final = 1 << 31
_LZ4_END: Final = bytes(4)
_SNAPPY: Final = pa.Codec("snappy")
_LZ4_BLOCK: Final = pa.Codec("lz4_raw")


class KafkaCodec(IntEnum):
    """Codec in the lowest three bits of the attributes of a Kafka batch."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


class TooLargeError(Exception):
    """Compressed records are larger than the limit allows."""


class UnreadableError(Exception):
    """Compressed records are not valid for their codec."""

    def __init__(self, codec: KafkaCodec, detail: str) -> None:
        super().__init__(f"the records cannot be decompressed as {codec.name.lower()}: {detail}")


_STREAMS: Final[dict[KafkaCodec, Literal["gzip", "lz4", "zstd"]]] = {
    KafkaCodec.GZIP: "gzip",
    KafkaCodec.LZ4: "lz4",
    KafkaCodec.ZSTD: "zstd",
}


def decompress(codec: KafkaCodec, data: memoryview, bytes_max: int) -> Buffer:
    """Return the records of a compressed batch. Raises `TooLargeError` or `UnreadableError`."""
    try:
        if codec == KafkaCodec.SNAPPY:
            return _from_snappy(data, bytes_max)
        with pa.CompressedInputStream(pa.BufferReader(pa.py_buffer(data)), _STREAMS[codec]) as stream:
            opened = stream.read_buffer(bytes_max + 1)
    except (pa.ArrowException, OSError, struct.error) as error:
        raise UnreadableError(codec, str(error)) from error
    if opened.size > bytes_max:
        raise TooLargeError
    return memoryview(opened)


def compress_lz4(data: memoryview) -> bytes:
    """Return an LZ4 frame with independent blocks, since Java clients refuse other frames."""
    parts = [_LZ4_HEAD]
    for at in range(0, len(data), _LZ4_BLOCK_BYTES):
        block = data[at : at + _LZ4_BLOCK_BYTES]
        smaller = _LZ4_BLOCK.compress(block, asbytes=True)
        if len(smaller) < len(block):
            parts += (_LZ4_SIZE.pack(len(smaller)), smaller)
        else:
            parts += (_LZ4_SIZE.pack(len(block) | _LZ4_NOT_COMPRESSED), bytes(block))
    parts.append(_LZ4_END)
    return b"".join(parts)


def compress_zstd(data: memoryview) -> bytes:
    """Return a zstd frame."""
    return pa.compress(pa.py_buffer(data), "zstd", asbytes=True)


def _from_snappy(data: memoryview, bytes_max: int) -> Buffer:
    """Decompress a single block without framing, or the blocks of snappy-java's framing."""
    if bytes(data[: len(_SNAPPY_JAVA)]) != _SNAPPY_JAVA:
        return _snappy_block(data, bytes_max)
    parts: list[Buffer] = []
    at, left = _SNAPPY_JAVA_HEAD_BYTES, bytes_max
    while at < len(data):
        size = _BLOCK_BYTES.unpack_from(data, at)[0]
        at += _BLOCK_BYTES.size
        if not 0 <= size <= len(data) - at or len(parts) == SNAPPY_BLOCKS_MAX:
            raise UnreadableError(KafkaCodec.SNAPPY, f"block of {size} bytes, {len(data) - at} bytes remain")
        block = _snappy_block(data[at : at + size], left)
        parts.append(block)
        left -= len(block)
        at += size
    return b"".join(parts)


def _snappy_block(block: memoryview, bytes_max: int) -> Buffer:
    size = shift = 0
    for byte in block[:_SNAPPY_SIZE_BYTES_MAX]:
        size |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            break
    if size > bytes_max:
        raise TooLargeError
    return memoryview(_SNAPPY.decompress(block, size))
