"""Frames: the batches of many partitions in one body, each preceded by JSON metadata that names the partition.

The broker and the SDK write and read this format in bodies of the media type `application/vnd.fairlead.frames;v=1`. A
frame has two u32 lengths (little-endian), the metadata (JSON padded with spaces to a multiple of 8) and the data (whole
batches), so that every batch is 8-aligned in the body. This module must not depend on the contents of the metadata.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NoReturn

import msgspec

from fairlead_api.batch.header import Buffer
from fairlead_api.problems import ProblemError

_LENGTHS: Final = struct.Struct("<II")
_ALIGNMENT: Final = 8
META_BYTES_MAX: Final = 64 * 1024
"""Maximum size of a frame's metadata, which is sufficient for the longest problem document; metadata without a problem
document takes about 250 bytes."""
FRAMES_MAX: Final = 10_000
"""Maximum number of partitions in a request, equal to the maximum that a consumer group may consume."""


@dataclass(frozen=True, slots=True)
class Frame:
    """One frame of a body."""

    meta: bytes
    """JSON metadata, which may have trailing spaces."""
    data: memoryview


def encode_frame(meta: bytes | msgspec.Struct, data: Sequence[Buffer] = ()) -> list[Buffer]:
    """Return a frame as consecutive parts; the parts of the data are not copied.

    Raises `ValueError`, which indicates a programming error, for data whose length is not a multiple of 8, or for
    metadata or data beyond their limits.
    """
    document = meta if isinstance(meta, bytes) else msgspec.json.encode(meta)
    document += b" " * (-len(document) % _ALIGNMENT)
    data_bytes = sum(len(part) for part in data)
    if data_bytes % _ALIGNMENT or data_bytes >= 1 << 32 or not 0 < len(document) <= META_BYTES_MAX:
        sizes = f"{len(document)} bytes of metadata and {data_bytes} bytes of data"
        raise ValueError("a frame cannot have " + sizes)
    return [_LENGTHS.pack(len(document), data_bytes) + document, *data]


def iterate_frames(body: Buffer, frames_max: int = FRAMES_MAX) -> Iterator[Frame]:
    """Yield the frames of a body in order; the data of a frame is a memoryview of the body, not a copy.

    Raises `malformed_request`, after yielding the previous frames, with the index of the first frame that has invalid
    lengths.
    """
    view = memoryview(body)
    at, number = 0, 0
    while at < len(view):
        if number == frames_max:
            _malformed(f"the body has more than {frames_max} frames")
        left = len(view) - at - _LENGTHS.size
        if left < 0:
            _malformed(f"frame {number} is truncated: {len(view) - at} bytes remain for its two lengths")
        meta_bytes, data_bytes = _LENGTHS.unpack_from(view, at)
        _check_lengths(number, meta_bytes, data_bytes, left)
        meta_stop = at + _LENGTHS.size + meta_bytes
        at = meta_stop + data_bytes
        yield Frame(bytes(view[meta_stop - meta_bytes : meta_stop]), view[meta_stop:at])
        number += 1


def _check_lengths(number: int, meta_bytes: int, data_bytes: int, left: int) -> None:
    if not 0 < meta_bytes <= META_BYTES_MAX:
        _malformed(f"frame {number} has {meta_bytes} bytes of metadata; allowed: 1 to {META_BYTES_MAX}")
    if meta_bytes % _ALIGNMENT or data_bytes % _ALIGNMENT:
        _malformed(
            f"frame {number} has {meta_bytes} bytes of metadata and {data_bytes} bytes of data;"
            f" both must be multiples of {_ALIGNMENT}"
        )
    if meta_bytes + data_bytes > left:
        _malformed(
            f"frame {number} has {meta_bytes} bytes of metadata and {data_bytes} bytes of data; "
            f"only {left} bytes remain"
        )


def _malformed(detail: str) -> NoReturn:
    raise ProblemError("malformed_request", detail)
