"""The network between the processes of a cluster: all connections are relayed, and can be held, cut or delayed.

A node is a name: `broker-1`, `etcd`, `clients`. A connection belongs to the node of its relay and to the node whose
process opened it, as listed in the socket table of the operating system. Blocked traffic is a set of directed pairs of
nodes, so traffic may be blocked in one direction only.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

CHUNK_BYTES: Final = 65_536
CLIENTS: Final = "clients"

Pair = tuple[str, str]
"""Nodes of a one-way link: the sender and the receiver of the bytes."""


@dataclass(slots=True)
class AnswerTrouble:
    """Loss and delay of answers to clients: half of the affected answers are lost, half are late."""

    share: float
    """Fraction of the pieces from brokers that are lost or late."""
    rng: random.Random
    seconds_max: float = 2.0
    """Maximum delay of a late piece."""
    lost: int = field(default=0, init=False)
    late: int = field(default=0, init=False)

    async def lets_pass(self) -> bool:
        """Return whether a piece passes; on False the caller drops the piece and breaks its connection."""
        chance = self.rng.random()
        if chance < self.share / 2:
            self.lost += 1
            return False
        if chance < self.share:
            self.late += 1
            with suppress(TimeoutError):
                async with asyncio.timeout(self.rng.uniform(0, self.seconds_max)):
                    await asyncio.Event().wait()
        return True


class Links:
    """All relays of a cluster, and the blocked traffic between its nodes."""

    def __init__(self, pids: Callable[[], dict[str, int]]) -> None:
        """Create a network without relays; `pids` returns the process id of every running node, by name."""
        self._pids = pids
        self._servers: list[asyncio.Server] = []
        self._passages: set[_Passage] = set()
        self._blocked: frozenset[Pair] = frozenset()
        self.delay_seconds = 0.0
        """Delay of forwarded data, in each direction."""
        self.delayed_node: str | None = None
        """Node whose connections are delayed; None delays all connections."""
        self.delays: dict[Pair, float] = {}
        """Delays in seconds of data in one direction."""
        self.trouble: AnswerTrouble | None = None
        """Loss and delay of answers to clients; answers to brokers and etcd are unaffected."""
        self.held_bytes = 0
        """Number of blocked bytes; a network partition that blocks no bytes proves nothing."""

    async def relay(self, target: str, port: int) -> int:
        """Start a relay to a port of a node, and return the relay's port."""

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await self._serve(target, port, reader, writer)

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        self._servers.append(server)
        return int(server.sockets[0].getsockname()[1])

    def block(self, pairs: Iterable[Pair]) -> None:
        """Hold all further bytes between these nodes, whose connections stay open as on a lossy network."""
        self._blocked |= frozenset(pairs)
        self._regulate()

    def cut(self, pairs: Iterable[Pair]) -> None:
        """Break the connections between these nodes, and refuse new connections until `mend` is called."""
        broken = frozenset(pairs)
        self._blocked |= broken
        for passage in tuple(self._passages):
            if {(passage.source, passage.target), (passage.target, passage.source)} & broken:
                passage.abort()
        self._regulate()

    def mend(self, *, lose_held: bool = False) -> None:
        """End every fault, and release the held bytes or drop them with their connections."""
        if lose_held:
            for passage in tuple(self._passages):
                if self._blocks(passage.source, passage.target) or self._blocks(
                    passage.target, passage.source
                ):
                    passage.abort()
        self._blocked = frozenset()
        self.delay_seconds = 0.0
        self.delayed_node = None
        self.delays.clear()
        self.trouble = None
        self._regulate()

    async def close(self) -> None:
        """Close all relays."""
        for server in self._servers:
            server.close()
        for passage in tuple(self._passages):
            passage.abort()
        self.mend()

    def _blocks(self, source: str, target: str) -> bool:
        return (source, target) in self._blocked

    def _regulate(self) -> None:
        for passage in self._passages:
            passage.regulate(self._blocked)

    async def _serve(
        self, target: str, port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        source = self._source_of(writer)
        passage = _Passage(source, target, writer)
        self._passages.add(passage)
        passage.regulate(self._blocked)
        try:
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            writer.transport.abort()
            self._passages.discard(passage)
            return
        passage.writers.append(far_writer)
        try:
            await asyncio.gather(
                self._pass_on(passage, reader, far_writer, passage.forward),
                self._pass_on(passage, far_reader, writer, passage.back, to_client=source == CLIENTS),
            )
        finally:
            self._passages.discard(passage)

    async def _pass_on(
        self,
        passage: _Passage,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        gate: asyncio.Event,
        *,
        to_client: bool = False,
    ) -> None:
        loop = asyncio.get_running_loop()
        pair = (passage.source, passage.target)
        if gate is passage.back:
            pair = pair[::-1]
        try:
            while chunk := await reader.read(CHUNK_BYTES):
                if not gate.is_set():
                    self.held_bytes += len(chunk)
                    await gate.wait()
                if to_client and self.trouble is not None and not await self.trouble.lets_pass():
                    break
                delay = self.delays.get(pair, 0.0)
                if self.delayed_node in {None, passage.source, passage.target}:
                    delay = max(delay, self.delay_seconds)
                if delay:
                    loop.call_later(delay, _write, writer, chunk)
                else:
                    writer.write(chunk)
                    await writer.drain()
        except OSError:
            pass
        finally:
            writer.transport.abort()

    def _source_of(self, writer: asyncio.StreamWriter) -> str:
        inode = _inode_of(writer.get_extra_info("peername")[1], writer.get_extra_info("sockname")[1])
        for node, pid in self._pids().items():
            if inode and _holds(pid, inode):
                return node
        return CLIENTS


class _Passage:
    """One connection through a relay."""

    def __init__(self, source: str, target: str, writer: asyncio.StreamWriter) -> None:
        self.source, self.target = source, target
        self.writers = [writer]
        self.forward, self.back = asyncio.Event(), asyncio.Event()

    def regulate(self, blocked: frozenset[Pair]) -> None:
        """Block or unblock the two directions of the connection."""
        for gate, pair in (
            (self.forward, (self.source, self.target)),
            (self.back, (self.target, self.source)),
        ):
            if pair in blocked:
                gate.clear()
            else:
                gate.set()

    def abort(self) -> None:
        """Break the connection and drop its held bytes."""
        for writer in self.writers:
            writer.transport.abort()
        self.forward.set()
        self.back.set()


def _write(writer: asyncio.StreamWriter, chunk: bytes) -> None:
    if not writer.transport.is_closing():
        writer.write(chunk)


def _inode_of(port: int, relay_port: int) -> str | None:
    """Return the inode of the socket that connects this local port to a relay, from the system's socket table.

    Closed connections of the same local port to other ports are listed too, for a minute.
    """
    wanted = f":{port:04X} ", f":{relay_port:04X} "
    # A process of Java opens sockets of IPv6, even to addresses of IPv4.
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            if wanted[0] in line and wanted[1] in line:
                columns = line.split()
                if f"{columns[1]} ".endswith(wanted[0]) and f"{columns[2]} ".endswith(wanted[1]):
                    return columns[9]
    return None


def _holds(pid: int, inode: str) -> bool:
    """Return whether a process has this socket open."""
    socket = f"socket:[{inode}]"
    with suppress(OSError):
        for name in os.listdir(f"/proc/{pid}/fd"):  # noqa: PTH208 - faster for a few hundred names, many times
            with suppress(OSError):
                if os.readlink(f"/proc/{pid}/fd/{name}") == socket:  # noqa: PTH115 - faster than pathlib
                    return True
    return False
