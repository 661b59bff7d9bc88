"""Ops listener for probes and scrapers: HTTP/1.1 with uvicorn, open from before recovery until the process exits.

Callers: ``listeners``. This module does not depend on the application that it serves. The ops listener is separate from
the data listener so that probes still work while a broker recovers for minutes or its data listener is saturated.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Iterator

import h11
import uvicorn

from fairlead_broker.certificates.material import Material
from fairlead_broker.certificates.server_context import load_certificate, server_context
from fairlead_broker.server.connections.bound_socket import BoundSocket
from fairlead_broker.server.http.asgi import AsgiApplication, Receive, Scope, Send

KEEP_ALIVE_SECONDS = 75
# The limit is enough for probes and a few scrapers; more concurrent requests indicate a mistake or an attack.
REQUESTS_AT_ONCE_MAX = 64


class OpsListener:
    """HTTP/1.1 listener of an ASGI application on a bound address.

    The owner calls ``start`` once and then ``stop`` once.
    """

    def __init__(
        self,
        application: AsgiApplication,
        bound: BoundSocket,
        material: Material | None = None,
        tls_min: str = "1.3",
    ) -> None:
        """`material`: certificate of a listener with TLS; `tls_min`: its lowest version of TLS, `1.2` or `1.3`."""
        self._material = material
        self._tls_min = tls_min
        self._tls: ssl.SSLContext | None = None
        self._application = application
        self._bound = bound
        self._server: _QuietServer | None = None
        self._serving: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Listen and accept connections. Raises ListenError when another process already listens on the address."""
        listening = self._bound.listen()
        config = uvicorn.Config(
            self._answered,
            http="h11",
            interface="asgi3",
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_keep_alive=KEEP_ALIVE_SECONDS,
            limit_concurrency=REQUESTS_AT_ONCE_MAX,
            timeout_graceful_shutdown=1,
        )
        if self._material is not None:
            config.load()
            config.ssl = self._tls = await server_context(self._material, self._tls_min, ["http/1.1"])
        self._server = _QuietServer(config)
        self._serving = asyncio.get_running_loop().create_task(
            self._server.serve(sockets=[listening]), name="listener-ops"
        )
        while not self._server.started:
            if self._serving.done():
                await self._serving
            await asyncio.sleep(0)  # noqa: TID251 - uvicorn reports its start only through a flag

    async def _answered(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the application; if the connection ends before the answer, no error is logged."""
        try:
            await self._application(scope, receive, send)
        except h11.LocalProtocolError:
            # The body violated HTTP. uvicorn has refused the body and closes the connection.
            while (await receive())["type"] != "http.disconnect":
                pass

    async def renew(self, material: Material) -> None:
        """Use a new certificate for later handshakes; no effect on a listener without TLS."""
        if self._tls is not None:
            await load_certificate(self._tls, material)

    async def stop(self) -> None:
        """Stop accepting connections and close the listener; requests in progress have one second to finish."""
        if self._server is None or self._serving is None:
            return
        self._server.should_exit = True
        await self._serving
        self._server = None


class _QuietServer(uvicorn.Server):
    """uvicorn server without signal handlers; the program itself handles SIGTERM and Ctrl-C."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
