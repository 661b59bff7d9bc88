"""HTTP between processes without sockets: requests reach the ASGI application of the other process, or are lost.

`VirtualClientBuilder` replaces `pyreqwest.client.ClientBuilder` in brokers and SDK, and `presence_connect` replaces
`peers.presence.connect`. A link delays messages, blocks one or both directions, and loses messages when it breaks; a
dead process refuses connections.
"""

from __future__ import annotations

import asyncio
import contextvars
import random
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Self
from urllib.parse import urlsplit

import msgspec
from pyreqwest.exceptions import ClientClosedError, ConnectError, ReadError, RequestTimeoutError

from fairlead_broker.peers.presence import CONNECT_SECONDS_MAX, PeerRefuses, PeerUnreachable
from virtual_time.life import LIFE, Life
from virtual_time.loop import pass_time

CLIENTS = "clients"
"""Name of every process that is not a broker."""


@dataclass(slots=True)
class Served:
    """An application at an address."""

    application: Callable[..., Any]
    life: Life
    context: contextvars.Context


@dataclass(slots=True)
class VirtualNetwork:
    """All addresses, and the faults of the links between them."""

    chance: random.Random
    served: dict[str, Served] = field(default_factory=dict)
    cut: set[tuple[str, str]] = field(default_factory=set)
    """Links (from, to) on which every message is lost."""
    slow_seconds: float = 0.0
    requests: int = 0
    lost: int = 0

    def link_is_cut(self, sender: str, receiver: str) -> bool:
        """Return whether messages between two processes are lost."""
        return (sender, receiver) in self.cut

    async def travel(self, sender: str, receiver: str) -> bool:
        """Wait for the delay of a message, and return False if the message is lost."""
        await pass_time(self.chance.expovariate(2_000) + self.chance.random() * self.slow_seconds)
        if self.link_is_cut(sender, receiver):
            self.lost += 1
            return False
        return True


class VirtualClientBuilder:
    """A builder that accepts and ignores every option of a client, because the options concern sockets."""

    network: VirtualNetwork

    def __getattr__(self, name: str) -> Callable[..., Self]:
        return lambda *_, **__: self

    def build(self) -> VirtualClient:
        """Return a client of the running process."""
        return VirtualClient(self.network, LIFE.get())


class VirtualClient:
    """A client that sends requests."""

    def __init__(self, network: VirtualNetwork, life: Life | None) -> None:
        self.network = network
        self.life = life
        self.closed = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the client, which refuses later requests."""
        self.closed = True

    def request(self, method: str, url: str) -> VirtualRequest:
        """Return a new request."""
        return VirtualRequest(self, method, url)


class VirtualRequest:
    """A request, which is also its own builder."""

    def __init__(self, client: VirtualClient, method: str, url: str) -> None:
        self._client = client
        self._method = method
        self._url = urlsplit(url)
        self._headers: list[tuple[bytes, bytes]] = []
        self._body = b""
        self._seconds = 3600.0

    def timeout(self, limit: timedelta) -> Self:
        """Set the timeout of the whole exchange."""
        self._seconds = limit.total_seconds()
        return self

    def header(self, name: str, value: str) -> Self:
        """Add a header."""
        self._headers.append((name.lower().encode(), value.encode()))
        return self

    def headers(self, values: Mapping[str, str]) -> Self:
        """Add headers."""
        for name, value in values.items():
            self.header(name, value)
        return self

    def query(self, values: Mapping[str, Any]) -> Self:
        """Add query parameters."""
        query = "&".join(f"{name}={value}" for name, value in dict(values).items())
        both = "&".join(part for part in (self._url.query, query) if part)
        self._url = self._url._replace(query=both)
        return self

    def body_bytes(self, body: bytes) -> Self:
        """Set the body."""
        self._body = bytes(body)
        return self

    def body_json(self, body: object) -> Self:
        """Set the JSON body."""
        return self.header("content-type", "application/json").body_bytes(msgspec.json.encode(body))

    def build(self) -> Self:
        """Return the complete request."""
        return self

    async def send(self) -> VirtualResponse:
        """Send the request and return the answer; raise the errors of pyreqwest."""
        client, network = self._client, self._client.network
        if client.closed:
            raise ClientClosedError("the client is closed")
        network.requests += 1
        own = CLIENTS if client.life is None else client.life.name
        try:
            async with asyncio.timeout(self._seconds):
                return await self._exchange(network, own)
        except TimeoutError:
            raise RequestTimeoutError("no answer in time", {"causes": []}) from None

    async def _exchange(self, network: VirtualNetwork, own: str) -> VirtualResponse:
        served = network.served.get(self._url.netloc)
        if served is None or served.life.dead:
            await network.travel(own, self._url.netloc)
            raise ConnectError("refused", {"causes": [{"message": "client error (Connect)"}]})
        there = served.life.name
        if not await network.travel(own, there):
            await _never()
        if served.life.dead:
            raise ReadError("the connection broke", {"causes": [{"message": "connection reset"}]})
        exchange = Exchange(self._scope(), self._body)
        loop = asyncio.get_running_loop()
        task = served.context.copy().run(
            loop.create_task, served.application(exchange.scope, exchange.receive, exchange.send)
        )
        try:
            # As with a real connection, the server continues when the client no longer waits.
            await asyncio.wait([task])
        finally:
            exchange.gone.set()
        if served.life.dead or task.cancelled():
            raise ReadError("the connection broke", {"causes": [{"message": "connection reset"}]})
        task.result()
        if not await network.travel(there, own):
            await _never()
        return exchange.response()

    def _scope(self) -> dict[str, Any]:
        added = [(b"host", self._url.netloc.encode()), (b"content-length", b"%d" % len(self._body))]
        return {
            "type": "http",
            "http_version": "2",
            "method": self._method,
            "scheme": "http",
            "path": self._url.path,
            "raw_path": self._url.path.encode(),
            "query_string": self._url.query.encode(),
            "root_path": "",
            "headers": [*self._headers, *added],
            "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 2),
            "state": {},
        }


class VirtualPresence:
    """A connection that only shows whether a process runs."""

    def __init__(self, served: Served) -> None:
        self._served = served

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        """Do nothing, because the connection has no socket."""

    async def until_lost(self, seconds_max: float) -> None:
        """Wait until the process has ended."""
        running = asyncio.get_running_loop().create_task(_never(), context=self._served.context.copy())
        await asyncio.wait([running], timeout=seconds_max)
        running.cancel()


def presence_connect(network: VirtualNetwork) -> Callable[[str], Awaitable[VirtualPresence]]:
    """Return the replacement of `peers.presence.connect`."""

    async def connect(address: str) -> VirtualPresence:
        life, served = LIFE.get(), network.served.get(address)
        own, there = CLIENTS if life is None else life.name, address.partition(".")[0]
        if not await network.travel(own, there) or network.link_is_cut(there, own):
            await pass_time(CONNECT_SECONDS_MAX)
            raise PeerUnreachable(address)
        if served is None or served.life.dead:
            raise PeerRefuses(address)
        return VirtualPresence(served)

    return connect


async def _never() -> None:
    await asyncio.get_running_loop().create_future()


class Exchange:
    """The server's side of a request."""

    def __init__(self, scope: dict[str, Any], body: bytes) -> None:
        self.scope = scope
        self._body: bytes | None = body
        self.gone = asyncio.Event()
        self._status = 0
        self._headers: list[tuple[bytes, bytes]] = []
        self._parts: list[bytes] = []

    async def receive(self) -> dict[str, Any]:
        """Return the body, and afterwards the disconnection of the client."""
        if self._body is not None:
            body, self._body = self._body, None
            return {"type": "http.request", "body": body, "more_body": False}
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: dict[str, Any]) -> None:
        """Store a part of the answer."""
        if message["type"] == "http.response.start":
            self._status, self._headers = message["status"], list(message.get("headers", ()))
        else:
            self._parts.append(bytes(message.get("body", b"")))

    def response(self) -> VirtualResponse:
        """Return the complete answer."""
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in self._headers}
        return VirtualResponse(self._status, headers, b"".join(self._parts))


@dataclass(slots=True)
class VirtualResponse:
    """The answer to a request."""

    status: int
    headers: dict[str, str]
    content: bytes

    async def bytes(self) -> bytes:
        """Return the body."""
        return self.content

    def get_header(self, name: str) -> str | None:
        """Return one header."""
        return self.headers.get(name.lower())
