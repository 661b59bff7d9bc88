"""Where the operator is scraped and probed."""

from __future__ import annotations

import socket
from contextlib import suppress

import pytest
from aiohttp import ClientError, ClientSession

from fairlead_operator.settings import Listen, OperatorSettings
from fairlead_operator.telemetry import Telemetry
from fairlead_operator.watching.listener import serve

HOSTS = ("127.0.0.1", "[::1]")


def right() -> str:
    """Say that nothing is wrong."""
    return ""


async def answering(host: str) -> list[str]:
    """Serve on a host and return by which names the health is found."""
    found = []
    listen = Listen(host, 0)
    async with serve(listen, Telemetry(), unhealthy=right, unready=right) as port, ClientSession() as session:
        for name in HOSTS:
            with suppress(ClientError):
                async with session.get(f"http://{name}:{port}/healthz") as answer:
                    assert await answer.text() == "ok\n"
                    found.append(name)
    return found


async def test_by_default_both_families_are_served() -> None:
    """Which one kubelet probes is for the cluster to say."""
    assert await answering(OperatorSettings().metrics_listen.host) == list(HOSTS)


@pytest.mark.parametrize(("host", "name"), [("127.0.0.1", "127.0.0.1"), ("::1", "[::1]")])
async def test_an_address_is_served_alone(host: str, name: str) -> None:
    """No other address answers."""
    assert await answering(host) == [name]


async def test_a_machine_without_ipv6_serves_its_other_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel may have none, which only another boot of it could show here."""
    monkeypatch.setattr(socket, "has_dualstack_ipv6", lambda: False)

    assert await answering("::") == ["127.0.0.1"]
