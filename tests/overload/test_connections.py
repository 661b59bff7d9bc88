"""Idle and hostile connections: the broker keeps running, serves other clients and releases file descriptors."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from dataclasses import asdict, dataclass

import pytest

from broker_kit import Calls
from figures import record
from overload_kit import (
    CONTINUATION,
    END_HEADERS,
    END_STREAM,
    HEADERS,
    PREFACE,
    BrokerUnderLoad,
    Latencies,
    WellBehavedClient,
    calm_client,
    frame,
    now,
    pause,
    request_block,
    reset,
    settings,
    until,
)

pytestmark = [pytest.mark.slow, pytest.mark.prove]

P99_MS_MAX = 500.0
"""Maximum latency of a well-behaved client (produce and fetch together) during an attack on an otherwise idle machine:
ten times the usual latency.
"""
BY_A_STRANGER = pytest.mark.parametrize(
    "start", ["open", pytest.param("enforce", marks=pytest.mark.scenario)], indirect=True
)
"""Runs an attack on an open broker, and without a token on a broker that enforces access rules."""


def request_head(path: str = "/v1/versions") -> bytes:
    """Return an HTTP/1.1 GET request."""
    return f"GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n".encode()


def name_of(broker: BrokerUnderLoad, attack: str) -> str:
    """Return the name under which the figures of an attack are recorded."""
    return attack if broker.token_file is None else f"stranger: {attack}"


@dataclass(slots=True)
class Beside:
    """What another client and the broker's processor time show during an attack."""

    latencies: Latencies
    cpu_share: float
    """Share of one processor that the broker uses for all its clients."""

    @classmethod
    async def measure(cls, broker: BrokerUnderLoad, calm: WellBehavedClient, seconds: float) -> Beside:
        """Run the other client."""
        begun, before = now(), broker.cpu_seconds
        latencies = await calm.run(seconds)
        return cls(latencies, (broker.cpu_seconds - before) / (now() - begun))


def figures(
    count: int, quiet: Latencies, beside: Beside, before_mib: float, peak_mib: float
) -> dict[str, object]:
    """Return the figures of an attack."""
    return {
        "count": count,
        "quiet": asdict(quiet),
        "beside": asdict(beside.latencies),
        "broker_cpu_share": round(beside.cpu_share, 2),
        "memory_before_mib": round(before_mib),
        "memory_peak_mib": round(peak_mib),
    }


async def send(connection: socket.socket, data: bytes) -> None:
    """Send all data, and ignore errors on a connection that the broker closed."""
    with contextlib.suppress(ConnectionError):
        await asyncio.get_running_loop().sock_sendall(connection, data)


async def closed(connection: socket.socket, seconds: float) -> bool:
    """Return whether the broker closes the connection within the given time."""
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(seconds):
            while await loop.sock_recv(connection, 65_536):
                pass
    except ConnectionError:
        return True
    except TimeoutError:
        return False
    return True


async def returned(broker: BrokerUnderLoad, descriptors: int) -> bool:
    """Return whether the broker returns to `descriptors`, except for a few files opened during the attack."""
    return await until(lambda: broker.descriptors <= descriptors + 10, 30)


@BY_A_STRANGER
async def test_idle_connections(start, full, patience) -> None:
    """Idle connections (silent, kept alive, HTTP/2) cost a broker little memory and delay no other client."""
    count = 5_000 if full else 400
    broker = await start(connections_per_address_max=0)
    async with calm_client(broker) as calm:
        quiet = await calm.run(3 if full else 0.3)
        memory, descriptors = broker.memory_mib, broker.descriptors
        idle = []
        for number in range(count):
            idle.append(connection := broker.connect())
            if number % 4 == 1:
                await send(connection, request_head())
            elif number % 4 == 2:
                await send(connection, PREFACE + settings({}))
        assert await until(lambda: broker.descriptors >= descriptors + count, 30)
        beside = await Beside.measure(broker, calm, 5 if full else 1)
        peak = broker.memory_mib
        for connection in idle:
            connection.close()
        came_back = await returned(broker, descriptors)
    if full:
        record(name_of(broker, "idle_connections"), figures(count, quiet, beside, memory, peak))

    assert came_back
    assert peak - memory < 20 + count * 0.05
    assert beside.latencies.failures == 0
    assert beside.latencies.p99_ms < P99_MS_MAX * patience


async def test_connections_beyond_the_limit_wait(start) -> None:
    """A connection beyond the limit waits and is served when another connection closes."""
    broker = await start(connections_max=20)
    taken = [broker.connect() for _ in range(20)]
    for connection in taken:
        await send(connection, request_head())
        assert await asyncio.get_running_loop().sock_recv(connection, 12) == b"HTTP/1.1 200"
    late = broker.connect()
    await send(late, request_head())
    waits = not await until_readable(late, 0.5)
    taken.pop().close()

    assert waits
    assert await until_readable(late, 10)
    assert (await asyncio.get_running_loop().sock_recv(late, 12)) == b"HTTP/1.1 200"
    for connection in (*taken, late):
        connection.close()


async def until_readable(connection: socket.socket, seconds: float) -> bool:
    """Return whether a byte is received within the given time."""
    loop = asyncio.get_running_loop()
    arrived = asyncio.Event()
    loop.add_reader(connection, arrived.set)
    try:
        async with asyncio.timeout(seconds):
            await arrived.wait()
    except TimeoutError:
        return False
    finally:
        loop.remove_reader(connection)
    return True


@BY_A_STRANGER
async def test_rapid_reset(start, full, patience) -> None:
    """A connection that opens and resets thousands of requests is closed, and other clients are not affected."""
    pairs = 20_000 if full else 2_000
    broker = await start()
    async with calm_client(broker) as calm:
        await calm.run(0.5)
        quiet = await calm.run(3 if full else 0.3)
        memory, descriptors = broker.memory_mib, broker.descriptors
        attack = asyncio.create_task(rapid_resets(broker, pairs))
        beside = await Beside.measure(broker, calm, 5 if full else 1)
        connections = await attack
        peak = broker.memory_mib
        came_back = await returned(broker, descriptors)
        after = await calm.run(1)
    if full:
        told = figures(pairs, quiet, beside, memory, peak)
        record(name_of(broker, "rapid_reset"), told | {"connections_ended_by_broker": connections})

    assert connections > 0
    assert broker.alive
    assert came_back
    assert peak - memory < 64
    assert beside.latencies.failures == after.failures == 0
    assert max(beside.latencies.p99_ms, after.p99_ms) < P99_MS_MAX * patience


async def rapid_resets(broker: BrokerUnderLoad, pairs: int) -> int:
    """Send `pairs` HEADERS frames with RST_STREAM; return how many connections the broker closed."""
    block = request_block("GET", "/v1/topics/calm/partitions/0/records?max_wait_ms=60000&offset=latest")
    ended = 0
    for first in range(0, pairs, 200):
        connection = broker.connect()
        data = bytearray(PREFACE + settings({}))
        for stream in range(1, 2 * min(200, pairs - first) + 1, 2):
            data += frame(HEADERS, END_STREAM | END_HEADERS, stream, block) + reset(stream)
        await send(connection, bytes(data))
        ended += await closed(connection, 2)
        connection.close()
    return ended


@BY_A_STRANGER
async def test_slow_headers(start, full, patience) -> None:
    """A connection with a slow request head is closed after a time limit, over HTTP/2 after an unanswered ping."""
    count = 500 if full else 60
    broker = await start(header_seconds_max=2, ping_interval_seconds=2)
    async with calm_client(broker) as calm:
        quiet = await calm.run(1 if full else 0.3)
        memory, descriptors = broker.memory_mib, broker.descriptors
        slow = [broker.connect() for _ in range(count)]
        begun = now()
        for connection in slow:
            await send(connection, b"GET /v1/versions HTTP/1.1\r\nhost: localhost\r\n")
        trickle = asyncio.create_task(trickles(slow, b"x"))
        beside = await Beside.measure(broker, calm, 2)
        peak = broker.memory_mib
        gone = await asyncio.gather(*(closed(connection, 8) for connection in slow))
        seconds = now() - begun
        trickle.cancel()
        for connection in slow:
            connection.close()
        came_back = await returned(broker, descriptors)
    if full:
        record(
            name_of(broker, "slow_headers"),
            figures(count, quiet, beside, memory, peak) | {"ended_after_s": round(seconds, 1)},
        )

    assert all(gone)
    assert came_back
    assert peak - memory < 32
    assert beside.latencies.failures == 0
    assert beside.latencies.p99_ms < P99_MS_MAX * patience


async def trickles(connections: list[socket.socket], data: bytes) -> None:
    """Send a few bytes on each connection, repeatedly."""
    while True:
        for connection in connections:
            await send(connection, data)
        await pause(0.5)


@BY_A_STRANGER
async def test_slow_bodies(start, full, patience) -> None:
    """Requests with paused bodies are closed, use almost no memory, and block no other client."""
    count = 500 if full else 60
    broker = await start(body_idle_seconds_max=2, body_seconds_max=4, bodies_bytes_max=64 << 20)
    async with calm_client(broker) as calm:
        quiet = await calm.run(1 if full else 0.3)
        memory, descriptors = broker.memory_mib, broker.descriptors
        head = (
            "POST /v1/topics/calm/partitions/0/records HTTP/1.1\r\nhost: localhost\r\n"
            "content-type: application/vnd.fairlead.batches\r\ncontent-length: 8000000\r\n\r\n"
        )
        slow = [broker.connect() for _ in range(count)]
        for connection in slow:
            await send(connection, head.encode() + bytes(100))
        trickle = asyncio.create_task(trickles(slow, b"x"))
        begun = now()
        beside = await Beside.measure(broker, calm, 2)
        peak = broker.memory_mib
        gone = await asyncio.gather(*(closed(connection, 20) for connection in slow))
        seconds = now() - begun
        trickle.cancel()
        for connection in slow:
            connection.close()
        came_back = await returned(broker, descriptors)
    if full:
        record(
            name_of(broker, "slow_bodies"),
            figures(count, quiet, beside, memory, peak) | {"ended_after_s": round(seconds, 1)},
        )

    assert all(gone)
    assert came_back
    assert peak - memory < 32 + count * 0.1
    assert beside.latencies.failures == 0
    assert beside.latencies.p99_ms < P99_MS_MAX * patience


@BY_A_STRANGER
async def test_giant_headers(start, full, patience) -> None:
    """A request with a head beyond the limit is refused in both protocols, even with endless CONTINUATION frames."""
    count = 200 if full else 20
    broker = await start()
    async with calm_client(broker) as calm:
        quiet = await calm.run(1 if full else 0.3)
        memory, descriptors = broker.memory_mib, broker.descriptors
        attack = asyncio.create_task(giant_heads(broker, count))
        beside = await Beside.measure(broker, calm, 1)
        answers = await attack
        peak = broker.memory_mib
        came_back = await returned(broker, descriptors)
        after = await calm.run(0.3)
    if full:
        record(name_of(broker, "giant_headers"), figures(count, quiet, beside, memory, peak))

    assert {answer[:12] for answer in answers} <= {b"HTTP/1.1 431", b"HTTP/1.1 400", b""}
    assert came_back
    assert peak - memory < 64
    assert beside.latencies.failures == after.failures == 0
    assert beside.latencies.p99_ms < P99_MS_MAX * patience


async def giant_heads(broker: BrokerUnderLoad, count: int) -> list[bytes]:
    """Send `count` heads beyond the limit over each protocol; return the first bytes of the answers."""
    answers = []
    for _ in range(count):
        one = broker.connect()
        await send(one, request_head()[:-2] + b"x-long: " + b"a" * 1_000_000)
        answers.append(await first_bytes(one))
        two = broker.connect()
        flood = frame(HEADERS, END_STREAM, 1, request_block("GET", "/v1/versions"))
        flood += frame(CONTINUATION, 0, 1, b"\0\x01a" + b"\x7f\x81\x7c" + b"a" * 16_000) * 200
        await send(two, PREFACE + settings({}) + flood)
        answers.append(b"" if await closed(two, 5) else b"open")
        one.close()
        two.close()
    return answers


async def first_bytes(connection: socket.socket) -> bytes:
    """Return the first bytes of the broker's answer, none when the connection is closed."""
    try:
        async with asyncio.timeout(10):
            return await asyncio.get_running_loop().sock_recv(connection, 100)
    except ConnectionError:
        return b""


async def test_requests_of_one_connection_do_not_hold_back_others(start) -> None:
    """A client with more streams than allowed waits, and another connection is served at once."""
    broker = await start(streams_per_connection_max=10)
    async with calm_client(broker) as calm, Calls(broker.address) as crowd:
        path = "/v1/topics/calm/partitions/0/records?offset=latest&max_wait_ms=3000"
        polls = [asyncio.ensure_future(crowd.call("GET", path)) for _ in range(40)]
        beside = await calm.run(1)
        statuses = {answer.status for answer in await asyncio.gather(*polls)}

    assert statuses <= {200, 204}
    assert beside.failures == 0
