"""Closing of connections whose clients have stopped reading their answers.

Callers: ``application`` for one stalled client, ``listener_generations`` for the connections of a replaced
certificate. granian neither exposes the descriptor of a request's connection nor can close the connection on request,
and it keeps the data that are queued for a stalled client as long as the connection exists (measured: up to 2 MiB).
Therefore this module searches the process's descriptors for the socket by the address of its client, and shuts the
socket down. granian then behaves as if the client had disconnected.
"""

from __future__ import annotations

import asyncio
import os
import socket
from pathlib import Path
from typing import TypeAlias

Peer: TypeAlias = tuple[str, int]
OWN_DESCRIPTORS = Path("/proc/self/fd")


class Connections:
    """Closer of connections by client address; a connection that no longer exists is ignored."""

    __slots__ = ("_cutting", "_wanted")

    def __init__(self) -> None:
        self._wanted: set[Peer] = set()
        self._cutting: asyncio.Task[None] | None = None

    def cut(self, host: str, port: int | str) -> None:
        """Schedule the closing of a client's connection; concurrent calls share one search."""
        self._wanted.add((host, int(port)))
        if self._cutting is None:
            self._cutting = asyncio.get_running_loop().create_task(self._cut_wanted())

    async def _cut_wanted(self) -> None:
        try:
            while self._wanted:
                peers, self._wanted = self._wanted, set()
                await asyncio.to_thread(shut_down, peers)
        finally:
            self._cutting = None


def peers_at(port: int) -> set[Peer]:
    """Return the clients of the TCP connections of this process to one of its ports."""
    found = (_peer_at(int(entry.name), port) for entry in list(OWN_DESCRIPTORS.iterdir()))
    return {peer for peer in found if peer is not None}


def _peer_at(descriptor: int, port: int) -> Peer | None:
    found = _opened(descriptor)
    if found is None:
        return None
    with found:
        try:
            own, peer = found.getsockname(), found.getpeername()
        except OSError:
            return None
    is_ours = isinstance(own, tuple) and isinstance(peer, tuple) and own[1] == port
    return (peer[0], peer[1]) if is_ours else None


def shut_down(peers: set[Peer]) -> int:
    """Shut down the TCP connections of this process to these peers, and return their number."""
    return sum(_shut_down(int(entry.name), peers) for entry in list(OWN_DESCRIPTORS.iterdir()))


def _opened(descriptor: int) -> socket.socket | None:
    """Return a socket on a duplicate of a descriptor, which may be closed and reused for another file at any moment."""
    try:
        duplicate = os.dup(descriptor)
    except OSError:
        return None
    try:
        return socket.socket(fileno=duplicate)
    except OSError:
        os.close(duplicate)
        return None


def _shut_down(descriptor: int, peers: set[Peer]) -> bool:
    found = _opened(descriptor)
    if found is None:
        return False
    with found:
        try:
            address = found.getpeername()
            if not isinstance(address, tuple) or (address[0], address[1]) not in peers:
                return False
            found.shutdown(socket.SHUT_RDWR)
        except OSError:
            return False
    return True
