"""A door: a proxy for the API server that delays, refuses or fails requests, or closes, when a test requires it.

The door is a process in the network of the box, one for each test that uses a door. `doors.py` starts the process and
sends orders, one JSON object per line on standard input, each of which is answered. The process ends when its input
ends, so that it never outlives the test. The door terminates TLS and forwards requests with their token; clients with
certificates use the front door.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import socket
import ssl
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aiohttp import ClientConnectionError, ClientSession, ClientTimeout, TCPConnector, web

HOP_BY_HOP = frozenset({"connection", "host", "transfer-encoding", "keep-alive", "content-length", "upgrade"})
REASONS = {409: "Conflict", 429: "TooManyRequests", 500: "InternalError", 503: "ServiceUnavailable"}


@dataclass(slots=True)
class Rule:
    """An order that decides how matching requests are treated."""

    methods: frozenset[str]
    path: re.Pattern[str]
    times: int
    delay_seconds: float
    status: int
    after: bool
    """Whether the request is executed before the error is answered, as when an answer is lost."""

    def takes(self, request: web.Request) -> bool:
        """Return whether the rule applies to the request, and count the request."""
        fits = not self.methods or request.method in self.methods
        if self.times == 0 or not fits or not self.path.search(request.path_qs):
            return False
        self.times -= 1
        return True


class FaultDoor:
    """The door with its rules, open or closed."""

    def __init__(self, upstream: str, session: ClientSession) -> None:
        """Forward requests to `upstream` through `session`."""
        self._upstream, self._session = upstream, session
        self._rules: list[Rule] = []
        self._away = False
        self._transports: set[asyncio.BaseTransport] = set()
        self.answered = 0

    def obey(self, order: dict[str, Any]) -> dict[str, int]:
        """Apply one order, and return the number of errors answered so far."""
        match order["order"]:
            case "rule":
                self._rules.append(
                    Rule(
                        frozenset(order["methods"]),
                        re.compile(order["path"]),
                        order["times"],
                        order["delay_seconds"],
                        order["status"],
                        order["after"],
                    )
                )
            case "clear":
                self._rules.clear()
                self._away = False
            case "away":
                self._away = True
                for transport in self._transports:
                    if isinstance(transport, asyncio.Transport):
                        transport.abort()
            case other:
                raise AssertionError(other)
        return {"answered": self.answered}

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Forward a request, or apply a rule."""
        assert request.transport is not None, "the client is still there"
        if self._away:
            request.transport.abort()
            return web.Response()
        self._transports.add(request.transport)
        transport = request.transport
        try:
            rule = next((rule for rule in self._rules if rule.takes(request)), None)
            if rule is not None and rule.delay_seconds:
                await asyncio.sleep(rule.delay_seconds)  # noqa: TID251 (the delay is intended)
            if rule is None or not rule.status:
                return await self._pass_on(request)
            if rule.after:
                await self._carry_out(request)
            self.answered += 1
            return _refusal(rule.status)
        finally:
            self._transports.discard(transport)

    async def _carry_out(self, request: web.Request) -> None:
        """Send a request and drop the answer."""
        body = await request.read() or None
        headers = _headers(request.headers)
        url = self._upstream + request.path_qs
        async with self._session.request(request.method, url, data=body, headers=headers) as answer:
            await answer.read()

    async def _pass_on(self, request: web.Request) -> web.StreamResponse:
        """Forward a request and stream its answer, so that watches work."""
        body = await request.read() or None
        url = self._upstream + request.path_qs
        call = self._session.request(request.method, url, data=body, headers=_headers(request.headers))
        async with call as answer:
            response = web.StreamResponse(status=answer.status, headers=_headers(answer.headers))
            await response.prepare(request)
            # The answer ends when a client disconnects or the door closes.
            with suppress(ClientConnectionError, ConnectionResetError):
                async for piece in answer.content.iter_any():
                    await response.write(piece)
                await response.write_eof()
            return response


def _headers(headers: Any) -> dict[str, str]:
    return {name: text for name, text in headers.items() if name.lower() not in HOP_BY_HOP}


def _refusal(status: int) -> web.Response:
    body = {
        "kind": "Status",
        "apiVersion": "v1",
        "status": "Failure",
        "message": "this answer was ordered by the test",
        "reason": REASONS.get(status, "InternalError"),
        "code": status,
    }
    return web.json_response(body, status=status)


async def serve(arguments: argparse.Namespace) -> None:
    """Serve until the input ends."""
    pki = Path(arguments.pki)
    incoming = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    incoming.load_cert_chain(pki / "apiserver.crt", pki / "apiserver.key")
    outgoing = ssl.create_default_context(cafile=str(pki / "ca.crt"))
    connector = TCPConnector(ssl=outgoing, limit=0)
    async with ClientSession(
        connector=connector, timeout=ClientTimeout(total=None), auto_decompress=False
    ) as session:
        door = FaultDoor(arguments.upstream, session)
        application = web.Application(client_max_size=64 * 1024 * 1024)
        application.router.add_route("*", "/{path:.*}", door.handle)
        # Watches last for minutes, and no client remains at the shutdown.
        runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        outside = socket.socket(fileno=arguments.listener)
        port = outside.getsockname()[1]
        await web.SockSite(runner, outside, ssl_context=incoming).start()
        await web.TCPSite(runner, "127.0.0.1", port, ssl_context=incoming).start()
        lines = asyncio.StreamReader()
        protocol = asyncio.StreamReaderProtocol(lines)
        await asyncio.get_running_loop().connect_read_pipe(lambda: protocol, sys.stdin)
        print(json.dumps({"port": port}), flush=True)
        while line := await lines.readline():
            print(json.dumps(door.obey(json.loads(line))), flush=True)
        await runner.cleanup()


def main() -> None:
    """Serve until the input ends."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--listener", type=int, required=True, help="descriptor of the machine's socket")
    parser.add_argument("--upstream", required=True, help="URL of the API server in the box")
    parser.add_argument("--pki", required=True, help="folder with the server's certificate")
    asyncio.run(serve(parser.parse_args()))


if __name__ == "__main__":
    main()
