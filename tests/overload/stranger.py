"""A client without a valid token that never pauses: `python stranger.py WHAT TOKEN SECONDS HOST:PORT [CA]`.

The program is a separate process, so that its work does not delay the measured client of a test. WHAT names one of
`ATTACKS`, or is `flood`, `unread` with the protocol in place of TOKEN, or `handshakes` with `finished` or `abandoned`
in place of TOKEN. With CA, a file with authorities, an attack uses TLS. The program prints `begun`, and at the end one
JSON object with the number of requests in flight and the number of answers by status; of a flood, the number of refused
and stored requests, and whether every request was answered in time; of `unread`, the number of connections; of
`handshakes`, the number of handshakes and of failures.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import socket
import ssl
import struct
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from pyreqwest.exceptions import ConnectError

from broker_kit import BATCHES, Calls
from fairlead_api.token_text import TokenText
from overload_kit import (
    END_HEADERS,
    END_STREAM,
    HEADERS,
    PREFACE,
    Http2Load,
    frame,
    now,
    one_batch,
    pause,
    request_block,
    settings,
    until,
)

MIB = 1 << 20
AT_ONCE = 16
FLOOD_STREAMS = 250
"""Requests in flight on each connection of a flood: nearly as many as a connection may have."""
UNREAD_BUFFER_BYTES = 4096
"""Receive buffer of a connection on which no answer is read."""
RESET = struct.pack("ii", 1, 0)
"""Value of SO_LINGER with which a close resets the connection, so that the port can be used again at once."""
RECOVERY_SECONDS_MAX = 30.0
PRODUCE = "/v1/topics/calm/partitions/0/records"
JSON = "application/json"

Headers = dict[str, str]


def many_wrong_tokens() -> Iterator[Headers]:
    """Return headers, each with a different wrong token."""
    return (
        {"authorization": f"Bearer {TokenText('0' * 12, f'{number:043}').text}"}
        for number in itertools.count()
    )


TOKENS: dict[str, Callable[[], Iterator[Headers]]] = {
    "no token": lambda: itertools.repeat({}),
    "one wrong token": lambda: itertools.repeat(next(many_wrong_tokens())),
    "many wrong tokens": many_wrong_tokens,
}
"""Headers of an attack's requests."""
ATTACKS: dict[str, Callable[[], tuple[str, str, bytes | None, Headers]]] = {
    "large bodies": lambda: (
        "POST",
        PRODUCE,
        one_batch(MIB, 1, random=False),
        {"content-type": BATCHES},
    ),
    "long polls": lambda: ("GET", f"{PRODUCE}?max_wait_ms=60000", None, {}),
    "tails": lambda: ("GET", "/v1/topics/calm/records", None, {}),
    "JSON": lambda: (
        "POST",
        "/v1/topics/calm/records",
        b'{"records":' + b"[" * (MIB // 4),
        {"content-type": JSON},
    ),
    "requests": lambda: ("GET", "/v1/metadata", None, {}),
}
"""Call of each attack: method, path, body and headers."""


async def attack(
    what: str, tokens: Iterator[Headers], seconds: float, address: str, ca_pem: bytes | None
) -> dict[str, object]:
    """Send unauthorized requests, several at once, and return the statuses of the answers."""
    method, path, body, headers = ATTACKS[what]()
    statuses, end = Counter[int](), now() + seconds

    async def requests(calls: Calls) -> None:
        while now() < end:
            try:
                answer = await calls.call(method, path, body, next(tokens) | headers)
            except ConnectError:
                # The HTTP server closes a connection after a thousand bodies that are refused before their end.
                continue
            statuses[answer.status] += 1

    async with Calls(address, ca_pem) as calls, asyncio.TaskGroup() as group:
        for _ in range(AT_ONCE):
            group.create_task(requests(calls))
    return {"statuses": statuses, "in_flight": AT_ONCE}


async def flood(seconds: float, address: str) -> dict[str, object]:
    """Send a request after each refusal, with as many in flight as are allowed, and return the numbers of answers."""
    loop, batch, end = asyncio.get_running_loop(), one_batch(100, 1), now() + seconds
    host, _, port = address.rpartition(":")

    def follow(connection: Http2Load) -> None:
        if now() < end and connection.may_send:
            connection.send()

    connections = []
    for _ in range(AT_ONCE):
        _, connection = await loop.create_connection(
            lambda: Http2Load(PRODUCE, batch, content_type=BATCHES), host, int(port)
        )
        await connection.ready.wait()
        connection.on_answer = partial(follow, connection)
        connections.append(connection)
    for connection in connections:
        for _ in range(FLOOD_STREAMS):
            follow(connection)
    await until(lambda: now() >= end, seconds + 1)
    is_over = await until(lambda: not any(each.unanswered for each in connections), RECOVERY_SECONDS_MAX)
    refused, stored = (
        sum(map(len, each)) for each in zip(*((c.refused, c.stored) for c in connections), strict=True)
    )
    return {
        "refused": refused,
        "stored": stored,
        "is_over": is_over,
        "seconds": now() - end + seconds,
        "in_flight": AT_ONCE * FLOOD_STREAMS,
    }


def unread_requests(protocol: str) -> Iterator[bytes]:
    """Return the data of a connection with endless requests."""
    if protocol == "HTTP/1.1":
        return itertools.repeat(b"GET /v1/metadata HTTP/1.1\r\nhost: localhost\r\n\r\n")
    block = request_block("GET", "/v1/metadata")
    requests = (frame(HEADERS, END_STREAM | END_HEADERS, stream, block) for stream in itertools.count(1, 2))
    return itertools.chain([PREFACE + settings({})], requests)


async def unread(protocol: str, seconds: float, address: str) -> dict[str, object]:
    """Send requests without reading an answer, on new connections when the broker has closed the previous ones.

    Returns the number of connections, of connections that the broker closed, of sent bytes, and the longest time in
    seconds of a connection that the broker closed.
    """
    loop, end = asyncio.get_running_loop(), now() + seconds
    host, _, port = address.rpartition(":")
    found = Counter[str]()
    longest = 0.0

    async def connection() -> None:
        nonlocal longest
        begun = now()
        client = socket.socket()
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, UNREAD_BUFFER_BYTES)
        client.setblocking(False)
        found["connections"] += 1
        with client:
            await loop.sock_connect(client, (host, int(port)))
            try:
                for data in unread_requests(protocol):
                    await loop.sock_sendall(client, data)
                    found["sent_bytes"] += len(data)
                    await pause(0)
            except ConnectionError:
                found["closed"] += 1
                longest = max(longest, now() - begun)

    async def connections() -> None:
        while True:
            await connection()

    attacks = [asyncio.create_task(connections()) for _ in range(AT_ONCE)]
    _, waiting = await asyncio.wait(attacks, timeout=end - now())
    for each in waiting:
        each.cancel()
    await asyncio.gather(*attacks, return_exceptions=True)
    return {**found, "in_flight": AT_ONCE, "longest_seconds": round(longest, 2)}


def client_hello(context: ssl.SSLContext, host: str) -> bytes:
    """Return the first message of a TLS client."""
    sent = ssl.MemoryBIO()
    with contextlib.suppress(ssl.SSLWantReadError):
        context.wrap_bio(ssl.MemoryBIO(), sent, server_hostname=host).do_handshake()
    return sent.read()


async def handshakes(how: str, seconds: float, address: str, ca_pem: bytes) -> dict[str, object]:
    """Open one TLS connection after another, several at once, and make no request; return the number of handshakes.

    With `abandoned`, every connection sends the same first message, and is reset at the broker's answer. Such a
    handshake costs the client almost nothing, and the broker its signature and its part of the key exchange.
    """
    loop, end = asyncio.get_running_loop(), now() + seconds
    host, _, port = address.rpartition(":")
    context = ssl.create_default_context(cadata=ca_pem.decode())
    hello = client_hello(context, host)
    found = Counter[str]()

    async def finish() -> bool:
        _, writer = await asyncio.open_connection(host, int(port), ssl=context)
        writer.close()
        await writer.wait_closed()
        return True

    async def abandon() -> bool:
        with socket.socket() as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            client.setblocking(False)
            await loop.sock_connect(client, (host, int(port)))
            await loop.sock_sendall(client, hello)
            return await loop.sock_recv(client, 1 << 16) != b""

    async def connect() -> None:
        while now() < end:
            try:
                is_answered = await (finish() if how == "finished" else abandon())
            except OSError:
                is_answered = False
            found["handshakes" if is_answered else "failed"] += 1

    async with asyncio.TaskGroup() as group:
        for _ in range(AT_ONCE):
            group.create_task(connect())
    return {"handshakes": found["handshakes"], "failed": found["failed"], "in_flight": AT_ONCE}


def main(what: str, token: str, seconds: float, address: str, ca: str | None = None) -> None:
    """Attack for a time, and print the answers."""
    ca_pem = None if ca is None else Path(ca).read_bytes()
    sys.stdout.write("begun\n")
    sys.stdout.flush()
    if what == "flood":
        found = asyncio.run(flood(seconds, address))
    elif what == "unread":
        found = asyncio.run(unread(token, seconds, address))
    elif what == "handshakes":
        assert ca_pem is not None, "handshakes need the authorities of the broker"
        found = asyncio.run(handshakes(token, seconds, address, ca_pem))
    else:
        found = asyncio.run(attack(what, TOKENS[token](), seconds, address, ca_pem))
    sys.stdout.write(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], float(sys.argv[3]), *sys.argv[4:])
