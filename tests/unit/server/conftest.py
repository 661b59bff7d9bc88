"""An HTTP listener on a free port, raw sockets and an HTTP/2 client for the tests of the server package."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
from pyreqwest.client import Client, ClientBuilder

from fairlead_broker.server.connections.bound_socket import BoundSocket
from fairlead_broker.server.http.asgi import AsgiApplication
from fairlead_broker.server.http.http2_listener import Http2Listener

Serve = Callable[[AsgiApplication], Awaitable[BoundSocket]]


@pytest.fixture
async def serve() -> AsyncIterator[Serve]:
    """Yield a function that serves an ASGI application on a free port until the test ends."""
    listeners: list[Http2Listener] = []

    async def start(application: AsgiApplication) -> BoundSocket:
        bound = BoundSocket("data", "127.0.0.1", 0)
        listener = Http2Listener(application, bound, connections_max=64)
        await listener.start()
        listeners.append(listener)
        return bound

    yield start
    for listener in listeners:
        await listener.stop(2)


@pytest.fixture
async def http2() -> AsyncIterator[Client]:
    """Yield a client that speaks HTTP/2 from the first byte."""
    async with ClientBuilder().http2_prior_knowledge().build() as client:
        yield client


@pytest.fixture
async def http1() -> AsyncIterator[Client]:
    """Yield a client that speaks HTTP/1.1."""
    async with ClientBuilder().http1_only().build() as client:
        yield client


async def exchange(bound: BoundSocket, request: bytes) -> bytes:
    """Send raw bytes, and return everything received until the server closes the connection."""
    reader, writer = await asyncio.open_connection(bound.host, bound.port)
    try:
        writer.write(request)
        await writer.drain()
        return await reader.read()
    finally:
        writer.close()
        await writer.wait_closed()
