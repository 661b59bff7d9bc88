"""A compressed body is exactly one frame."""

from __future__ import annotations

import struct

import pyarrow as pa
import pytest

from fairlead_api.batch.compressed_frames import check_one_frame
from fairlead_api.batch.header import Codec
from refusals import refuses

NAMES = {Codec.LZ4: "lz4", Codec.ZSTD: "zstd"}
CODECS = [pytest.param(codec, id=name) for codec, name in NAMES.items()]
CONTENTS = [
    b"",
    b"a" * 10,
    bytes(range(256)) * 4,
    b"ab" * 300_000,
    pa.py_buffer(bytes(3_000_000)).to_pybytes(),
]


def compressed(codec: Codec, content: bytes) -> bytes:
    """Compress in one piece, as the SDK does."""
    return bytes(pa.compress(content, NAMES[codec], asbytes=True))


def streamed(codec: Codec, content: bytes) -> bytes:
    """Compress piece by piece, like a writer that does not know the total size."""
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, NAMES[codec]) as stream:
        for at in range(0, len(content), 100_000):
            stream.write(content[at : at + 100_000])
    return bytes(sink.getvalue().to_pybytes())


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("content", CONTENTS, ids=[str(len(content)) for content in CONTENTS])
def test_a_real_frame_passes(codec: Codec, content: bytes) -> None:
    """A frame that a real compressor writes, in one piece or streamed, is accepted."""
    check_one_frame(compressed(codec, content), codec)
    check_one_frame(memoryview(streamed(codec, content)), codec)


@pytest.mark.parametrize("codec", CODECS)
def test_anything_behind_or_missing_is_refused(codec: Codec) -> None:
    """A body with an extra byte, a second, empty or skippable frame, or a truncated frame is refused."""
    frame = compressed(codec, b"content")
    behind = [b"\0", bytes(8), frame, compressed(codec, b""), b"\x50\x2a\x4d\x18" + bytes(4)]
    for wrong in [frame + more for more in behind] + [frame[:stop] for stop in range(len(frame))]:
        with refuses("malformed_batch"):
            check_one_frame(wrong, codec)


@pytest.mark.parametrize("codec", CODECS)
def test_another_format_is_refused(codec: Codec) -> None:
    """A body that does not begin with the codec's magic number is refused."""
    with refuses("malformed_batch", "0x00000000"):
        check_one_frame(bytes(64), codec)


@pytest.mark.parametrize("flags", [0b0100_0000, 0b0101_0000, 0b0100_0100, 0b0100_1000, 0b0101_1100])
def test_every_optional_part_of_an_lz4_frame_is_walked(flags: int) -> None:
    """An LZ4 frame with block checksums, a content checksum and a content size is accepted."""
    size = bytes(8) if flags & 8 else b""
    block_sum, content_sum = bytes(4 if flags & 16 else 0), bytes(4 if flags & 4 else 0)
    block = struct.pack("<I", 1 << 31 | 5) + b"12345" + block_sum
    frame = struct.pack("<IBB", 0x184D2204, flags, 0x40) + size + b"\0" + 2 * block + bytes(4) + content_sum

    check_one_frame(frame, Codec.LZ4)


@pytest.mark.parametrize("flags", [0b0000_0000, 0b1000_0000, 0b0100_0001])
def test_lz4_frames_of_other_versions_or_with_a_dictionary_are_refused(flags: int) -> None:
    """An LZ4 frame of a different version or with a dictionary is refused, because not every reader could open it."""
    with refuses("malformed_batch", "dictionary"):
        check_one_frame(struct.pack("<IBB", 0x184D2204, flags, 0x40) + bytes(32), Codec.LZ4)


@pytest.mark.parametrize(
    ("flags", "rest"),
    [(0x00, 1), (0x40, 3), (0x80, 5), (0xC0, 9), (0x20, 1), (0x60, 2), (0xA0, 4), (0xE0, 8), (0xE4, 8)],
)
def test_every_form_of_a_zstd_header_is_walked(flags: int, rest: int) -> None:
    """A zstd frame is accepted with every form of header: window, content size, checksum and run-length blocks."""
    raw = (5 << 3).to_bytes(3, "little") + b"12345"
    run = (70_000 << 3 | 0b011).to_bytes(3, "little") + b"x"
    frame = struct.pack("<IB", 0xFD2FB528, flags) + bytes(rest) + raw + run + bytes(4 if flags & 4 else 0)

    check_one_frame(frame, Codec.ZSTD)


def test_zstd_frames_with_a_dictionary_are_refused() -> None:
    """A zstd frame with a dictionary is refused, because no reader has the dictionary."""
    with refuses("malformed_batch", "dictionary"):
        check_one_frame(struct.pack("<IB", 0xFD2FB528, 1) + bytes(32), Codec.ZSTD)


@pytest.mark.parametrize(("descriptor", "allowed"), [(13 << 3, True), (13 << 3 | 1, False), (21 << 3, False)])
def test_zstd_windows_are_those_that_every_decoder_has(descriptor: int, allowed: bool) -> None:
    """A zstd window of 8 MiB is accepted, and a larger one is refused, because not every decoder supports it."""
    frame = struct.pack("<IBB", 0xFD2FB528, 0, descriptor) + b"\x01\0\0"
    if allowed:
        check_one_frame(frame, Codec.ZSTD)
    else:
        with refuses("malformed_batch", "window"):
            check_one_frame(frame, Codec.ZSTD)
