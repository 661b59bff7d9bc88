"""HTTP listener of the operator: metrics for Prometheus, health and readiness for the kubelet."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from fairlead_operator.settings import Listen
from fairlead_operator.telemetry import Telemetry

EVERY_ADDRESS: Final = "::"


@asynccontextmanager
async def serve(
    listen: Listen, telemetry: Telemetry, *, unhealthy: Callable[[], str], unready: Callable[[], str]
) -> AsyncIterator[int]:
    """Serve /metrics, /healthz and /readyz; yield the port.

    `unhealthy` and `unready` return a description of the problem, or an empty string. Any answer from /healthz also
    shows that the event loop is running.
    """

    async def metrics(_: web.Request) -> web.Response:
        return web.Response(
            body=generate_latest(telemetry.registry), headers={"Content-Type": CONTENT_TYPE_LATEST}
        )

    def probe(wrong: Callable[[], str]) -> Callable[[web.Request], web.Response]:
        def answer(_: web.Request) -> web.Response:
            words = wrong()
            return web.Response(text=f"{words or 'ok'}\n", status=503 if words else 200)

        return answer

    async def health(request: web.Request) -> web.Response:
        return probe(unhealthy)(request)

    async def readiness(request: web.Request) -> web.Response:
        return probe(unready)(request)

    app = web.Application()
    app.router.add_get("/metrics", metrics)
    app.router.add_get("/healthz", health)
    app.router.add_get("/readyz", readiness)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        await _site(runner, listen).start()
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()


def _site(runner: web.AppRunner, listen: Listen) -> web.BaseSite:
    if listen.host != EVERY_ADDRESS:
        return web.TCPSite(runner, listen.host, listen.port)
    # asyncio would bind the address `::` for IPv6 only, and the kernel may not support IPv6.
    if not socket.has_dualstack_ipv6():
        return web.TCPSite(runner, "0.0.0.0", listen.port)  # noqa: S104 - replaces `::` on a machine without IPv6
    return web.SockSite(
        runner, socket.create_server(("", listen.port), family=socket.AF_INET6, dualstack_ipv6=True)
    )
