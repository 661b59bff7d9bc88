"""Attacks by callers with no token or with invalid tokens, on a broker that enforces access rules."""

import asyncio
import itertools
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from pyreqwest.exceptions import ConnectError

from broker_kit import BATCHES, Calls
from fairlead_api.token_text import TokenText
from overload_kit import (
    BrokerUnderLoad,
    Http2Load,
    Latencies,
    WellBehavedClient,
    calm_client,
    now,
    one_batch,
    record,
    until,
)  # fmt: skip

pytestmark = [pytest.mark.slow, pytest.mark.prove]

MIB = 1 << 20
P99_MS_MAX = 500.0
"""Maximum latency of a client with a token (produce and fetch together) during an attack on an otherwise idle machine.
"""
MEMORY_MIB_MAX = 64.0
"""Maximum memory that an attack may cost a broker."""
AT_ONCE = 16
FLOOD_STREAMS = 250
"""Requests in flight on each connection of a flood: nearly as many as a connection may have."""
FLOOD_P99_MS_MAX = 5000.0
"""Maximum latency of a client with a token during a flood: its two requests wait for all requests in flight."""
RECOVERY_SECONDS_MAX = 30.0
QUIET_SECONDS = 1.0

Headers = dict[str, str]
PRODUCE = "/v1/topics/calm/partitions/0/records"


def no_token() -> Iterator[Headers]:
    """Return headers without a token."""
    return itertools.repeat({})


def one_wrong_token() -> Iterator[Headers]:
    """Return headers with the same wrong token."""
    return itertools.repeat({"authorization": f"Bearer {TokenText('0' * 12, 's' * 43).text}"})


def many_wrong_tokens() -> Iterator[Headers]:
    """Return headers, each with a different wrong token."""
    return (
        {"authorization": f"Bearer {TokenText('0' * 12, f'{number:043}').text}"}
        for number in itertools.count()
    )


def bodies() -> dict[str, tuple[str, str, bytes | None]]:
    """Return the call of each attack: method, path and body."""
    bomb = one_batch(MIB, 1, random=False)
    return {
        "large bodies": ("POST", PRODUCE, bomb),
        "long polls": ("GET", f"{PRODUCE}?max_wait_ms=60000", None),
        "tails": ("GET", "/v1/topics/calm/records", None),
        "JSON": ("POST", "/v1/topics/calm/records", b'{"records":' + b"[" * (MIB // 4)),
        "requests": ("GET", "/v1/metadata", None),
    }


async def measure_alone(broker: BrokerUnderLoad, calm: WellBehavedClient) -> tuple[Latencies, float]:
    """Return the latencies of a client without an attack, and the broker's processor time for each of its turns."""
    before = broker.cpu_seconds
    quiet = await calm.run(QUIET_SECONDS)
    return quiet, (broker.cpu_seconds - before) / max(1, quiet.count)


class Attack:
    """Concurrent requests without a valid token, each of which is refused."""

    def __init__(
        self, broker: BrokerUnderLoad, call: tuple[str, str, bytes | None], headers: Iterator[Headers]
    ) -> None:
        self._broker = broker
        self._call = call
        self._headers = headers
        self.statuses = Counter[int]()
        self.peak_mib = 0.0

    async def run(self, seconds: float) -> None:
        """Send unauthorized requests for the given number of seconds."""
        end = now() + seconds
        async with Calls(self._broker.address) as calls, asyncio.TaskGroup() as group:
            for _ in range(AT_ONCE):
                group.create_task(self._requests(calls, end))

    async def _requests(self, calls: Calls, end: float) -> None:
        method, path, body = self._call
        media_type = {"content-type": "application/json" if "topics/calm/records" in path else BATCHES}
        while now() < end:
            headers = next(self._headers) | ({} if body is None else media_type)
            try:
                answer = await calls.call(method, path, body, headers)
            except ConnectError:
                # The HTTP server closes a connection after a thousand bodies that are refused before their end.
                continue
            self.statuses[answer.status] += 1
            self.peak_mib = max(self.peak_mib, self._broker.memory_mib)


@pytest.mark.parametrize(
    ("what", "headers"),
    [
        ("large bodies", no_token),
        ("requests", many_wrong_tokens),
        pytest.param("long polls", no_token, marks=pytest.mark.scenario),
        pytest.param("tails", no_token, marks=pytest.mark.scenario),
        pytest.param("JSON", no_token, marks=pytest.mark.scenario),
        pytest.param("requests", no_token, marks=pytest.mark.scenario),
        pytest.param("requests", one_wrong_token, marks=pytest.mark.scenario),
    ],
)
async def test_a_stranger_costs_little(
    full: bool, patience: float, tmp_path: Path, what: str, headers: Callable[[], Iterator[Headers]]
) -> None:
    """Every request without a valid token is refused and costs almost no memory; clients with a token are served."""
    seconds = 10.0 if full else 1.5
    broker = BrokerUnderLoad(tmp_path)
    broker.enforce()
    await broker.start()
    try:
        async with calm_client(broker) as calm:
            quiet, of_a_turn = await measure_alone(broker, calm)
            before_mib, cpu = broker.memory_mib, broker.cpu_seconds
            attack = Attack(broker, bodies()[what], headers())
            _, beside = await asyncio.gather(attack.run(seconds), calm.run(seconds))
            cpu = broker.cpu_seconds - cpu - of_a_turn * beside.count
        requests = attack.statuses.total()
        record(
            f"stranger: {what}, {headers.__name__.replace('_', ' ')}",
            {
                "requests": requests,
                "requests_per_second": round(requests / seconds),
                "statuses": dict(attack.statuses),
                "broker_cpu_us_per_request": round(cpu / requests * 1e6),
                "broker_cpu_share": round(cpu / seconds, 2),
                "quiet_p99_ms": quiet.p99_ms,
                "beside_p99_ms": beside.p99_ms,
                "failures": beside.failures,
                "memory_before_mib": round(before_mib),
                "memory_peak_mib": round(attack.peak_mib),
            },
        )

        assert attack.statuses.keys() <= {401, 429}
        assert beside.failures == 0
        assert beside.p99_ms <= P99_MS_MAX * patience
        assert attack.peak_mib <= before_mib + MEMORY_MIB_MAX
    finally:
        broker.kill()


class Flood:
    """Connections on which each refusal is followed by the next request, with as many in flight as are allowed."""

    def __init__(self, broker: BrokerUnderLoad) -> None:
        self._broker = broker
        self._end = 0.0
        self.connections: list[Http2Load] = []

    async def begin(self, seconds: float) -> None:
        """Open the connections and send the first requests; the flood then lasts the given number of seconds."""
        loop, batch = asyncio.get_running_loop(), one_batch(100, 1)
        self._end = now() + seconds
        for _ in range(AT_ONCE):
            _, connection = await loop.create_connection(
                lambda: Http2Load(PRODUCE, batch, content_type=BATCHES), self._broker.host, self._broker.port
            )
            await connection.ready.wait()
            connection.on_answer = partial(self._follow, connection)
            self.connections.append(connection)
        for connection in self.connections:
            for _ in range(FLOOD_STREAMS):
                self._follow(connection)

    def _follow(self, connection: Http2Load) -> None:
        if now() < self._end and connection.may_send:
            connection.send()

    @property
    def refused(self) -> int:
        """Number of refused requests."""
        return sum(len(each.refused) for each in self.connections)

    @property
    def stored(self) -> int:
        """Number of admitted requests."""
        return sum(len(each.stored) for each in self.connections)

    async def is_over(self) -> bool:
        """Wait until every request is answered; return whether this takes less than the maximum time."""
        return await until(
            lambda: not any(each.unanswered for each in self.connections), RECOVERY_SECONDS_MAX
        )

    def close(self) -> None:
        """Close the connections."""
        for each in self.connections:
            if each.transport is not None:
                each.transport.abort()


@pytest.mark.scenario
async def test_a_flood_of_refused_requests(full: bool, patience: float, tmp_path: Path) -> None:
    """A stranger with thousands of requests in flight delays other clients for as long as the flood lasts.

    No request from the other client fails, and the memory of the requests in flight is bounded.
    """
    seconds = 10.0 if full else 1.5
    broker = BrokerUnderLoad(tmp_path)
    broker.enforce()
    await broker.start()
    flood = Flood(broker)
    try:
        async with calm_client(broker) as calm:
            quiet, of_a_turn = await measure_alone(broker, calm)
            before_mib, cpu, begun = broker.memory_mib, broker.cpu_seconds, now()
            await flood.begin(seconds)
            beside = await calm.run(seconds)
            peak_mib, is_over = broker.memory_mib, await flood.is_over()
            cpu, took = broker.cpu_seconds - cpu - of_a_turn * beside.count, now() - begun
            after = await calm.run(QUIET_SECONDS)
        record(
            "stranger: flood",
            {
                "requests": flood.refused,
                "requests_per_second": round(flood.refused / took),
                "in_flight": AT_ONCE * FLOOD_STREAMS,
                "broker_cpu_us_per_request": round(cpu / flood.refused * 1e6),
                "broker_cpu_share": round(cpu / took, 2),
                "quiet_p99_ms": quiet.p99_ms,
                "beside_p99_ms": beside.p99_ms,
                "after_p99_ms": after.p99_ms,
                "memory_before_mib": round(before_mib),
                "memory_peak_mib": round(peak_mib),
            },
        )

        assert (flood.refused > 0, flood.stored, is_over) == (True, 0, True)
        assert beside.failures == after.failures == 0
        assert peak_mib <= before_mib + MEMORY_MIB_MAX
        assert beside.p99_ms <= FLOOD_P99_MS_MAX * patience
        assert after.p99_ms <= P99_MS_MAX * patience
    finally:
        flood.close()
        broker.kill()
