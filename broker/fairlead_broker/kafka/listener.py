"""The Kafka listener: accepted connections up to a limit, and an orderly stop.

`wiring` starts the listener after the data listener. A connection beyond the limit is closed at once.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

from fairlead_broker.kafka.connection import Connection, ConnectionLimits, Serve
from fairlead_broker.kafka.frame_budget import FrameBudget


class KafkaListener:
    """Server of Kafka connections on one listening socket."""

    def __init__(
        self,
        serve: Serve,
        listen: Callable[[], socket.socket],
        budget: FrameBudget,
        limits: ConnectionLimits,
        *,
        connections_max: int,
    ) -> None:
        """`listen` returns the listening socket."""
        self._serve = serve
        self._listen = listen
        self._budget = budget
        self._limits = limits
        self._connections_max = connections_max
        self._connections: set[Connection] = set()
        self._server: asyncio.Server | None = None
        self._all_closed = asyncio.Event()
        self._all_closed.set()

    @property
    def connections(self) -> int:
        """Number of open connections."""
        return len(self._connections)

    async def start(self) -> None:
        """Listen and accept connections."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(self._connection, sock=self._listen())

    async def stop(self, timeout_seconds: float) -> None:
        """Accept no more connections, and close each connection after the responses to its requests in progress.

        After the time limit, connections are closed without the remaining responses.
        """
        if self._server is not None:
            self._server.close()
        for connection in tuple(self._connections):
            connection.end()
        try:
            async with asyncio.timeout(timeout_seconds):
                await self._all_closed.wait()
        except TimeoutError:
            for connection in tuple(self._connections):
                connection.abort()
            await self._all_closed.wait()

    def _connection(self) -> Connection:
        return Connection(self._serve, self._budget, self._limits, self._opened, self._closed)

    def _opened(self, connection: Connection) -> bool:
        self._connections.add(connection)
        self._all_closed.clear()
        return len(self._connections) <= self._connections_max

    def _closed(self, connection: Connection) -> None:
        self._connections.discard(connection)
        if not self._connections:
            self._all_closed.set()
