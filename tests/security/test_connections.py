"""Connections without useful requests are closed in time, and other clients are served (proof V13)."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import time
from pathlib import Path

import pytest

from audit_kit import Lines
from certificate_kit import Authority
from fairlead_api.audit_events import AuditEvent
from fairlead_broker.server.connections.connection_guard import (
    LOOK_SECONDS_MAX,
    LOOKS_PER_WAIT,
    UNAUTHENTICATED_FACTOR,
)
from fairlead_broker.server.http.listener_generations import HANDSHAKE_SECONDS_MAX
from fairlead_broker.settings import BrokerSettings
from fairlead_broker.wiring.start import RunningBroker, start_broker
from figures import record
from waiting import until

FREE = "127.0.0.1:0"
HALF_HELLO = b"\x16\x03\x01\x02\x00\x01"
"""Beginning of the first record of a TLS handshake."""
SLACK_SECONDS = 5.0
"""Time for listing and closing the connections on a busy machine."""
REQUEST = b"GET /v1/whoami HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer %s\r\n\r\n"


class Client:
    """A client with TLS that makes requests over one connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, token: bytes) -> None:
        self.reader, self.writer, self._token = reader, writer, token

    async def status(self) -> int:
        """Make a request and return the status of its answer."""
        self.writer.write(REQUEST % self._token)
        head = await self.reader.readuntil(b"\r\n\r\n")
        length = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length"))
        await self.reader.readexactly(int(length.partition(b":")[2]))
        return int(head.split(b" ", 2)[1])

    @property
    def is_cut(self) -> bool:
        """Whether the broker has closed the connection."""
        return self.reader.at_eof() or self.reader.exception() is not None

    async def slowest(self, requests: int, running: asyncio.Task[None] | None = None) -> float:
        """Return the 99th percentile of the response times of at least `requests` requests, in seconds.

        `running`: a task; the requests continue until it is done.
        """
        taken = []
        while len(taken) < requests or (running is not None and not running.done()):
            begun = time.perf_counter()
            assert await self.status() == 200
            taken.append(time.perf_counter() - begun)
        return sorted(taken)[len(taken) * 99 // 100]


class Attack:
    """Connections without a request, before, during and after the handshake, and connections with refused tokens."""

    def __init__(self, port: int, context: ssl.SSLContext) -> None:
        self._port, self._context = port, context
        self._lives: list[asyncio.Task[tuple[bool, float]]] = []

    async def connect(self, number: int, token: bytes = b"flt_wrong") -> Client:
        """Open the connection with the given number, which selects its kind."""
        with_tls = number % 4 >= 2
        opened = await asyncio.open_connection(
            "127.0.0.1", self._port, ssl=self._context if with_tls else None
        )
        begun = time.monotonic()
        client = Client(*opened, token)
        if number % 4 == 1:
            client.writer.write(HALF_HELLO)
        if is_refused := number % 4 == 3:
            await client.status()
        self._lives.append(asyncio.create_task(self._life(client, is_refused, begun)))
        return client

    async def open(self, count: int) -> None:
        """Open connections of all kinds, one after the other."""
        for number in range(count):
            await self.connect(number)

    @staticmethod
    async def _life(client: Client, is_refused: bool, begun: float) -> tuple[bool, float]:
        """Wait until the broker has closed a connection; return its kind, and for how many seconds it was open."""
        try:
            while await client.reader.read(1 << 16):
                pass
        except (ConnectionError, ssl.SSLError):
            pass
        client.writer.transport.abort()
        return is_refused, time.monotonic() - begun

    async def longest(self) -> dict[bool, float]:
        """Wait until the broker has closed every connection.

        Return the seconds of the longest silent connection (False), and of the longest with a refused token (True).
        """
        lives = await asyncio.gather(*self._lives)
        return {kind: max(seconds for each, seconds in lives if each is kind) for kind in (False, True)}


async def closed_broker(folder: Path, authority: Authority, seconds: float) -> RunningBroker:
    """Start an enforcing broker with TLS (`enforce`) that closes connections without a request after some seconds."""
    return await start_broker(
        BrokerSettings.load(
            {
                "data": folder / "data", "listen": FREE, "peer_listen": FREE, "ops_listen": FREE,
                "tls": authority.issue().write(folder / "tls", authority),
                "security": "enforce", "admin_token_file": folder / "admin.token",
                "limits": {"first_request_seconds_max": seconds, "connections_per_address_max": 0},
            }
        )
    )  # fmt: skip


@pytest.mark.serial
@pytest.mark.parametrize(
    ("count", "seconds", "floor"),
    [(24, 1.0, 0.05), pytest.param(5000, 30.0, 0.005, marks=pytest.mark.scenario)],
)
async def test_connections_without_requests_are_closed(
    tmp_path: Path, lines: Lines, count: int, seconds: float, floor: float
) -> None:
    """Each connection ends within its time limit plus two checks, and a client is served as before.

    A silent connection has 30 s by default, so that it ends within 60 s; a connection whose tokens are refused has
    twice this time. The client's latency is measured while the connections are opened, and when all are open; `floor`
    is a latency in seconds that is always good enough. The audit log has the reason of each.
    """
    authority = Authority.make()
    broker = await closed_broker(tmp_path, authority, seconds)
    try:
        port = int(str(broker.addresses.data_tls).rpartition(":")[2])
        context = ssl.create_default_context(cafile=tmp_path / "tls" / "ca.crt")
        attack = Attack(port, context)
        token = (tmp_path / "admin.token").read_bytes().strip()
        opened = await asyncio.open_connection("127.0.0.1", port, ssl=context)
        good = Client(*opened, token)
        before = await good.slowest(300)
        begun = time.monotonic()
        opening = asyncio.create_task(attack.open(count))
        connecting = await good.slowest(300, opening)
        await opening
        connected = time.monotonic() - begun
        during = await good.slowest(300)
        look = min(LOOK_SECONDS_MAX, seconds / LOOKS_PER_WAIT)
        async with asyncio.timeout(UNAUTHENTICATED_FACTOR * seconds + 3 * look + 10):
            longest = await attack.longest()
        figures = {
            "connections": count,
            "opened_within_seconds": round(connected, 1),
            "longest_silent_seconds": round(longest[False], 1),
            "longest_refused_seconds": round(longest[True], 1),
            "p99_ms_before": round(before * 1000, 1),
            "p99_ms_while_connecting": round(connecting * 1000, 1),
            "p99_ms_during": round(during * 1000, 1),
        }
        record("connections without a request", figures)

        # A record is written after its connections are closed.
        await until(
            lambda: (
                {each["reason"] for each in lines.changes(AuditEvent.CONNECTION_CUT)}
                == {"no_request", "unauthenticated"}
            )
        )
        assert max(connecting, during) <= max(2 * before, floor), figures
        assert longest[False] <= seconds + 2 * look + SLACK_SECONDS, figures
        assert longest[True] <= UNAUTHENTICATED_FACTOR * seconds + 2 * look + SLACK_SECONDS, figures
        assert await good.status() == 200
        good.writer.transport.abort()
    finally:
        await broker.stop()


@pytest.mark.scenario
async def test_an_unfinished_handshake_ends_after_ten_seconds(tmp_path: Path) -> None:
    """The HTTP server itself closes a connection whose handshake is not finished in time (rule T11)."""
    broker = await closed_broker(tmp_path, Authority.make(), 120.0)
    try:
        port = int(str(broker.addresses.data_tls).rpartition(":")[2])
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        begun = time.monotonic()
        writer.write(HALF_HELLO)
        async with asyncio.timeout(HANDSHAKE_SECONDS_MAX + 2 * SLACK_SECONDS):
            assert await reader.read(1) == b""
        took = time.monotonic() - begun
        writer.transport.abort()
    finally:
        await broker.stop()
    record("a handshake that is not finished", {"closed_after_seconds": round(took, 1)})

    assert took == pytest.approx(HANDSHAKE_SECONDS_MAX, abs=SLACK_SECONDS)


async def test_an_address_has_half_of_the_connections(tmp_path: Path) -> None:
    """By default, an address that has half of all connections gets no more, and its open connections continue."""
    settings = {
        "data": tmp_path, "listen": FREE, "peer_listen": FREE, "ops_listen": FREE,
        "limits": {"first_request_seconds_max": 3.0, "connections_max": 8},
    }  # fmt: skip
    broker = await start_broker(BrokerSettings.load(settings))
    try:
        host, _, port = str(broker.addresses.data).rpartition(":")
        clients = []
        for _ in range(6):
            client = Client(*await asyncio.open_connection(host, int(port)), b"x")
            clients.append(client)
            # A check may close a connection beyond the limit before its first answer.
            with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
                await client.status()
        await until(lambda: sum(each.is_cut for each in clients) == 2)

        # Connections found by the same check have no order, so any two may count as the newest.
        kept = [each for each in clients if not each.is_cut]
        assert [await each.status() for each in kept] == [200] * 4
        for each in clients:
            each.writer.transport.abort()
    finally:
        await broker.stop()
