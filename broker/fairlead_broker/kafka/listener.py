"""The Kafka listener: accepted connections up to a limit, and an orderly stop.

`wiring` starts the listener after the data listener. A connection beyond a limit is closed at once. A connection counts
from its acceptance, so that unfinished TLS handshakes count too; asyncio's own server does not tell when a handshake
has failed.
"""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from collections import Counter
from collections.abc import Callable
from typing import Final

import structlog

from fairlead_api.bodies.operations import KafkaListenerReport
from fairlead_broker.certificates.material import Material
from fairlead_broker.certificates.server_context import server_context
from fairlead_broker.credentials.failure_budget import network_of
from fairlead_broker.kafka.connection import Connection, ConnectionLimits, Noted, Service
from fairlead_broker.kafka.frame_budget import FrameBudget

ACCEPTS_MAX: Final = 32
"""Maximum number of connections that are accepted in one turn of the event loop."""
RETRY_SECONDS: Final = 1.0
"""Seconds without accepting after a failure, such as a lack of descriptors; no event announces a free descriptor."""

_log = structlog.get_logger("fairlead.kafka")


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
        connections_per_address_max: int = 0,
        noted: Noted = lambda *_: None,
        material: Material | None = None,
        tls_min: str = "1.3",
    ) -> None:
        """`listen` returns the listening socket.

        `connections_per_address_max`: maximum number of connections from one address or IPv6 network; 0 for no limit.
        `noted` is called with the client of a connection, and whether it is authenticated, when that is first known.
        `material`: certificate of a listener with TLS; `tls_min`: its lowest version of TLS, `1.2` or `1.3`.
        """
        self._service = service
        self._material = material
        self._tls_min = tls_min
        self._tls: ssl.SSLContext | None = None
        """Context with the newest certificate; None without TLS."""
        self._first_tls: ssl.SSLContext | None = None
        """Context with which handshakes begin; they continue with the newest."""
        self._listen = listen
        self._budget = budget
        self._limits = limits
        self._connections_max = connections_max
        self._connections_per_address_max = connections_per_address_max
        self._noted = noted
        self._connections: dict[Connection, str] = {}
        """Network of the client of each connection."""
        self._networks: Counter[str] = Counter()
        """Number of connections of each network."""
        self._opening: set[asyncio.Task[None]] = set()
        self._socket: socket.socket | None = None
        """Listening socket; None unless the listener accepts connections."""
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
        if self._material is not None:
            self._tls = await server_context(self._material, self._tls_min)
            self._tls.sni_callback = self._use_newest
        self._first_tls = self._tls
        self._socket = self._listen()
        self._watch()

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
        if self._socket is not None:
            asyncio.get_running_loop().remove_reader(self._socket)
            self._socket.close()
            self._socket = None
        for task in self._opening:
            task.cancel()
        for connection in tuple(self._connections):
            connection.end()
        try:
            async with asyncio.timeout(timeout_seconds):
                await self._all_closed.wait()
        except TimeoutError:
            for connection in tuple(self._connections):
                connection.abort()
            await self._all_closed.wait()

    def _watch(self) -> None:
        if self._socket is not None:
            asyncio.get_running_loop().add_reader(self._socket, self._accept)

    def _accept(self) -> None:
        """Accept the waiting connections, and close those beyond the limits."""
        loop = asyncio.get_running_loop()
        for _ in range(ACCEPTS_MAX):
            if self._socket is None:
                return
            try:
                accepted, address = self._socket.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                _log.warning("connections cannot be accepted", reason=os.strerror(error.errno or 0))
                loop.remove_reader(self._socket)
                loop.call_later(RETRY_SECONDS, self._watch)
                return
            network = network_of(address[0])
            if not self._has_room(network):
                accepted.close()
                continue
            accepted.setblocking(False)
            connection = Connection(
                self._service, self._budget, self._limits, self._opened, self._closed, self._noted
            )
            self._connections[connection] = network
            self._networks[network] += 1
            self._all_closed.clear()
            task = loop.create_task(self._open(connection, accepted), name="kafka-connection")
            self._opening.add(task)
            task.add_done_callback(self._opening.discard)

    def _has_room(self, network: str) -> bool:
        allowed = self._connections_per_address_max
        return len(self._connections) < self._connections_max and not 0 < allowed <= self._networks[network]

    async def _open(self, connection: Connection, accepted: socket.socket) -> None:
        """Begin a connection, with TLS after its handshake."""
        tls = self._first_tls
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: connection,
                accepted,
                ssl=tls,
                ssl_handshake_timeout=None if tls is None else self._limits.first_request_seconds_max,
            )
        except OSError:
            self._closed(connection)
        except BaseException:
            self._closed(connection)
            raise

    def _opened(self, connection: Connection) -> bool:
        return connection in self._connections and self._socket is not None

    def _closed(self, connection: Connection) -> None:
        """Forget a connection; no effect if it is forgotten already."""
        network = self._connections.pop(connection, None)
        if network is None:
            return
        self._networks[network] -= 1
        if not self._networks[network]:
            del self._networks[network]
        if not self._connections:
            self._all_closed.set()
