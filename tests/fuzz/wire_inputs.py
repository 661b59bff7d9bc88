"""Bytes of bad inputs for a broker: whole requests, chunked bodies, HTTP/1.1 heads, HTTP/2 frames.

`wire_mutations.py` sends these inputs. The mutated requests of `request_mutations.py` are complete HTTP messages, so
that the next request on the connection is found; the other inputs break the protocol below the requests.
"""

from __future__ import annotations

import random
import struct
from typing import Final
from urllib.parse import quote

from request_mutations import Request, RequestMutations

HOST: Final = "127.0.0.1"
HEAD: Final = b"GET /v1/topics/mutated?limit=3 HTTP/1.1\r\nHost: 127.0.0.1\r\nAccept: */*\r\nX-A: b\r\n\r\n"
HEAD_PIECES: Final = (
    b"\n", b"\r", b"\r\n", b"\r\n ", b"\x00", b"\xff", b" ", b"\t", b":", b"Content-Length: 5\r\n",
    b"Content-Length: -1\r\n", b"Transfer-Encoding: chunked\r\n", b"Transfer-Encoding: x, chunked\r\n",
    b"HTTP/9.9", b"Host: b\r\n", b"Expect: 100-continue\r\n", b"Upgrade: h2c\r\n", b"%", b"//", b"a" * 9000,
    b"Connection: upgrade\r\n", b"ffffffffffffffffff\r\n",
)  # fmt: skip
CHUNK_PIECES: Final = (
    b"0\r\n\r\n", b"-1\r\n", b"ffffffffffffffff\r\n", b"7fffffff\r\n", b"g\r\n", b"\r\n", b"1;a=b\r\nx\r\n", b" ",
    b"1\r\n\r\n", b"0\r\nX-A: b\r\n\r\n", b"0x1\r\na\r\n", b"\x00", b"1;" + b"e" * 20_000, b"0" * 300 + b"1\r\na\r\n",
)  # fmt: skip
PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
SETTINGS, HEADERS, CONTINUATION = 4, 1, 9
HEADERS_BLOCK: Final = b"\x82\x86\x04\x0a/v1/topics\x01\x09127.0.0.1"
"""Encoded head of `GET /v1/topics` with the authority 127.0.0.1."""
FRAMES: Final = ((1, 5), (1, 4), (0, 1), (3, 0), (8, 0), (9, 4), (6, 0), (7, 0), (2, 0), (99, 255))
"""Types and flags of frames."""


def wire_requests(rng: random.Random, topic_id: str) -> RequestMutations:
    """Return the source of mutated requests."""
    return RequestMutations(rng.getrandbits(32), topic_id)


def head_of(request: Request) -> list[tuple[str, str]]:
    """Return the headers of a request, except the headers that depend on the HTTP version."""
    headers = list(request.headers)
    for name, text in (("content-type", request.media_type), ("accept", request.accept)):
        if text is not None:
            headers.append((name, text))
    return headers


def target_of(request: Request) -> str:
    """Return path and query of a request."""
    query = "&".join(f"{name}={quote(value)}" for name, value in request.query)
    return quote(request.path, safe="/:%") + (f"?{query}" if query else "")


def message(request: Request, *further: tuple[str, str], chunked: bool = False) -> bytes:
    """Return a request as an HTTP/1.1 message, with the length of its body unless the body is chunked."""
    framing = ("transfer-encoding", "chunked") if chunked else ("content-length", str(len(request.body)))
    lines = [f"{quote(request.method)} {target_of(request)} HTTP/1.1", f"host: {HOST}"]
    lines += [f"{name}: {value}" for name, value in (framing, *further, *head_of(request))]
    return "\r\n".join(lines).encode("latin-1", "replace") + b"\r\n\r\n" + (b"" if chunked else request.body)


def malformed_chunks(rng: random.Random, request: Request) -> bytes:
    """Return a request whose chunked body has one to three errors in its encoding."""
    body, coded = request.body or b"{}", bytearray()
    while body:
        size = rng.choice((1, 7, 100, 5000))
        piece, body = body[:size], body[size:]
        coded += b"%x\r\n%b\r\n" % (len(piece), piece)
    coded += b"0\r\n\r\n"
    _change(rng, coded, CHUNK_PIECES)
    return message(request, chunked=True) + bytes(coded)


def malformed_head(rng: random.Random) -> bytes:
    """Return an HTTP/1.1 head with one to three changes."""
    head = bytearray(HEAD)
    _change(rng, head, HEAD_PIECES)
    return bytes(head)


def _change(rng: random.Random, data: bytearray, pieces: tuple[bytes, ...]) -> None:
    for _ in range(rng.choice((1, 1, 2, 3))):
        at = rng.randrange(len(data) or 1)
        pick = rng.random()
        if pick < 0.2 and data:
            data[at] ^= 1 << rng.randrange(8)
        elif pick < 0.3:
            del data[at : at + rng.choice((1, 2, 10))]
        else:
            data[at:at] = rng.choice(pieces)


def malformed_frames(rng: random.Random) -> bytes:
    """Return the bytes of an HTTP/2 connection whose frames have changed bytes, types, flags or lengths."""
    frames = bytearray(frame(SETTINGS, 0, 0, b""))
    for stream in range(1, 2 * rng.randrange(1, 5), 2):
        kind, flags = rng.choice(FRAMES)
        size = rng.choice((0, 4, 5, 8, 100))
        payload = bytearray(HEADERS_BLOCK if kind in (HEADERS, CONTINUATION) else rng.randbytes(size))
        if payload and rng.random() < 0.5:
            payload[rng.randrange(len(payload))] = rng.randrange(256)
        frames += frame(kind, flags, rng.choice((stream, stream, stream, stream, 0, 2)), bytes(payload))
    if rng.random() < 0.7:
        frames[rng.randrange(len(frames))] ^= 1 << rng.randrange(8)
    return PREFACE + bytes(frames)


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    """Return an HTTP/2 frame."""
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload
