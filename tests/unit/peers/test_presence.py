"""Connections that show whether a process listens, over real sockets."""

from __future__ import annotations

import asyncio
import socket

import pytest

from fairlead_broker.peers.presence import PeerRefuses, PeerUnreachable, connect


def listening() -> socket.socket:
    """Return a socket that accepts connections."""
    return socket.create_server(("127.0.0.1", 0))


def address(listener: socket.socket) -> str:
    """Return the address of a socket."""
    return f"127.0.0.1:{listener.getsockname()[1]}"


async def test_a_connection_is_lost_when_its_peer_closes_it() -> None:
    """A wait for the loss of a connection ends when the peer closes or resets it, or at the time limit."""
    with listening() as listener, await connect(address(listener)) as presence:
        await presence.until_lost(0.01)
        accepted, _ = listener.accept()
        accepted.send(b"bytes of the peer are ignored")
        waiting = asyncio.create_task(presence.until_lost(60.0))
        accepted.close()
        async with asyncio.timeout(30):
            await waiting


async def test_a_bound_port_without_a_listener_refuses() -> None:
    """A port at which no process listens refuses connections, even while a starting process has bound it."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        with pytest.raises(PeerRefuses):
            await connect(address(bound))


@pytest.mark.parametrize("where", ["127.0.0.1:none", "[::1", "127.255.255.255:9"])
async def test_other_failures_prove_nothing(where: str) -> None:
    """An invalid address, or an address without a route, does not count as a refusal."""
    with pytest.raises(PeerUnreachable):
        await connect(where)
