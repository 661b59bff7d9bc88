"""The Kafka listener: accepted connections up to a limit, and an orderly stop.

`wiring` starts the listener after the data listener. A connection beyond the limit is closed at once.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable

from fairlead_api.bodies.operations import KafkaListenerReport
from fairlead_broker.certificates.material import Material
from fairlead_broker.certificates.server_context import server_context
from fairlead_broker.kafka.connection import Connection, ConnectionLimits, Service
from fairlead_broker.kafka.frame_budget import FrameBudget


class KafkaListener:
    """Server of Kafka connections on one listening socket."""

    def __init__(
        self,
        service: Service,
        listen: Callable[[], socket.socket],
        budget: FrameBudget,
        limits: ConnectionLimits,
        *,
        connections_max: int,
        material: Material | None = None,
        tls_min: str = "1.3",
    ) -> None:
        """`listen` returns the listening socket.

        `material`: certificate of a listener with TLS; `tls_min`: its lowest version of TLS, `1.2` or `1.3`.
        """
        self._service = service
        self._material = material
        self._tls_min = tls_min
        self._tls: ssl.SSLContext | None = None
        """Context with the newest certificate; None without TLS."""
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

    def report(self, address: str) -> KafkaListenerReport:
        """Return the state of the listener, which the broker advertises at an address."""
        return KafkaListenerReport(
            address=address,
            tls=self._material is not None,
            connections=self.connections,
            connections_max=self._connections_max,
        )

    async def start(self) -> None:
        """Listen and accept connections."""
        loop = asyncio.get_running_loop()
        if self._material is None:
            self._server = await loop.create_server(self._connection, sock=self._listen())
            return
        self._tls = context = await server_context(self._material, self._tls_min)
        context.sni_callback = self._use_newest
        self._server = await loop.create_server(
            self._connection,
            sock=self._listen(),
            ssl=context,
            ssl_handshake_timeout=self._limits.first_request_seconds_max,
        )

    async def renew(self, material: Material) -> None:
        """Use a new certificate for later handshakes; no effect on a listener without TLS."""
        if self._tls is not None:
            self._tls = await server_context(material, self._tls_min)

    def _use_newest(self, handshake: ssl.SSLObject, name: str | None, context: ssl.SSLContext) -> None:
        """Continue a handshake with the newest certificate; called for each handshake, with or without a name."""
        del name, context
        assert self._tls is not None, "a listener without TLS has no handshakes"
        handshake.context = self._tls

    async def stop(self, timeout_seconds: float) -> None:
        """Accept no more connections, and close each connection after the responses to its requests in progress.

        When the time limit is reached, connections are closed without the remaining responses.
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
        return Connection(self._service, self._budget, self._limits, self._opened, self._closed)

    def _opened(self, connection: Connection) -> bool:
        self._connections.add(connection)
        self._all_closed.clear()
        return len(self._connections) <= self._connections_max

    def _closed(self, connection: Connection) -> None:
        self._connections.discard(connection)
        if not self._connections:
            self._all_closed.set()
