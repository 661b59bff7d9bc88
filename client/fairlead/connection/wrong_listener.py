"""Describes the listener at an address that does not answer like a broker, such as an address with the wrong port.

The transport calls this module before it reports a failed call. The module opens one plain connection and one TLS
connection, on which it sends none of the program's data. The module must not depend on the failed call.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Iterable
from contextlib import suppress
from typing import Final
from urllib.parse import urlsplit

LOOK_SECONDS_MAX: Final = 1.0
"""Maximum number of seconds by which the error is delayed."""

GREETING: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\x04\0\0\0\0\0"
"""Connection preface of an HTTP/2 client, followed by an empty SETTINGS frame."""
SETTINGS_FRAME: Final = 4
FRAME_TYPE_AT: Final = 3

WANTED: Final = "use the data listener of a broker, by default port 9520"
PORTS: Final = {"http": 80, "https": 443}


async def listeners_of(addresses: Iterable[str]) -> dict[str, str]:
    """Return descriptions of the listeners at these addresses that can be recognised within one second."""
    asked = list(addresses)
    found = await asyncio.gather(*map(_listener_of, asked))
    return {address: answer for address, answer in zip(asked, found, strict=True) if answer is not None}


async def _listener_of(address: str) -> str | None:
    parts = urlsplit(address)
    host, port = parts.hostname or "", parts.port or PORTS[parts.scheme]
    first_bytes, has_tls = await asyncio.gather(_first_bytes(host, port), _speaks_tls(host, port))
    wants_tls = parts.scheme == "https"
    if has_tls:
        return None if wants_tls else f"the listener uses TLS: did you mean https://{parts.netloc}?"
    if first_bytes is None:
        return None
    if not first_bytes:
        return f"the listener accepts connections but does not answer HTTP/2; {WANTED}"
    if first_bytes.startswith(b"HTTP/1."):
        return f"the listener speaks HTTP/1.1, like the ops listener of a broker; {WANTED}"
    if first_bytes[FRAME_TYPE_AT : FRAME_TYPE_AT + 1] == bytes([SETTINGS_FRAME]):
        return f"the listener does not use TLS: did you mean http://{parts.netloc}?" if wants_tls else None
    return f"the listener speaks another protocol, which begins with {first_bytes[:20]!r}; {WANTED}"


async def _first_bytes(host: str, port: int) -> bytes | None:
    """Return the first bytes of the answer to HTTP/2 without TLS.

    The result is empty if the listener does not answer, and None if there is no listener.
    """
    answer = None
    with suppress(OSError, TimeoutError):
        async with asyncio.timeout(LOOK_SECONDS_MAX):
            reader, writer = await asyncio.open_connection(host, port)
            answer = b""
            try:
                writer.write(GREETING)
                answer = await reader.read(100)
            finally:
                writer.transport.abort()
    return answer


async def _speaks_tls(host: str, port: int) -> bool:
    """Return whether the listener speaks TLS; its certificate is not verified, since no data is sent."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    with suppress(OSError, TimeoutError):
        async with asyncio.timeout(LOOK_SECONDS_MAX):
            _, writer = await asyncio.open_connection(host, port, ssl=context)
            writer.transport.abort()
            return True
    return False
