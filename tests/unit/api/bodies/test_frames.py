"""Frames with the batches of many partitions in one body."""

from __future__ import annotations

import struct

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead_api.bodies.frames import META_BYTES_MAX, Frame, encode_frame, iterate_frames
from refusals import raises, refuses

WORDS = st.lists(st.binary(min_size=8, max_size=8), max_size=4)


class Meta(msgspec.Struct):
    """Metadata with two fields."""

    topic_id: str
    partition: int


def joined(meta: bytes | msgspec.Struct, data: list[bytes]) -> bytes:
    """Return a frame as one bytes object."""
    return b"".join(encode_frame(meta, data))


@given(st.lists(st.tuples(st.text(max_size=20), st.integers(0, 2**31 - 1), WORDS), max_size=6))
def test_frames_come_back_in_order_and_aligned(frames: list[tuple[str, int, list[bytes]]]) -> None:
    """Frames are read back in order with metadata and data, and the data begins at multiples of 8 bytes in the body."""
    body = b"".join(joined(Meta(topic, number), data) for topic, number, data in frames)
    found = list(iterate_frames(memoryview(body)))

    assert [msgspec.json.decode(frame.meta, type=Meta) for frame in found] == [
        Meta(topic, number) for topic, number, _ in frames
    ]
    assert [bytes(frame.data) for frame in found] == [b"".join(data) for _, _, data in frames]
    at = 0
    for frame in found:
        at += 8 + len(frame.meta)
        assert at % 8 == 0
        at += len(frame.data)


def test_data_are_views_of_the_body() -> None:
    """The data of a frame is copied neither when it is written nor when it is read."""
    data = bytearray(b"12345678")
    parts = encode_frame(b"{}", [data])
    body = bytearray(b"".join(parts))
    frame = next(iterate_frames(body))
    body[-1] = 0

    assert parts[1] is data
    assert frame == Frame(b"{}      ", memoryview(b"1234567\0"))


def test_the_layout_is_two_lengths_meta_and_data() -> None:
    """A frame consists of two little-endian u32 lengths, JSON padded with spaces, and data, as in the HTTP contract."""
    assert joined(Meta("t", 3), [b"abcdefgh"]) == (
        struct.pack("<II", 32, 8) + b'{"topic_id":"t","partition":3}  ' + b"abcdefgh"
    )


@pytest.mark.parametrize(
    ("body", "named"),
    [
        (bytes(4), "0"),
        (joined(b"{}", []) + bytes(7), "1"),
        (struct.pack("<II", 0, 0), "0"),
        (
            struct.pack("<II", META_BYTES_MAX + 8, 0) + bytes(META_BYTES_MAX + 8),
            "0 65544",
        ),
        (struct.pack("<II", 4, 4) + b"{}  data", "8"),
        (struct.pack("<II", 8, 4) + b"{}      data", "8"),
        (
            joined(b"{}", [bytes(8)])[:-8],
            "0 8",
        ),
        (struct.pack("<II", 8, 0xFFFFFFF8) + b"{}      ", "4294967288 8"),
        (3 * joined(b"{}", []), "2"),
    ],
)
def test_a_frame_that_does_not_fit_is_named(body: bytes, named: str) -> None:
    """A body with wrong frame lengths or with one frame too many is malformed, and the detail names the frame."""
    with refuses("malformed_request", *named.split()):
        list(iterate_frames(body, 2))


@pytest.mark.parametrize(("meta", "data"), [(b"", []), (bytes(META_BYTES_MAX + 1), []), (b"{}", [bytes(4)])])
def test_an_unreadable_frame_is_not_written(meta: bytes, data: list[bytes]) -> None:
    """A frame whose metadata is empty or too long, or whose data is unaligned, is refused with ValueError."""
    with raises(ValueError):
        encode_frame(meta, data)
