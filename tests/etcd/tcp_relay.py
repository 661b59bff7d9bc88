"""A relay on one TCP link that can lose answers, freeze the link or cut it.

The relay is between a client and a real etcd or broker, and does not parse the bytes.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

CHUNK_BYTES = 65_536


class TcpRelay:
    """A relay that passes bytes in both directions until a fault is set."""

    def __init__(self, port: int) -> None:
        """Create a relay to a port of 127.0.0.1."""
        self._target = port
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._to_clients: set[asyncio.StreamWriter] = set()
        self._forward, self._back = asyncio.Event(), asyncio.Event()
        self.mend()
        self.port = 0
        self.held = asyncio.Event()
        """Event that the relay sets when it holds the bytes that `hold_all` names."""
        self._awaited = b""
        self._ended = asyncio.Event()
        self._orphaned = False
        self._part: bytes | None = None

    @property
    def url(self) -> str:
        """URL for clients."""
        return f"http://127.0.0.1:{self.port}"

    async def start(self) -> None:
        """Start listening; after a stop, on the same port as before."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    def hold_answers(self) -> None:
        """Pass on the bytes of clients, and hold the answers."""
        self._back.clear()

    def hold_answers_after(self, part: bytes) -> None:
        """Hold all answers from the moment at which a client sends these bytes, which are passed on."""
        self._part = part

    def hold_all(self, until: bytes = b"") -> None:
        """Hold the bytes of both directions; `held` is set when a client has sent `until`."""
        self._awaited = until
        self.held.clear()
        self.hold_answers()
        self._forward.clear()

    def mend(self) -> None:
        """Pass on the held bytes and everything after them."""
        self._forward.set()
        self._back.set()

    def orphan(self) -> None:
        """Break the connections of the clients, but not those to etcd.

        Bytes that the clients have sent are still passed on to etcd.
        """
        self._orphaned = True
        for writer in self._to_clients:
            writer.transport.abort()

    async def cut(self) -> None:
        """Break every connection and refuse new ones; held bytes are lost."""
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
                    if gate is self._forward:
                        chunk += await self._rest(reader, chunk)
                        self.held.set()
                    await gate.wait()
                if gate is self._forward and self._part is not None and self._part in chunk:
                    self._part = None
                    self.hold_answers()
                writer.write(chunk)
                await writer.drain()
        except OSError:
            pass
        finally:
            if self._orphaned and gate is self._forward:
                await self._ended.wait()
            writer.transport.abort()
            self._writers.discard(writer)

    async def _rest(self, reader: asyncio.StreamReader, chunk: bytes) -> bytes:
        """Read the bytes that follow a chunk until the awaited bytes are among them."""
        rest = b""
        while self._awaited not in chunk + rest and (more := await reader.read(CHUNK_BYTES)):
            rest += more
        return rest


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
