"""Frames of Kafka's protocol: splits the bytes of a connection into requests, and reads the header of each request.

`connection` feeds the received bytes to a `FrameReader`. A frame's bytes are kept as they arrive, with small pieces
joined: no memory is allocated on the basis of a length that a client merely announces.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final

from fairlead_broker.kafka.protocol.apis import APIS, Api, ApiKey
from fairlead_broker.kafka.protocol.messages import UndecodableError, is_flexible

STRANGER_FRAME_BYTES_MAX: Final = 64 << 10
"""Maximum number of bytes of a request before the client has authenticated."""
FRAME_BYTES_MAX: Final = 4 << 20
"""Maximum size in bytes of a request other than Produce, enough for a fetch of 10,000 partitions."""
SMALL_PIECE_BYTES: Final = 4 << 10
"""Maximum size to which consecutive pieces are joined as they arrive: an object for each piece takes 300 bytes, however
few bytes the piece has."""
TAGGED_FIELDS_MAX: Final = 100
"""Maximum number of tagged fields of a request header."""
_SIZE: Final = struct.Struct(">i")
_KEY_AND_VERSION: Final = struct.Struct(">hh")
_HEADER: Final = struct.Struct(">hhih")
_HTTP: Final = frozenset({b"GET ", b"POST", b"PUT ", b"HEAD", b"DELE", b"PATC", b"OPTI", b"PRI "})
_TLS_HANDSHAKE: Final = 22


@dataclass(frozen=True, slots=True)
class RequestHeader:
    """Header of a request."""

    api_key: int
    version: int
    correlation_id: int
    client_id: str | None


@dataclass(frozen=True, slots=True)
class Frame:
    """One request as received, without its size."""

    header: RequestHeader
    api: Api | None
    """API of the request; None if the listener does not serve the API in this version."""
    body: memoryview
    """Bytes after the header; for an API that is not served, all bytes after the client id."""
    nbytes: int


class FrameReader:
    """Splits the bytes of one connection into frames."""

    __slots__ = ("_chunks", "_frame_bytes_max", "_have", "_produce_bytes_max", "_wanted", "is_limited")

    def __init__(self, produce_bytes_max: int, frame_bytes_max: int = FRAME_BYTES_MAX) -> None:
        self._produce_bytes_max = produce_bytes_max
        self._frame_bytes_max = frame_bytes_max
        self._chunks: list[memoryview] = []
        self._have = 0
        self.is_limited = False
        """Whether the limit for clients that have not authenticated applies."""
        self._wanted: int | None = None
        """Number of bytes of the first frame, including its size field; None while the size is unknown."""

    def feed(self, data: bytes) -> None:
        """Take received bytes."""
        self._have += len(data)
        if self._chunks and len(self._chunks[-1]) + len(data) <= SMALL_PIECE_BYTES:
            data = b"".join((self._chunks.pop(), data))
        self._chunks.append(memoryview(data))

    def announced_bytes(self) -> int | None:
        """Return the number of bytes of the next frame, or None until its size has arrived. Raises UndecodableError."""
        if self._wanted is None and self._have >= _SIZE.size + _KEY_AND_VERSION.size:
            self._wanted = self._size(self._front(_SIZE.size + _KEY_AND_VERSION.size))
        return self._wanted

    def next_frame(self) -> Frame | None:
        """Return the announced frame, or None until it has arrived completely. Raises UndecodableError."""
        assert self._wanted is not None, "the size of the frame is known"
        if self._have < self._wanted:
            return None
        whole = self._take(self._wanted)
        self._wanted = None
        return _frame(whole[_SIZE.size :])

    def _size(self, start: memoryview) -> int:
        """Return the number of bytes of the frame that begins with these bytes. Raises UndecodableError."""
        if bytes(start[:4]) in _HTTP:
            raise UndecodableError("an HTTP client on the Kafka listener")
        if start[0] == _TLS_HANDSHAKE:
            msg = "a TLS client on a Kafka listener without TLS"
            raise UndecodableError(msg)
        (size,) = _SIZE.unpack_from(start)
        (key, _) = _KEY_AND_VERSION.unpack_from(start, _SIZE.size)
        allowed = self._produce_bytes_max if key == ApiKey.PRODUCE else self._frame_bytes_max
        if self.is_limited:
            allowed = min(allowed, STRANGER_FRAME_BYTES_MAX)
        if not _HEADER.size <= size <= allowed:
            message = f"a request of {size} bytes; allowed are {_HEADER.size} to {allowed}"
            raise UndecodableError(message)
        return _SIZE.size + int(size)

    def _front(self, count: int) -> memoryview:
        """Return the first bytes without taking them."""
        if len(self._chunks[0]) < count:
            self._chunks = [memoryview(b"".join(self._chunks))]
        return self._chunks[0][:count]

    def _take(self, count: int) -> memoryview:
        """Take the first bytes; bytes that arrived in one piece are not copied."""
        if len(self._chunks[0]) < count:
            self._chunks = [memoryview(b"".join(self._chunks))]
        first = self._chunks[0]
        self._have -= count
        if len(first) == count:
            del self._chunks[0]
        else:
            self._chunks[0] = first[count:]
        return first[:count]


def _frame(data: memoryview) -> Frame:
    key, version, correlation_id, id_length = _HEADER.unpack_from(data)
    at = _HEADER.size
    client_id = None
    if id_length >= 0:
        at += id_length
        if at > len(data):
            msg = "the client id is longer than the request"
            raise UndecodableError(msg)
        client_id = bytes(data[at - id_length : at]).decode(errors="replace")
    api = APIS.get(key)
    if api is None or not api.serves(version):
        api = None
    elif is_flexible(api, version):
        at = _after_tagged_fields(data, at)
    header = RequestHeader(key, version, correlation_id, client_id)
    return Frame(header, api, data[at:], _SIZE.size + len(data))


def _after_tagged_fields(data: memoryview, at: int) -> int:
    count, at = _varint(data, at)
    if count > TAGGED_FIELDS_MAX:
        msg = "a request header has too many tagged fields"
        raise UndecodableError(msg)
    for _ in range(count):
        _, at = _varint(data, at)
        length, at = _varint(data, at)
        at += length
    if at > len(data):
        msg = "a tagged field is longer than the request"
        raise UndecodableError(msg)
    return at


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    """Return an unsigned variable-length number and the index after it."""
    number = 0
    for shift in range(0, 35, 7):
        if at >= len(data):
            raise UndecodableError("a request header ends early")
        byte = data[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, at
    msg = "a number in a request header is too long"
    raise UndecodableError(msg)
