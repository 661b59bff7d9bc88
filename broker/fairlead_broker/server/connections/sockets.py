"""The sockets of clients' connections: listing the sockets, and closing connections by the address of the client.

Callers: ``application`` for one client that reads nothing, ``listener_generations`` for the connections of a replaced
certificate, ``connection_guard`` for connections without requests. granian neither exposes the descriptor of a
request's connection nor can close the connection on request, and as long as the connection exists, it keeps the data
that are queued for a stalled client (measured: up to 2 MiB). This module therefore finds the socket of a connection
among the process's descriptors by the address of its client, and shuts the socket down. When the socket is shut down,
granian behaves as if the client had disconnected.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias

Peer: TypeAlias = tuple[str, str]
"""Host and port of a client, both as text, in the form that the ASGI servers use."""
OWN_DESCRIPTORS = Path("/proc/self/fd")
RETRY_SECONDS: Final = 1.0
"""Seconds before a failed search is repeated."""


class Connections:
    """Closer of connections by client address; a connection that no longer exists is ignored."""

    __slots__ = ("_cutting", "_wanted")

    def __init__(self) -> None:
        self._wanted: set[Peer] = set()
        self._cutting: asyncio.Task[None] | None = None

    def cut(self, host: str, port: int | str) -> None:
        """Schedule the closing of a client's connection; concurrent calls share one search."""
        self._wanted.add((host, str(port)))
        if self._cutting is None:
            self._cutting = asyncio.get_running_loop().create_task(self._cut_wanted())

    async def _cut_wanted(self) -> None:
        try:
            while self._wanted:
                peers, self._wanted = self._wanted, set()
                try:
                    await asyncio.to_thread(shut_down, peers)
                except OSError:
                    # The process has no free descriptors, and no event announces a free descriptor.
                    self._wanted |= peers
                    await asyncio.sleep(RETRY_SECONDS)  # noqa: TID251
        finally:
            self._cutting = None


@dataclass(frozen=True, slots=True)
class ListedSocket:
    """Connection of a client to a port of this process."""

    inode: int
    """Number of the connection's socket; no other open socket has this number."""
    peer: Peer


def peers_at(port: int) -> set[Peer]:
    """Return the clients of the TCP connections to one of this process's ports."""
    return {each.peer for each in listed_sockets([port])[port]}


def listed_sockets(ports: Iterable[int]) -> Mapping[int, list[ListedSocket]]:
    """Return the TCP connections to each of this process's ports.

    Raises OSError if the process has no free descriptors.
    """
    found: dict[int, list[ListedSocket]] = {port: [] for port in ports}
    for entry in list(OWN_DESCRIPTORS.iterdir()):
        opened = _opened(int(entry.name))
        if opened is None:
            continue
        with opened, suppress(OSError):
            own, peer = opened.getsockname(), opened.getpeername()
            if isinstance(own, tuple) and isinstance(peer, tuple) and own[1] in found:
                inode = os.fstat(opened.fileno()).st_ino
                found[own[1]].append(ListedSocket(inode, (peer[0], str(peer[1]))))
    return found


def shut_down(peers: set[Peer], port: int | None = None) -> int:
    """Shut down the TCP connections of this process to the given peers, and return their number.

    `port`: local port of the connections; None for any. Raises OSError if the process has no free descriptors.
    """
    return sum(_shut_down(int(entry.name), peers, port) for entry in list(OWN_DESCRIPTORS.iterdir()))


def _opened(descriptor: int) -> socket.socket | None:
    """Return a socket that uses a duplicate of a descriptor.

    The original descriptor may be closed and reused for another file at any moment.
    """
    try:
        duplicate = os.dup(descriptor)
    except OSError as error:
        if error.errno != errno.EBADF:
            raise
        return None
    try:
        return socket.socket(fileno=duplicate)
    except OSError:
        os.close(duplicate)
        return None


def _shut_down(descriptor: int, peers: set[Peer], port: int | None) -> bool:
    found = _opened(descriptor)
    if found is None:
        return False
    with found:
        try:
            own, peer = found.getsockname(), found.getpeername()
            if not isinstance(own, tuple) or not isinstance(peer, tuple):
                return False
            if (peer[0], str(peer[1])) not in peers or port not in (None, own[1]):
                return False
            found.shutdown(socket.SHUT_RDWR)
        except OSError:
            return False
    return True
