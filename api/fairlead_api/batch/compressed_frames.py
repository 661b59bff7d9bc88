"""Check that a compressed body is exactly one LZ4 or zstd frame.

`validation` calls this module before it decompresses a body. Streaming decoders continue after the end of a frame, and
other decoders refuse trailing bytes. A body with two frames, or with a skippable or empty frame at the end, would
therefore have different meanings for different readers. The check walks the blocks of the frame (LZ4 Frame Format 1.6,
RFC 8878 for zstd) without decompressing them.
"""

from __future__ import annotations

import struct
from typing import Final, NoReturn

from fairlead_api.batch.header import Buffer, Codec
from fairlead_api.problems import ProblemError

ZSTD_WINDOW_BYTES_MAX: Final = 8 * 1024 * 1024
"""Window size that every decoder should support according to RFC 8878; with a larger window, readers would allocate
more memory than the body needs."""

_U32: Final = struct.Struct("<I")
_LZ4_MAGIC: Final = 0x184D2204
_LZ4_VERSION_MASK: Final = 0b1100_0000
_LZ4_VERSION: Final = 0b0100_0000
_LZ4_BLOCK_CHECKSUM: Final = 0b0001_0000
_LZ4_CONTENT_SIZE: Final = 0b0000_1000
_LZ4_CONTENT_CHECKSUM: Final = 0b0000_0100
_LZ4_DICTIONARY: Final = 0b0000_0001
_LZ4_BLOCK_BYTES_MASK: Final = 0x7FFFFFFF
_ZSTD_MAGIC: Final = 0xFD2FB528
_ZSTD_SINGLE_SEGMENT: Final = 0b0010_0000
_ZSTD_CHECKSUM: Final = 0b0000_0100
_ZSTD_DICTIONARY: Final = 0b0000_0011
_ZSTD_CONTENT_SIZE_BYTES: Final = (0, 2, 4, 8)
_ZSTD_BLOCK_HEADER_BYTES: Final = 3
_ZSTD_RUN_BLOCK: Final = 1


def check_one_frame(body: Buffer, codec: Codec) -> None:
    """Raise `malformed_batch` unless the whole body is exactly one frame of the codec."""
    try:
        stop = _lz4_stop(body) if codec == Codec.LZ4 else _zstd_stop(body)
    except (struct.error, IndexError):
        raise ProblemError(
            "malformed_batch", f"the {codec.name.lower()} frame of the body is truncated"
        ) from None
    if stop != len(body):
        _malformed(f"the {codec.name.lower()} frame of the body ends at byte {stop} of {len(body)}")


def _lz4_stop(body: Buffer) -> int:
    _check_magic(body, _LZ4_MAGIC)
    flags = body[4]
    if flags & _LZ4_VERSION_MASK != _LZ4_VERSION or flags & _LZ4_DICTIONARY:
        _malformed(f"lz4 frame with flags {flags:#04x}; allowed: version 1 without a dictionary")
    block_checksum_bytes = 4 if flags & _LZ4_BLOCK_CHECKSUM else 0
    at = 7 + (8 if flags & _LZ4_CONTENT_SIZE else 0)
    while block_bytes := _U32.unpack_from(body, at)[0]:
        at += 4 + (block_bytes & _LZ4_BLOCK_BYTES_MASK) + block_checksum_bytes
    return at + 4 + (4 if flags & _LZ4_CONTENT_CHECKSUM else 0)


def _zstd_stop(body: Buffer) -> int:
    _check_magic(body, _ZSTD_MAGIC)
    flags = body[4]
    if flags & _ZSTD_DICTIONARY:
        _malformed("zstd frame with a dictionary; allowed: none")
    content_size_bytes = _ZSTD_CONTENT_SIZE_BYTES[flags >> 6]
    if flags & _ZSTD_SINGLE_SEGMENT:
        at = 5 + (content_size_bytes or 1)
    else:
        _check_window(body[5])
        at = 6 + content_size_bytes
    last = False
    while not last:
        block = int.from_bytes(body[at : at + _ZSTD_BLOCK_HEADER_BYTES], "little")
        if at + _ZSTD_BLOCK_HEADER_BYTES > len(body):
            raise IndexError
        last = bool(block & 1)
        at += _ZSTD_BLOCK_HEADER_BYTES + (1 if block >> 1 & 0b11 == _ZSTD_RUN_BLOCK else block >> 3)
    return at + (4 if flags & _ZSTD_CHECKSUM else 0)


def _check_magic(body: Buffer, expected: int) -> None:
    magic = _U32.unpack_from(body)[0]
    if magic != expected:
        _malformed(f"the compressed body begins with {magic:#010x}; allowed: {expected:#010x}")


def _check_window(descriptor: int) -> None:
    base = 1 << (10 + (descriptor >> 3))
    window_bytes = base + (base >> 3) * (descriptor & 0b111)
    if window_bytes > ZSTD_WINDOW_BYTES_MAX:
        _malformed(f"zstd frame with a window of {window_bytes} bytes; allowed: {ZSTD_WINDOW_BYTES_MAX}")


def _malformed(detail: str) -> NoReturn:
    raise ProblemError("malformed_batch", detail)
