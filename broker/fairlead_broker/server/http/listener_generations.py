"""Replacement of a listener's certificate without a refused connection: a new server on the same socket (rule T8).

Callers: ``listeners`` (data and peer listeners). A generation is one server with one certificate. granian reads a
certificate only at its start, so a changed certificate starts a new generation on a duplicate of the listening socket.
Both generations accept connections from the same queue of the kernel, until the previous generation loses its
duplicate. A server that is stopping resets connections whose handshake is not finished. The previous generation
therefore finishes its handshakes before it stops: it tells HTTP/2 clients to open new connections (GOAWAY), and
finishes the requests in progress. This module must not depend on topics, routes or the runtime.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Final

from fairlead_broker.certificates.material import Material
from fairlead_broker.certificates.snapshots import Snapshot
from fairlead_broker.server.connections.bound_socket import BoundSocket, take_over
from fairlead_broker.server.connections.sockets import Peer, peers_at, shut_down
from fairlead_broker.server.http.asgi import AsgiApplication, Receive, Scope, Send
from fairlead_broker.server.http.http2_listener import ConnectionLimits, Http2Listener, ServerTls, TlsVersion

DRAIN_SECONDS_MAX: Final = 60.0
"""Time allowed for open requests of a replaced generation to finish; tails never finish, so their connections are
closed."""
HANDSHAKE_SECONDS_MAX: Final = 10.0
"""Time after which granian itself ends a handshake."""
CUT_SECONDS_MAX: Final = 5.0
"""Time within which a server stops after its connections were shut down."""


class ListenerGenerations:
    """Listener of one application on a bound address, whose certificate can be replaced.

    The owner calls ``start`` once, ``renew`` for each change of the certificate, and then ``stop`` once.
    """

    def __init__(
        self,
        application: AsgiApplication,
        bound: BoundSocket,
        *,
        connections_max: int,
        connection_limits: ConnectionLimits,
        material: Material | None = None,
        version_min: TlsVersion = TlsVersion.TLS_1_3,
        handshake_seconds_max: float = HANDSHAKE_SECONDS_MAX,
        drain_seconds_max: float = DRAIN_SECONDS_MAX,
    ) -> None:
        """`material`: certificate of the first generation; None for a listener without TLS."""
        self._handshake_seconds_max = handshake_seconds_max
        self._application = application
        self._bound = bound
        self._connections_max = connections_max
        self._connection_limits = connection_limits
        self._material = material
        self._version_min = version_min
        self._drain_seconds_max = drain_seconds_max
        self._current: _Generation | None = None
        self._previous: _Generation | None = None
        """Previous generation, which drains or has drained."""
        self._draining: asyncio.Task[None] | None = None
        self._renewing = asyncio.Lock()

    async def start(self) -> None:
        """Listen and accept connections. Raises ListenError when another process already listens on the address."""
        self._current = await self._started(self._material)

    async def renew(self, material: Material) -> None:
        """Use this certificate for new connections; return once new connections get the certificate.

        There are at most two generations: the call first waits for a generation that still drains, which may take 75
        seconds. The call has no effect on a listener that is not running.
        """
        async with self._renewing:
            if self._draining is not None:
                await asyncio.wait([self._draining])
            old = self._current
            if old is None:
                return
            # All connections and duplicates that exist now belong to the old generation.
            peers = await asyncio.to_thread(peers_at, self._bound.port)
            descriptors = await asyncio.to_thread(self._bound.duplicates)
            new = await self._started(material)
            if self._current is not old:
                await new.stop(0)
                return
            self._current, self._previous = new, old
            take_over(descriptors)
            draining = old.drain(peers, self._handshake_seconds_max, self._drain_seconds_max)
            self._draining = asyncio.get_running_loop().create_task(
                draining, name=f"listener-{self._bound.name}-drain"
            )

    async def stop(self, timeout_seconds: float) -> None:
        """Stop accepting connections, wait up to ``timeout_seconds`` for requests in progress, and cancel the rest."""
        serving = [each for each in (self._current, self._previous) if each is not None]
        self._current = self._previous = None
        self._bound.close()
        if self._draining is not None:
            self._draining.cancel()
            await asyncio.wait([self._draining])
        await asyncio.gather(*(each.stop(timeout_seconds) for each in serving))

    async def _started(self, material: Material | None) -> _Generation:
        snapshot = None if material is None else await asyncio.to_thread(Snapshot.write, material)
        generation = _Generation(self._application, snapshot, self._server)
        try:
            await generation.start(self._bound.duplicate())
        except BaseException:
            generation.forget()
            raise
        return generation

    def _server(self, application: AsgiApplication, snapshot: Snapshot | None) -> Http2Listener:
        return Http2Listener(
            application,
            self._bound,
            connections_max=self._connections_max,
            connection_limits=self._connection_limits,
            tls=None if snapshot is None else ServerTls(snapshot, self._version_min),
        )


class _Generation:
    """One server with the snapshot of its certificate, and the clients of its unfinished requests."""

    def __init__(
        self,
        application: AsgiApplication,
        snapshot: Snapshot | None,
        build: Callable[[AsgiApplication, Snapshot | None], Http2Listener],
    ) -> None:
        self._application = application
        self._snapshot = snapshot
        self._clients: dict[Peer, int] = {}
        """Number of unfinished requests from each client; empty without TLS, because only TLS has generations."""
        self._server = build(application if snapshot is None else self._serve, snapshot)

    async def start(self, listening: socket.socket) -> None:
        """Accept connections from this duplicate of the listening socket."""
        await self._server.start(listening)

    async def drain(self, peers: set[Peer], handshake_seconds_max: float, seconds_max: float) -> None:
        """Stop the server once every handshake has ended.

        If the server has not stopped after another `seconds_max`, shut down its connections to `peers` and to clients
        with unfinished requests. After a cancellation, the owner calls `stop`.
        """
        # granian announces neither the beginning nor the end of a handshake.
        await asyncio.sleep(handshake_seconds_max)  # noqa: TID251
        try:
            async with asyncio.timeout(seconds_max):
                await self._server.stop(None)
        except TimeoutError:
            await asyncio.to_thread(shut_down, peers | self._clients.keys())
        await self.stop(CUT_SECONDS_MAX)

    async def stop(self, timeout_seconds: float) -> None:
        """Stop the server."""
        try:
            await self._server.stop(timeout_seconds)
        finally:
            self.forget()

    def forget(self) -> None:
        """Remove the snapshot of the certificate."""
        if self._snapshot is not None:
            self._snapshot.remove()

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, and count it among its client's unfinished requests until it is answered."""
        host, port = scope["client"]
        client = (host, str(port))
        self._clients[client] = self._clients.get(client, 0) + 1
        try:
            await self._application(scope, receive, send)
        finally:
            left = self._clients[client] - 1
            if left:
                self._clients[client] = left
            else:
                del self._clients[client]
