"""HTTP/1.1 requests whose end a proxy may locate differently: each is answered once and read as one request."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest

SECONDS_MAX = 20
CREATE = b"POST /v1/topics HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
SMUGGLED = b'{"name": "smuggled"}'
HIDDEN = CREATE + b"content-length: %d\r\n\r\n" % len(SMUGGLED) + SMUGGLED
"""Request that a proxy would pass on as a part of another request."""
GET = b"GET /v1/versions HTTP/1.1\r\nhost: localhost\r\n"

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def statuses(address: str, request: bytes) -> list[int]:
    """Send bytes, and return the statuses of all answers once the server has closed the connection."""
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        writer.write(request)
        async with asyncio.timeout(SECONDS_MAX):
            received = await reader.read()
    except ConnectionResetError:
        received = b""
    finally:
        writer.close()
    return [int(each) for each in re.findall(rb"HTTP/1\.[01] (\d{3}) ", received)]


def sent_as(lines: bytes, body: bytes = b"", start: bytes = CREATE) -> bytes:
    """Return a request with additional header lines, followed by the hidden request."""
    return start + lines + b"\r\n" + body + HIDDEN


AMBIGUOUS = {
    "length and chunks": sent_as(b"content-length: 4\r\ntransfer-encoding: chunked\r\n", b"0\r\n\r\n"),
    "chunks and length": sent_as(
        b"transfer-encoding: chunked\r\ncontent-length: %d\r\n" % (5 + len(HIDDEN)), b"0\r\n\r\n"
    ),
    "two lengths": sent_as(b"content-length: 0\r\ncontent-length: %d\r\n" % len(HIDDEN)),
    "list of lengths": sent_as(b"content-length: 0, %d\r\n" % len(HIDDEN)),
    "signed length": sent_as(b"content-length: +0\r\n"),
    "hexadecimal length": sent_as(b"content-length: 0x0\r\n"),
    "space before the colon": sent_as(b"content-length : 0\r\n"),
    "another coding": sent_as(b"transfer-encoding: xchunked\r\n", b"0\r\n\r\n"),
    "coding after a vertical tab": sent_as(b"transfer-encoding: \x0bchunked\r\n", b"0\r\n\r\n"),
    "chunks, then another coding": sent_as(
        b"transfer-encoding: chunked\r\ntransfer-encoding: identity\r\n", b"0\r\n\r\n"
    ),
    "folded coding": sent_as(b"transfer-encoding:\r\n chunked\r\n", b"0\r\n\r\n"),
    "bare CR": sent_as(b"x: y\rcontent-length: 0\r\n"),
    "chunk size in another notation": sent_as(b"transfer-encoding: chunked\r\n", b"0x0\r\n\r\n"),
    "chunk size of 65 bits": sent_as(b"transfer-encoding: chunked\r\n", b"10000000000000000\r\n\r\n"),
    "LF in a chunk extension": sent_as(b"transfer-encoding: chunked\r\n", b"2;a\nxx\r\n{}\r\n0\r\n\r\n"),
    "LF after a chunk size": sent_as(b"transfer-encoding: chunked\r\n", b"0\n\n"),
    "chunk longer than its size": sent_as(b"transfer-encoding: chunked\r\n", b"2\r\n{}XX0\r\n\r\n"),
    "two hosts": sent_as(b"host: other\r\n", start=GET),
    "body of a GET": sent_as(b"content-length: %d\r\n" % len(HIDDEN), start=GET),
    "length behind a bare LF": sent_as(b"x: y\ncontent-length: %d\r\n" % len(HIDDEN), start=GET),
    "chunks behind a bare LF": sent_as(b"x: y\ntransfer-encoding: chunked\r\n", b"0\r\n\r\n", start=GET),
    "chunks of HTTP/1.0": sent_as(
        b"transfer-encoding: chunked\r\n", b"0\r\n\r\n", start=CREATE.replace(b"1.1", b"1.0")
    ),
}


@pytest.mark.parametrize("request_bytes", AMBIGUOUS.values(), ids=AMBIGUOUS.keys())
async def test_an_ambiguous_request_ends_its_connection(shared: Any, request_bytes: bytes) -> None:
    """Every listener answers once with a refusal and closes the connection, and the hidden request is not executed."""
    addresses = shared.broker.addresses
    answers = [
        await statuses(each, request_bytes) for each in (addresses.data, addresses.peer, addresses.ops)
    ]
    created = await shared.api.get("/v1/topics/smuggled")

    assert [len(each) for each in answers] == [1, 1, 1]
    assert all(400 <= status < 500 for each in answers for status in each)
    assert created.code == "topic_not_found"


LENIENT = {
    "bare LF": GET.replace(b"\r\n", b"\n") + b"\n",
    "the same length twice": CREATE + b"content-length: 2\r\ncontent-length: 2\r\n\r\n{}",
    "chunk extension and trailer": (
        CREATE + b"transfer-encoding:\tchunked\r\n\r\n2;a=b\r\n{}\r\n0\r\nx: y\r\n\r\n"
    ),
}


@pytest.mark.parametrize("form", LENIENT)
async def test_what_is_lenient_has_one_meaning(shared: Any, form: str) -> None:
    """Requests in the forms that RFC 9112 lets a server accept end where the sender ended them."""
    name = form.replace(" ", "-")
    body = b'{"name": "%b"}' % name.encode()
    following = CREATE + b"connection: close\r\ncontent-length: %d\r\n\r\n" % len(body) + body
    answers = await statuses(shared.broker.addresses.data, LENIENT[form] + following)
    created = await shared.api.get(f"/v1/topics/{name}")

    assert answers[1:] == [201]
    assert created.status == 200
