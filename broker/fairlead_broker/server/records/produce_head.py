"""Head of a produce call: acks and timeout in the query, idempotent producer and idempotency key in the headers.

Callers: the produce calls. The two headers are only for JSON and Arrow bodies, which the broker encodes into batches. A
binary batch names its own producer, and a producer named outside the batch could not be trusted.
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
from fairlead_api.identifiers import Acks
from fairlead_api.problems import ProblemError
from fairlead_broker.runtime import KeyedRequest
from fairlead_broker.server.http.call import BINARY_EVENT, Call

REQUEST_DIGEST: Final = "fairlead-request-digest"
"""Header of calls between brokers that contains the digest; the digest distinguishes requests with the same idempotency
key."""
IN_THE_BATCH: Final = "none for a binary body, whose batch contains the producer"
ON_LOOP_BYTES_MAX: Final = 128 << 10
"""Maximum number of bytes for which the digest of a body is computed on the event loop; 1 MiB would block the loop for
a millisecond."""
_INT32_MAX: Final = 2**31 - 1
_INT64_MAX: Final = 2**63 - 1
_KEY: Final = Header.IDEMPOTENCY_KEY.lower().encode()
_PRODUCER: Final = (
    (Header.PRODUCER_ID, _INT64_MAX),
    (Header.PRODUCER_EPOCH, _INT32_MAX),
    (Header.BASE_SEQUENCE, _INT32_MAX),
)
PRODUCER_HEADER_NAMES: Final = tuple(header.lower().encode() for header, _ in _PRODUCER)


def acknowledgement(call: Call) -> tuple[Acks, float]:
    """Return the acks that a produce call requests, and its timeout in seconds."""
    return Acks(call.query.text("acks")), call.query.integer("timeout_ms") / 1000


def producer_stamp(call: Call) -> ProducerStamp | None:
    """Return the idempotent producer of a JSON or Arrow request, if any. Raises ProblemError malformed_request."""
    given = [name for name in PRODUCER_HEADER_NAMES if name in call.headers]
    if not given:
        return None
    if len(given) < len(PRODUCER_HEADER_NAMES):
        missing = next(header for header, _ in _PRODUCER if header.lower().encode() not in call.headers)
        _refuse(
            missing,
            "",
            "the headers Fairlead-Producer-Id, -Producer-Epoch and -Base-Sequence must be sent together",
        )
    producer_id, epoch, sequence = (_number(call, header, maximum) for header, maximum in _PRODUCER)
    return ProducerStamp(producer_id, epoch, sequence)


def base_sequence(call: Call) -> int | None:
    """Return the header `Fairlead-Base-Sequence` of a request with a transaction. Raises `malformed_request`."""
    if Header.BASE_SEQUENCE.lower().encode() not in call.headers:
        return None
    return _number(call, Header.BASE_SEQUENCE, _INT32_MAX)


async def keyed_request(call: Call, media_type: str, body: bytes) -> KeyedRequest | None:
    """Return the idempotency key and digest of a JSON or Arrow request, or None if there is no key.

    Two requests are the same if their type, encoding and body are equal byte for byte. The encoded batches
    cannot be compared, because they depend on the time of the request. Raises ProblemError malformed_request.
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
    if any(name in call.headers for name in PRODUCER_HEADER_NAMES):
        _refuse(
            Header.IDEMPOTENCY_KEY,
            call.header_text(_KEY),
            "a request names a producer or has an idempotency key, not both",
        )
    salt = f"{media_type}\0{call.query.text('encoding')}\0".encode() + _event_attributes(call)
    if media_type == BINARY_EVENT:
        # For a binary-mode event, the Content-Type header contains an attribute of the event (datacontenttype).
        salt += call.headers.get(b"content-type", b"") + b"\0"
    if len(body) <= ON_LOOP_BYTES_MAX:
        return KeyedRequest(key, _digest(salt, body))
    return KeyedRequest(key, await asyncio.to_thread(_digest, salt, body))


def passed_on_key(call: Call, digest_header: str) -> KeyedRequest | None:
    """Return the idempotency key and digest that a peer sends with encoded batches.

    Raises ProblemError malformed_request.
    """
    key = call.headers.get(_KEY)
    if key is None:
        return None
    text = call.header_text(digest_header.encode())
    try:
        return KeyedRequest(key, bytes.fromhex(text))
    except ValueError:
        _refuse(digest_header, text, "hexadecimal digits")


def refuse_producer_headers(call: Call, reason: str) -> None:
    """Raise ProblemError malformed_request for a producer header in a call that does not support such headers."""
    for (header, _), name in zip(_PRODUCER, PRODUCER_HEADER_NAMES, strict=True):
        if name in call.headers:
            _refuse(header, call.header_text(name), reason)


def refuse_idempotency_key(call: Call) -> None:
    """Raise ProblemError malformed_request for an idempotency key in a call that does not support such keys."""
    if _KEY in call.headers:
        _refuse(
            Header.IDEMPOTENCY_KEY,
            call.header_text(_KEY),
            "it is for JSON and Arrow bodies; a record batch contains producer id, epoch and base sequence",
        )


def _event_attributes(call: Call) -> bytes:
    """Return the attributes of a CloudEvent in binary mode; the attributes are part of the request's content."""
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
