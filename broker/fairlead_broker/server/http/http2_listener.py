"""HTTP/2 and HTTP/1.1 listener: granian, embedded in the running event loop, on a socket that the broker binds.

Callers: ``listener_generations`` (data and peer listeners). This module does not depend on topics, routes or the
runtime, and serves any ASGI callable.

The broker binds the socket itself because granian binds with SO_REUSEPORT, so a second broker on the same port would
silently take half of the first broker's clients. With port 0, granian does not report the actual port. The socket is
handed over by replacing the private ``Server._init_shared_socket``; therefore granian's version is pinned, and a test
checks the pin.
"""

from __future__ import annotations

import asyncio
import contextlib
import resource
import socket
from dataclasses import dataclass
from enum import Enum
from typing import Any

from granian._granian import SocketHolder
from granian.constants import HTTPModes, Interfaces, SSLProtocols
from granian.http import HTTP1Settings, HTTP2Settings
from granian.server.embed import Server

from fairlead_broker.certificates.snapshots import Snapshot
from fairlead_broker.server.connections.bound_socket import BACKLOG, BoundSocket
from fairlead_broker.server.http.asgi import AsgiApplication

# With granian's default windows and frames (1 MiB, 16 KiB), bodies of 1 MiB are three to five times slower.
STREAM_WINDOW_BYTES = 16 << 20
CONNECTION_WINDOW_BYTES = 64 << 20
FRAME_BYTES_MAX = 1 << 20
# The send buffer has room for a whole piece of an answer. With granian's default of 400 KiB, its threads wake each
# other twice as often.
SEND_BUFFER_BYTES_MAX = 1 << 20
PING_TIMEOUT_SECONDS = 20
# Minimum number of descriptors reserved for segments and indexes, coordination, the other listeners and the log.
DESCRIPTORS_RESERVED_MIN = 64


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """Limits of one connection; the settings of the same names document the reasons."""

    streams_max: int = 256
    header_bytes_max: int = 32 << 10
    header_seconds_max: float = 75.0
    ping_interval_seconds: float = 30.0


class TlsVersion(Enum):
    """Lowest TLS version that a listener accepts (rule T5)."""

    TLS_1_2 = "1.2"
    TLS_1_3 = "1.3"


@dataclass(frozen=True, slots=True)
class ServerTls:
    """TLS material and lowest TLS version of a listener. The files are read only while the server starts."""

    snapshot: Snapshot
    version_min: TlsVersion = TlsVersion.TLS_1_3


class Http2Listener:
    """Listener of one ASGI application on a bound address. The owner calls ``start`` once and then ``stop`` once."""

    def __init__(
        self,
        application: AsgiApplication,
        bound: BoundSocket,
        *,
        connections_max: int,
        connection_limits: ConnectionLimits | None = None,
        tls: ServerTls | None = None,
    ) -> None:
        self._tls = tls
        self._limits = connection_limits or ConnectionLimits()
        self._application = application
        self._bound = bound
        self._connections_max = connections_max
        self._server: Server | None = None
        self._serving: asyncio.Task[None] | None = None

    async def start(self, listening: socket.socket | None = None) -> None:
        """Listen and accept connections. Raises ListenError when another process already listens on the address.

        `listening` is a duplicate of the bound socket, whose ownership passes to the listener; by default, the bound
        socket itself is used.
        """
        server = self._build_server()
        # granian closes the descriptor when it stops. The Python socket is detached so that it does not close a
        # descriptor number that has been reused.
        hand_over(server, (listening or self._bound.listen()).detach())
        self._server = server
        self._serving = asyncio.get_running_loop().create_task(
            server.serve(_serve_until_ended),  # type: ignore[arg-type]
            name=f"listener-{self._bound.name}",
        )
        # serve() spawns its worker before its first await, so connections are accepted after one loop iteration.
        await asyncio.sleep(0)  # noqa: TID251 - one loop iteration, no delay
        if self._serving.done():
            await self._serving

    async def stop(self, timeout_seconds: float | None) -> None:
        """Stop accepting connections, wait up to ``timeout_seconds`` for requests in progress, and cancel the rest.

        If `stop` was cancelled, it may be called again.
        """
        if self._server is None or self._serving is None:
            return
        self._server.stop()  # type: ignore[no-untyped-call]
        done, _ = await asyncio.wait({self._serving}, timeout=timeout_seconds)
        if not done:
            self._serving.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._serving
        else:
            self._serving.result()
        self._server = None

    def _build_server(self) -> Server:
        limits, tls = self._limits, self._tls
        client_ca = None if tls is None else tls.snapshot.client_ca
        server = Server(
            self._application,
            address=self._bound.host,
            port=self._bound.port,
            interface=Interfaces.ASGINL,
            http=HTTPModes.auto,
            websockets=False,
            backlog=BACKLOG,
            backpressure=self._connections_max,
            log_enabled=False,
            http1_settings=HTTP1Settings(header_read_timeout=round(limits.header_seconds_max * 1000)),
            http2_settings=HTTP2Settings(
                initial_connection_window_size=CONNECTION_WINDOW_BYTES,
                initial_stream_window_size=STREAM_WINDOW_BYTES,
                max_frame_size=FRAME_BYTES_MAX,
                max_headers_size=limits.header_bytes_max,
                max_concurrent_streams=limits.streams_max,
                max_send_buffer_size=SEND_BUFFER_BYTES_MAX,
                keep_alive_interval=round(limits.ping_interval_seconds * 1000),
                keep_alive_timeout=PING_TIMEOUT_SECONDS,
            ),
            ssl_cert=None if tls is None else tls.snapshot.chain,
            ssl_key=None if tls is None else tls.snapshot.key,
            ssl_protocol_min=SSLProtocols.tls12
            if tls is not None and tls.version_min is TlsVersion.TLS_1_2
            else SSLProtocols.tls13,
            ssl_ca=client_ca,
            ssl_client_verify=client_ca is not None,
        )
        # Without an authority, granian would serve clients without requesting certificates.
        assert server.ssl_ctx[0] is (tls is not None), "a listener with material must use TLS"
        assert server.ssl_ctx[-1] is (client_ca is not None), (
            "a listener with client_ca must request certificates"
        )
        return server


async def _serve_until_ended(*arguments: Any) -> None:
    """Run granian's worker. A cancellation ends only the wait for the worker, and does not reach the worker's future.

    The worker ends after its last request. granian then completes the future; if the future had been cancelled, that
    would raise an error in the event loop.
    """
    worker = Server._spawn_asgi_worker(*arguments)  # noqa: SLF001 - the default of `serve`
    try:
        # The coroutine starts the worker and then waits for the future, without a task that could be cancelled.
        await asyncio.shield(worker.send(None))
    finally:
        worker.close()


def hand_over(server: Server, descriptor: int) -> None:
    """Make granian serve ``descriptor`` instead of binding a socket; granian owns and closes the descriptor."""

    def take_descriptor() -> None:
        # granian's workers look for a socket in these attributes: a holder, its descriptor, or a specification.
        handed_over = {"_shd": SocketHolder(descriptor, False, BACKLOG), "_sfd": descriptor, "_ssp": None}  # type: ignore[call-arg]
        vars(server).update(handed_over)

    vars(server)["_init_shared_socket"] = take_descriptor


def connections_from_descriptor_limit() -> int:
    """Return the maximum number of connections: the descriptor limit of the process minus a quarter for files."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return 65_536
    return max(16, soft - max(DESCRIPTORS_RESERVED_MIN, soft // 4))
