"""Frames of Kafka's protocol are split from pieces of any size, and bad frames are refused before any allocation."""

from __future__ import annotations

import struct
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead_broker.kafka.protocol.apis import ApiKey
from fairlead_broker.kafka.protocol.frames import (
    FRAME_BYTES_MAX,
    STRANGER_FRAME_BYTES_MAX,
    Frame,
    FrameReader,
)
from fairlead_broker.kafka.protocol.messages import UndecodableError

PRODUCE_BYTES_MAX = 8 << 20
METADATA_12 = struct.pack(">hhih", ApiKey.METADATA, 12, 7, -1) + b"\0"
"""Header of a flexible request without a client id and without tagged fields."""


def framed(request: bytes) -> bytes:
    """Return a request with its size."""
    return struct.pack(">i", len(request)) + request


def frames_in(*pieces: bytes) -> list[Frame]:
    """Return the frames in bytes that arrive in pieces."""
    reader, found = FrameReader(PRODUCE_BYTES_MAX), []
    for piece in pieces:
        reader.feed(piece)
        while reader.announced_bytes() is not None and (frame := reader.next_frame()) is not None:
            found.append(frame)
    return found


@given(st.lists(st.binary(max_size=50), min_size=1, max_size=5), st.data())
def test_frames_do_not_depend_on_the_pieces_in_which_bytes_arrive(
    bodies: list[bytes], data: st.DataObject
) -> None:
    """Every body arrives complete and in order, however the bytes are divided."""
    stream = b"".join(framed(METADATA_12 + body) for body in bodies)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    pieces = [stream[start:end] for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True)]

    found = frames_in(*pieces)

    assert [bytes(frame.body) for frame in found] == bodies
    assert {frame.header.correlation_id for frame in found} == {7}


def test_small_pieces_take_little_more_memory_than_their_bytes() -> None:
    """A frame of 64 KiB that arrives byte by byte takes less than twice its size until it is complete."""
    body = bytes(STRANGER_FRAME_BYTES_MAX - len(METADATA_12))
    frame = framed(METADATA_12 + body)
    reader = FrameReader(PRODUCE_BYTES_MAX)
    tracemalloc.start()
    try:
        for at in range(len(frame) - 1):
            reader.feed(frame[at : at + 1])
            assert reader.announced_bytes() is None or reader.next_frame() is None
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    reader.feed(frame[-1:])
    complete = reader.next_frame()

    assert taken < 2 * len(frame)
    assert complete is not None
    assert bytes(complete.body) == body


def test_the_body_begins_after_client_id_and_tagged_fields() -> None:
    """A flexible header has tagged fields, and a header of an older version has none."""
    flexible = struct.pack(">hhih", ApiKey.METADATA, 12, 1, 3) + b"abc" + b"\x01\x05\x02xy" + b"body"
    plain = struct.pack(">hhih", ApiKey.METADATA, 1, 2, 3) + b"abc" + b"body"

    first, second = frames_in(framed(flexible) + framed(plain))

    assert (bytes(first.body), first.header.client_id) == (b"body", "abc")
    assert (bytes(second.body), second.header.client_id) == (b"body", "abc")


@pytest.mark.parametrize(
    ("key", "version", "known"),
    [(3, 13, True), (3, 14, False), (3, -1, False), (999, 0, False), (18, 100, False)],
)
def test_apis_and_versions_outside_the_table_are_named(key: int, version: int, known: bool) -> None:
    """A frame for an unsupported API or version is returned without an API, but its header is still read."""
    [frame] = frames_in(framed(struct.pack(">hhih", key, version, 5, -1) + b"\0" * 20))

    assert (frame.api is not None) is known
    assert (frame.header.api_key, frame.header.version, frame.header.correlation_id) == (key, version, 5)


@pytest.mark.parametrize(
    "start",
    [
        b"GET / HTTP/1.1\r\n",
        b"PRI * HTTP/2.0\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01",
        struct.pack(">ihh", -1, 3, 0),
        struct.pack(">ihh", 0, 3, 0),
        struct.pack(">ihh", 2**31 - 1, 0, 9),
        struct.pack(">ihh", PRODUCE_BYTES_MAX + 1, 0, 9),
        struct.pack(">ihh", FRAME_BYTES_MAX + 1, 3, 9),
    ],
)
def test_a_size_that_is_not_allowed_is_refused_from_eight_bytes(start: bytes) -> None:
    """HTTP, TLS, and negative or excessive sizes are refused as soon as the size and the API have arrived."""
    reader = FrameReader(PRODUCE_BYTES_MAX)
    reader.feed(start[:8])

    with pytest.raises(UndecodableError):
        reader.announced_bytes()


@pytest.mark.parametrize(
    "request_bytes",
    [
        struct.pack(">hhih", ApiKey.METADATA, 12, 1, 100) + b"abc",
        struct.pack(">hhih", ApiKey.METADATA, 12, 1, -1) + b"\xff\xff\xff\xff\xff\xff",
        struct.pack(">hhih", ApiKey.METADATA, 12, 1, -1) + b"\x01\x00\xff\xff\xff\x7f",
        struct.pack(">hhih", ApiKey.METADATA, 12, 1, -1) + b"\x65",
        struct.pack(">hhih", ApiKey.METADATA, 12, 1, -1) + b"\x01\x00",
    ],
)
def test_a_header_with_hostile_lengths_is_refused(request_bytes: bytes) -> None:
    """Lengths beyond the request, too many tagged fields and a premature end are refused."""
    with pytest.raises(UndecodableError):
        frames_in(framed(request_bytes))
