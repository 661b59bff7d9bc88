"""Connections that only show whether the process of another broker runs.

`controlling.failure_watch` opens one such connection to the peer listener of each other broker. The kernel of the other
machine closes the connection when the process ends, and refuses a new connection while no process listens on the port.
No byte is sent, so the connections work with and without TLS, and with brokers of any release.
"""

from __future__ import annotations

import asyncio
import errno
import socket
from contextlib import suppress
from typing import Final, Self

CONNECT_SECONDS_MAX: Final = 1.0
RECEIVED_BYTES_MAX: Final = 4096


class PeerRefuses(Exception):
    """Raised when the machine of a peer answers that no process listens on the address of the peer listener."""


class PeerUnreachable(Exception):
    """Raised when an attempt to connect proves nothing about the peer's process."""


class Presence:
    """Open connection to a peer listener."""

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._socket.close()

    async def until_lost(self, seconds_max: float) -> None:
        """Wait until the connection is closed or reset, for at most `seconds_max`."""
        loop = asyncio.get_running_loop()
        with suppress(OSError):  # also TimeoutError
            async with asyncio.timeout(seconds_max):
                while await loop.sock_recv(self._socket, RECEIVED_BYTES_MAX):
                    pass


async def connect(address: str) -> Presence:
    """Connect to an address `host:port`. Raises `PeerRefuses` or `PeerUnreachable`.

    Every address of the host name must refuse the connection, because the peer may listen on only one of them.
    """
    host, _, port = address.rpartition(":")
    loop = asyncio.get_running_loop()
    refusals = []
    try:
        async with asyncio.timeout(CONNECT_SECONDS_MAX):
            found = await loop.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)
            for family, kind, protocol, _, place in found:
                try:
                    return await _connected(family, kind, protocol, place)
                except OSError as error:
                    refusals.append(error.errno == errno.ECONNREFUSED)
    except (OSError, ValueError) as error:
        raise PeerUnreachable(str(error) or "no answer in time") from error
    if all(refusals):
        raise PeerRefuses(address)
    raise PeerUnreachable(address)


async def _connected(family: int, kind: int, protocol: int, place: tuple[object, ...]) -> Presence:
    opened = socket.socket(family, kind, protocol)
    try:
        opened.setblocking(False)
        await asyncio.get_running_loop().sock_connect(opened, place)
    except BaseException:
        opened.close()
        raise
    return Presence(opened)
