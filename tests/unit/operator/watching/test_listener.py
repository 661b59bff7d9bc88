"""The listener for the operator's metrics and probes."""

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
    """Return the empty string, which reports that nothing is wrong."""
    return ""


async def answering(host: str) -> list[str]:
    """Serve on a host, and return the addresses at which the health endpoint answers."""
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
    """The default listener answers on IPv4 and IPv6, because the cluster decides which protocol the kubelet uses."""
    assert await answering(OperatorSettings().metrics_listen.host) == list(HOSTS)


@pytest.mark.parametrize(("host", "name"), [("127.0.0.1", "127.0.0.1"), ("::1", "[::1]")])
async def test_an_address_is_served_alone(host: str, name: str) -> None:
    """A listener on one address does not answer on other addresses."""
    assert await answering(host) == [name]


async def test_a_machine_without_ipv6_serves_its_other_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    """A listener on a machine without IPv6 answers on IPv4."""
    monkeypatch.setattr(socket, "has_dualstack_ipv6", lambda: False)

    assert await answering("::") == ["127.0.0.1"]
