"""Closing the connection of a reader that takes nothing of its answer.

Callers: ``application``. granian tells neither which descriptor a request came over nor offers to close it, and it
keeps what it has queued for a stalled reader for as long as the connection lives (measured: up to 2 MiB). So the
socket is looked for among the process's own by the address of its peer and shut down; granian sees a client that left.
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
    """Cuts connections by the address of their client; nothing happens when it is gone already."""

    __slots__ = ("_cutting", "_wanted")

    def __init__(self) -> None:
        self._wanted: set[Peer] = set()
        self._cutting: asyncio.Task[None] | None = None

    def cut(self, host: str, port: int | str) -> None:
        """Close the connection of this client soon; many at once share one search."""
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


def shut_down(peers: set[Peer]) -> int:
    """Shut down the TCP connections of this process to these peers; answers how many there were."""
    return sum(_shut_down(int(entry.name), peers) for entry in list(OWN_DESCRIPTORS.iterdir()))


def _shut_down(descriptor: int, peers: set[Peer]) -> bool:
    try:
        # A duplicate: the number may be closed and given to another file at any moment.
        duplicate = os.dup(descriptor)
    except OSError:
        return False
    try:
        found = socket.socket(fileno=duplicate)
    except OSError:
        os.close(duplicate)
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
