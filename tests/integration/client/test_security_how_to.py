"""The page on security, `how-to/security.md`: its proxy that terminates TLS works as described."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest
import trustme

from page_kit import PageShell

if TYPE_CHECKING:
    from pathlib import Path


async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Forward bytes until the stream ends."""
    while some := await reader.read(65_536):
        writer.write(some)
        await writer.drain()
    writer.close()


@asynccontextmanager
async def proxy(behind: str, authority: trustme.CA) -> AsyncIterator[str]:
    """Run a proxy that terminates TLS and forwards all bytes; yield its address."""
    address = urlsplit(behind)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.set_alpn_protocols(["h2", "http/1.1"])
    authority.issue_cert("localhost").configure_cert(context)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        broker_reader, broker_writer = await asyncio.open_connection(address.hostname, address.port)
        await asyncio.gather(copy(reader, broker_writer), copy(broker_reader, writer), return_exceptions=True)

    async with await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context) as server:
        yield f"https://localhost:{server.sockets[0].getsockname()[1]}"


@pytest.mark.slow
async def test_a_proxy_that_ends_tls(bootstrap: str, tmp_path: Path) -> None:
    """A client that trusts the proxy's authority reaches the brokers; metadata still has the brokers' own addresses."""
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    async with proxy(bootstrap, authority) as url:
        shell = PageShell(tmp_path, {"FAIRLEAD_BOOTSTRAP": url})
        refused, _, why = await shell.answer("fairlead topic create orders")
        shell.variables["SSL_CERT_FILE"] = str(tmp_path / "ca.pem")
        created = await shell.run("fairlead topic create orders")
        read = await shell.run(f'curl -s --cacert ca.pem {url}/v1/topics | grep -o \'"name":"orders"\'')
        told = await shell.run("fairlead broker list --output json")

    assert (refused, "certificate" in why) == (5, True)
    assert created == "created topic orders with 1 partition\n"
    assert read == '"name":"orders"\n'
    assert bootstrap in told
