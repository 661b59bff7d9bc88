"""Headers that name the producer of a body, or identify a request.

Callers: the families of produce calls. Both are for JSON and Arrow bodies, which become batches here; a binary body
carries its producer in the batch, and a producer named apart from its batch could not be trusted.
"""

from __future__ import annotations

import asyncio
import hashlib
from typing import Final, NoReturn

from fairlead_api.batch.batches import ProducerStamp
from fairlead_api.batch.extension import IDEMPOTENCY_KEY_BYTES_MAX, REQUEST_DIGEST_BYTES
from fairlead_api.bodies.cloud_events import HEADER_PREFIX
from fairlead_api.bodies.media_types import Header
from fairlead_api.excerpts import shown
from fairlead_api.problems import ProblemError
from fairlead_broker.runtime import KeyedRequest
from fairlead_broker.server.http.call import Call
from fairlead_broker.server.http.negotiation import BINARY_EVENT

ON_LOOP_BYTES_MAX: Final = 128 << 10
"""Larger bodies are digested in a thread: a MiB takes the loop a millisecond."""
_INT32_MAX: Final = 2**31 - 1
_INT64_MAX: Final = 2**63 - 1
_KEY: Final = Header.IDEMPOTENCY_KEY.lower().encode()
_PRODUCER: Final = (
    (Header.PRODUCER_ID, _INT64_MAX),
    (Header.PRODUCER_EPOCH, _INT32_MAX),
    (Header.BASE_SEQUENCE, _INT32_MAX),
)
_ALL: Final = tuple(header.lower().encode() for header, _ in _PRODUCER)


def producer_stamp(call: Call) -> ProducerStamp | None:
    """The idempotent producer of a JSON or Arrow body, if it names one. Raises ProblemError malformed_request."""
    given = [name for name in _ALL if name in call.headers]
    if not given:
        return None
    if len(given) < len(_ALL):
        missing = next(header for header, _ in _PRODUCER if header.lower().encode() not in call.headers)
        _refuse(
            missing, "", "the headers Fairlead-Producer-Id, -Producer-Epoch and -Base-Sequence go together"
        )
    return ProducerStamp(*(_number(call, header, maximum) for header, maximum in _PRODUCER))


async def keyed_request(call: Call, media_type: str, body: bytes) -> KeyedRequest | None:
    """The idempotency key of a JSON or Arrow body, if it has one, with what tells this request from another.

    Two requests are the same if type, encoding and body are, byte by byte: what the records become depends on the
    time of the request, so the batch itself cannot be compared. Raises ProblemError malformed_request.
    """
    key = call.headers.get(_KEY)
    if key is None:
        return None
    if not 1 <= len(key) <= IDEMPOTENCY_KEY_BYTES_MAX or not all(0x20 < byte < 0x7F for byte in key):
        _refuse(
            Header.IDEMPOTENCY_KEY,
            call.header_text(_KEY),
            f"1 to {IDEMPOTENCY_KEY_BYTES_MAX} visible ASCII characters",
        )
    if any(name in call.headers for name in _ALL):
        _refuse(
            Header.IDEMPOTENCY_KEY,
            call.header_text(_KEY),
            "a request names a producer or has an idempotency key, not both",
        )
    salt = f"{media_type}\0{call.query.text('encoding')}\0".encode() + _event_attributes(call)
    if media_type == BINARY_EVENT:
        # An attribute as well, in a header of another name.
        salt += call.headers.get(b"content-type", b"") + b"\0"
    if len(body) <= ON_LOOP_BYTES_MAX:
        return KeyedRequest(key, _digest(salt, body))
    return KeyedRequest(key, await asyncio.to_thread(_digest, salt, body))


def passed_on_key(call: Call, digest_header: str) -> KeyedRequest | None:
    """The key and digest that a peer names for batches that it has encoded. Raises ProblemError malformed_request."""
    key = call.headers.get(_KEY)
    if key is None:
        return None
    text = call.header_text(digest_header.encode())
    try:
        return KeyedRequest(key, bytes.fromhex(text))
    except ValueError:
        _refuse(digest_header, text, "hexadecimal digits")


def refuse_producer_headers(call: Call, reason: str) -> None:
    """Raise ProblemError malformed_request if a request names its producer in headers where that means nothing."""
    for header, _ in _PRODUCER:
        if header.lower().encode() in call.headers:
            _refuse(header, call.header_text(header.lower().encode()), reason)


def refuse_idempotency_key(call: Call) -> None:
    """Raise ProblemError malformed_request if a binary body comes with an idempotency key."""
    if _KEY in call.headers:
        _refuse(
            Header.IDEMPOTENCY_KEY,
            call.header_text(_KEY),
            "it is for JSON and Arrow bodies; a record batch carries producer id, epoch and base sequence",
        )


def _event_attributes(call: Call) -> bytes:
    """The attributes of a CloudEvent in binary mode, which are as much of the request as its body."""
    return b"".join(
        b"%s: %s\0" % attribute
        for attribute in sorted(call.headers.items())
        if attribute[0].startswith(HEADER_PREFIX.encode())
    )


def _digest(salt: bytes, body: bytes) -> bytes:
    digest = hashlib.blake2b(salt, digest_size=REQUEST_DIGEST_BYTES)
    digest.update(body)
    return digest.digest()


def _number(call: Call, header: str, maximum: int) -> int:
    text = call.header_text(header.lower().encode())
    if not (text.isascii() and text.isdigit() and len(text) <= 19 and int(text) <= maximum):
        _refuse(header, text, f"a number from 0 to {maximum}")
    return int(text)


def _refuse(header: str, value: str, allowed: str) -> NoReturn:
    raise ProblemError(
        "malformed_request",
        f"header {header} {shown(value)} is not allowed here; allowed: {allowed}",
        data={"parameter": str(header), "value": value[:80], "allowed": allowed},
    )
