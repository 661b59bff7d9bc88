"""Addresses that are not a broker's data listener: the error names the server found and the server needed."""

from __future__ import annotations

import asyncio
import ssl
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from fairlead import Admin, Producer
from fairlead.connection.wrong_listener import WANTED, listeners_of
from fairlead.errors import BugError, FairleadError, UnreachableError
from refusals import missing

if TYPE_CHECKING:
    from conftest import Received, Reply, ScriptedBroker

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def listening(serve: Serve, tls: ssl.SSLContext | None = None) -> AsyncIterator[str]:
    """Listen on a free port and yield the address."""

    async def served(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve a connection and close it."""
        try:
            await serve(reader, writer)
        except OSError:
            pass
        finally:
            writer.transport.abort()

    server = await asyncio.start_server(served, "127.0.0.1", 0, ssl=tls)
    try:
        yield "{}:{}".format(*server.sockets[0].getsockname())
    finally:
        server.close()


async def http1(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer as an HTTP/1.1 server."""
    await reader.read(100)
    writer.write(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n")
    await writer.drain()


async def close_at_once(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
    """Close after the first bytes, like a Kafka broker, which does not accept them as a request length."""
    await reader.read(4)


async def never_answer(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
    """Read the request and never answer."""
    await reader.read()


async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Send a greeting first, as servers of some protocols do."""
    writer.write(b"220 mail.example ESMTP\r\n")
    await reader.read()


@pytest.fixture
def tls(tmp_path: Path) -> ssl.SSLContext:
    """Return a TLS context with a certificate that no client trusts."""
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    made = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    named = ["-keyout", str(key), "-out", str(certificate), "-subj", "/CN=localhost"]
    subprocess.run([*made, *named], check=True, capture_output=True)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate, key)
    return context


async def refusal(address: str) -> FairleadError:
    """Return the error that a client raises for an address."""
    with pytest.raises(FairleadError) as refused:
        async with asyncio.timeout(20), Admin(address, retry_timeout="100ms", request_timeout="1s") as admin:
            await admin.list_topics()
    return refused.value


@pytest.mark.parametrize(
    ("serve", "told"),
    [
        (http1, f"; the listener speaks HTTP/1.1, like the ops listener of a broker; {WANTED})."),
        (close_at_once, f"; the listener accepts connections but does not answer HTTP/2; {WANTED})."),
        (
            greet,
            f"; the listener speaks another protocol, which begins with b'220 mail.example ESM'; {WANTED}).",
        ),
    ],
)
@pytest.mark.parametrize("scheme", ["http", "https"])
async def test_another_server_is_identified(serve: Serve, told: str, scheme: str) -> None:
    """The error for the address of another server identifies the server by its answer to HTTP/2 without TLS."""
    async with listening(serve) as place:
        error = await refusal(f"{scheme}://{place}")

    assert isinstance(error, UnreachableError)
    if scheme == "http" or serve is http1:
        assert told in str(error)


async def test_silence_is_reported_with_the_waiting_time(
    broker: ScriptedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error for an address that never answers contains the waiting time.

    A broker, or an address at which nothing listens, is not described as a wrong server.
    """
    monkeypatch.setattr("fairlead.connection.transport.ANSWER_MARGIN_SECONDS", -0.8)
    # A busy machine may need more than a second for the connections.
    monkeypatch.setattr("fairlead.connection.wrong_listener.LOOK_SECONDS_MAX", 3.0)
    async with listening(never_answer) as place:
        error = await refusal(f"http://{place}")
        told = await listeners_of([f"http://{place}", "http://127.0.0.1:1", broker.url])

    assert missing(error, "0.2", f"http://{place}") == []
    assert list(told) == [f"http://{place}"]


async def test_the_right_scheme_is_suggested(broker: ScriptedBroker, tls: ssl.SSLContext) -> None:
    """The error for a wrong scheme suggests the right scheme.

    The error for an untrusted certificate names the certificate and not the scheme.
    """
    async with listening(http1, tls) as place:
        too_little = await refusal(f"http://{place}")
        untrusted = await refusal(f"https://{place}")
    too_much = await refusal(broker.url.replace("http:", "https:"))

    assert missing(too_little, f"https://{place}") == []
    assert missing(untrusted, "certificate") == []
    assert missing(too_much, broker.url) == []


@pytest.mark.parametrize(
    "answer",
    [
        (200, {"content-type": "text/html"}, b"<html>Welcome!</html>"),
        (404, {"content-type": "text/plain"}, b"404 page not found"),
        (415, {"content-type": "application/grpc", "grpc-status": "3"}, b""),
        (404, {"content-type": "application/json"}, b'{"code":5,"message":"Not Found"}'),
    ],
)
async def test_other_servers_of_http2_are_identified(broker: ScriptedBroker, answer: Reply) -> None:
    """An answer from another HTTP/2 server, such as etcd or a proxy, is never mistaken for a broker's answer."""

    async def say(_: Received) -> Reply:
        """Answer as scripted."""
        return answer

    broker.script("/v1/topics", say)
    error = await refusal(broker.url)
    broker.script("/v1/metadata", say)
    with pytest.raises(FairleadError) as refused:
        async with Producer(broker.url, retry_timeout="100ms") as producer:
            await producer.send("flights", b"x")

    for each in (error, refused.value):
        assert missing(each, "service", "proxy") == []
        assert WANTED in str(each)
        assert isinstance(each, BugError) == (answer[0] == 200)


async def test_the_listener_of_the_brokers_is_identified(broker: ScriptedBroker) -> None:
    """The error for the address of a peer listener, which refuses clients, says that only brokers call it."""
    broker.refuse("/v1/topics", "peer_refused")

    error = await refusal(broker.url)

    assert missing(error, "brokers", "listener") == []
    assert WANTED in str(error)
