"""The ops listener: HTTP/1.1 by uvicorn, for probes and scrapers, alive before recovery and until the very end.

Callers: ``listeners``. It knows nothing of what it serves. It stands apart from the data listener so that a broker
that recovers for minutes, or whose data listener is saturated, can still be asked how it is.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator

import uvicorn

from fairlead_broker.server.http.asgi import AsgiApplication
from fairlead_broker.server.http.bound_socket import BoundSocket

KEEP_ALIVE_SECONDS = 75
# Probes and a few scrapers; more is a mistake or an attack.
REQUESTS_AT_ONCE_MAX = 64


class OpsListener:
    """Serves one ASGI application over HTTP/1.1 on a bound address; ``start`` then ``stop``, once each."""

    def __init__(self, application: AsgiApplication, bound: BoundSocket) -> None:
        self._application = application
        self._bound = bound
        self._server: _QuietServer | None = None
        self._serving: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Listen and accept. Raises ListenError when another process listens on the address already."""
        listening = self._bound.listen()
        config = uvicorn.Config(
            self._application,
            http="h11",
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_keep_alive=KEEP_ALIVE_SECONDS,
            limit_concurrency=REQUESTS_AT_ONCE_MAX,
            timeout_graceful_shutdown=1,
        )
        self._server = _QuietServer(config)
        self._serving = asyncio.get_running_loop().create_task(
            self._server.serve(sockets=[listening]), name="listener-ops"
        )
        while not self._server.started:
            if self._serving.done():
                await self._serving
            await asyncio.sleep(0)  # noqa: TID251 - uvicorn tells that it started by a flag only

    async def stop(self) -> None:
        """Accept no more and end; running requests have a second."""
        if self._server is None or self._serving is None:
            return
        self._server.should_exit = True
        await self._serving
        self._server = None


class _QuietServer(uvicorn.Server):
    """uvicorn without its signal handlers: the program owns SIGTERM and Ctrl-C, not one of its listeners."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
