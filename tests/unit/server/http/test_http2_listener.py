"""The embedded server: protocols, ports, stopping, and the private attributes of granian that it uses."""

import asyncio
import socket
from importlib.metadata import version

import pytest
from granian.server.embed import Server
from pyreqwest.client import Client, ClientBuilder

from fairlead_broker.server.connections.bound_socket import BoundSocket, ListenError
from fairlead_broker.server.http.asgi import Message, Receive, Scope, Send
from fairlead_broker.server.http.http2_listener import (
    Http2Listener,
    connections_from_descriptor_limit,
    hand_over,
)
from refusals import raises


async def hello(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer with the HTTP version of the request."""
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": scope["http_version"].encode()})


async def refused(bound: BoundSocket) -> None:
    """Return when no connection is accepted at the address."""
    async with asyncio.timeout(5):
        while True:
            try:
                _, writer = await asyncio.open_connection(bound.host, bound.port)
            except OSError:
                return
            writer.close()
            await writer.wait_closed()


def test_granian_is_the_pinned_release() -> None:
    """The installed granian is the release whose private attributes were checked."""
    assert version("granian") == "2.8.7"


def test_granian_takes_our_descriptor() -> None:
    """Handing a socket to granian sets exactly the three attributes that granian's own method sets."""
    server = Server(hello)
    own = {name for name in vars(server) if name in {"_shd", "_sfd", "_ssp"}}
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        hand_over(server, listening.fileno())
        server._init_shared_socket()

        assert own == {"_shd", "_sfd", "_ssp"}
        assert server._ssp is None
        assert server._sfd == server._shd.get_fd() == listening.fileno()


async def test_both_protocols_on_one_port(serve, http1: Client, http2: Client) -> None:
    """HTTP/2 with prior knowledge and HTTP/1.1 are served on the same port."""
    bound = await serve(hello)
    spoken = [await (await client.get(f"http://{bound}/").build().send()).text() for client in (http1, http2)]

    assert spoken == ["1.1", "2"]


async def test_second_listener_on_a_port_fails(serve) -> None:
    """A port in use is never shared, and its refusal contains the address, the reason and a remedy."""
    bound = await serve(hello)

    with raises(ListenError, f"127.0.0.1:{bound.port}"):
        BoundSocket("data", "127.0.0.1", bound.port)


def test_bound_port_is_reserved_before_listening() -> None:
    """A reserved address cannot be bound by another process before the broker listens."""
    bound = BoundSocket("data", "127.0.0.1", 0)
    try:
        with pytest.raises(ListenError):
            BoundSocket("data", "127.0.0.1", bound.port)
    finally:
        bound.close()


def test_unknown_host_is_refused_by_name() -> None:
    """The refusal of an address that does not belong to the machine names the address."""
    with raises(ListenError, "203.0.113.1:0"):
        BoundSocket("peer", "203.0.113.1", 0)


async def test_port_is_free_again_after_stop(http1: Client) -> None:
    """A stopped listener's port can be bound again at once, even after it closed connections."""
    bound = BoundSocket("data", "127.0.0.1", 0)
    for _ in range(2):
        listener = Http2Listener(hello, bound, connections_max=8)
        await listener.start()
        async with ClientBuilder().http1_only().build() as client:
            await (await client.get(f"http://{bound}/").build().send()).text()
        await listener.stop(2)
        bound = BoundSocket("data", "127.0.0.1", bound.port)
    bound.close()


async def test_stop_lets_a_running_request_finish(http2: Client) -> None:
    """A stop refuses new connections, and ends after the requests in progress are answered."""
    entered, leave = asyncio.Event(), asyncio.Event()

    async def slow(scope: Scope, receive: Receive, send: Send) -> None:
        entered.set()
        await leave.wait()
        await hello(scope, receive, send)

    bound = BoundSocket("data", "127.0.0.1", 0)
    listener = Http2Listener(slow, bound, connections_max=8)
    await listener.start()
    async with asyncio.TaskGroup() as group:
        request = group.create_task(http2.get(f"http://{bound}/").build().send())
        await entered.wait()
        stopping = group.create_task(listener.stop(5))
        await refused(bound)
        stopped_early = stopping.done()
        leave.set()

    assert not stopped_early
    assert request.result().status == 200


async def test_stop_does_not_wait_for_ever(http2: Client) -> None:
    """A request that never ends is dropped at the time limit of the stop."""
    entered = asyncio.Event()

    async def stuck(scope: Scope, receive: Receive, send: Send) -> None:
        entered.set()
        await asyncio.Event().wait()

    bound = BoundSocket("data", "127.0.0.1", 0)
    listener = Http2Listener(stuck, bound, connections_max=8)
    await listener.start()
    request = asyncio.ensure_future(http2.get(f"http://{bound}/").build().send())
    await entered.wait()
    await asyncio.wait_for(listener.stop(0.2), 3)
    request.cancel()
    await asyncio.gather(request, return_exceptions=True)


async def test_a_request_that_ends_after_the_stop_raises_no_error(
    http2: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request that outlasts the time limit of a stop may end later without an error in the event loop."""
    entered, leave = asyncio.Event(), asyncio.Event()
    errors, workers = list[dict[str, object]](), list[asyncio.Future[None]]()
    spawn = Server._spawn_asgi_worker

    class Worker:
        """Worker of granian whose future the test waits for."""

        def __init__(self, *arguments: object) -> None:
            self._worker = spawn(*arguments)
            self.close = self._worker.close

        def send(self, nothing: None) -> asyncio.Future[None]:
            """Start the worker and return its future."""
            workers.append(self._worker.send(nothing))
            return workers[-1]

    async def slow(scope: Scope, receive: Receive, send: Send) -> None:
        entered.set()
        await leave.wait()
        await hello(scope, receive, send)

    monkeypatch.setattr(Server, "_spawn_asgi_worker", Worker)
    asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context))
    bound = BoundSocket("data", "127.0.0.1", 0)
    listener = Http2Listener(slow, bound, connections_max=8)
    await listener.start()
    request = asyncio.ensure_future(http2.get(f"http://{bound}/").build().send())
    await entered.wait()
    await listener.stop(0.05)
    unfinished = not workers[0].done()
    leave.set()
    await asyncio.wait_for(workers[0], 30)
    await asyncio.gather(request, return_exceptions=True)

    assert unfinished
    assert errors == []


async def test_large_headers_are_refused(serve, http2: Client) -> None:
    """A request with headers that are too large is refused before it reaches the application."""
    bound = await serve(hello)
    answer = await http2.get(f"http://{bound}/").header("x-long", "a" * 60_000).build().send()

    assert answer.status == 431


async def test_body_parts_arrive_in_order(serve, http2: Client) -> None:
    """An answer of several MiB, sent as views of one buffer, arrives complete."""
    content = bytes(range(256)) * (3 << 12)

    async def parts(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        view = memoryview(content)
        for at in range(0, len(view), 1 << 20):
            message: Message = {
                "type": "http.response.body",
                "body": view[at : at + (1 << 20)],
                "more_body": True,
            }
            await send(message)
        await send({"type": "http.response.body", "body": b""})

    bound = await serve(parts)
    answer = await http2.get(f"http://{bound}/").build().send()

    assert bytes(await answer.bytes()) == content


def test_connections_leave_descriptors_for_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """A quarter of the descriptors is reserved for segment files.

    The number of connections is limited even if the number of descriptors is not.
    """
    limits = {"RLIM": (20_000, 20_000)}
    monkeypatch.setattr("resource.getrlimit", lambda _: limits["RLIM"])
    derived = connections_from_descriptor_limit()
    limits["RLIM"] = (-1, -1)
    unlimited = connections_from_descriptor_limit()

    assert derived == 15_000
    assert unlimited == 65_536


async def test_stalled_reader_holds_a_few_parts(serve) -> None:
    """If a client does not read, only a few parts of its answer are in memory, and they are freed on disconnect."""
    sent: list[int] = []
    ended = asyncio.Event()

    async def endless(scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await send({"type": "http.response.start", "status": 200, "headers": []})
            for number in range(1_000):
                await send({"type": "http.response.body", "body": bytes(1 << 20), "more_body": True})
                sent.append(number)
        finally:
            ended.set()

    bound = await serve(endless)
    reader, writer = await asyncio.open_connection(bound.host, bound.port)
    writer.write(b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n")
    await reader.readexactly(100)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(asyncio.shield(ended.wait()), 0.5)
    held = len(sent)
    writer.close()
    await asyncio.wait_for(ended.wait(), 5)

    assert held < 30
