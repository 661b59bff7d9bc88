"""A relay on one TCP link, to lose answers, to freeze it, or to cut it.

Between a client and a real etcd. Knows nothing of what passes through.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

CHUNK_BYTES = 65_536


class TcpRelay:
    """Passes bytes on in both directions, until told otherwise."""

    def __init__(self, port: int) -> None:
        """Relay to a port of 127.0.0.1."""
        self._target = port
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._to_clients: set[asyncio.StreamWriter] = set()
        self._forward, self._back = asyncio.Event(), asyncio.Event()
        self.mend()
        self.port = 0
        self.held = asyncio.Event()
        """Set when the relay has held back bytes since the order to hold."""
        self._ended = asyncio.Event()
        self._orphaned = False

    @property
    def url(self) -> str:
        """Where clients find it."""
        return f"http://127.0.0.1:{self.port}"

    async def start(self) -> None:
        """Listen, on the same port if it listened before."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    def hold_answers(self) -> None:
        """Pass on what the client says, and hold what it is answered."""
        self.held.clear()
        self._back.clear()

    def hold_all(self) -> None:
        """Hold what both say; the connections stay open."""
        self.hold_answers()
        self._forward.clear()

    def mend(self) -> None:
        """Pass on what was held, and everything after."""
        self._forward.set()
        self._back.set()

    def orphan(self) -> None:
        """Break the connections of the clients; what they said is still passed on, by connections that stay open."""
        self._orphaned = True
        for writer in self._to_clients:
            writer.transport.abort()

    async def cut(self) -> None:
        """Break every connection and refuse new ones; what was held is lost."""
        self._ended.set()
        if self._server is not None:
            self._server.close()
        for writer in tuple(self._writers):
            writer.transport.abort()
        self._writers.clear()
        self._to_clients.clear()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._target)
        except OSError:
            writer.transport.abort()
            return
        self._writers |= {writer, far_writer}
        self._to_clients.add(writer)
        await asyncio.gather(
            self._pass_on(reader, far_writer, self._forward), self._pass_on(far_reader, writer, self._back)
        )

    async def _pass_on(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, gate: asyncio.Event
    ) -> None:
        try:
            while chunk := await reader.read(CHUNK_BYTES):
                if not gate.is_set():
                    self.held.set()
                    await gate.wait()
                writer.write(chunk)
                await writer.drain()
        except OSError:
            pass
        finally:
            if self._orphaned and gate is self._forward:
                await self._ended.wait()
            writer.transport.abort()
            self._writers.discard(writer)


@asynccontextmanager
async def tcp_relay(port: int) -> AsyncIterator[TcpRelay]:
    """Relay to a port of 127.0.0.1 until the end of the block."""
    relay = TcpRelay(port)
    await relay.start()
    try:
        yield relay
    finally:
        relay.mend()
        await relay.cut()
