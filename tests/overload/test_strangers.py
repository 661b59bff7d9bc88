"""Attacks by callers with no token or with invalid tokens, on a broker that enforces access rules."""

import asyncio
import itertools
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from broker_kit import BATCHES, Calls
from fairlead_api.token_text import TokenText
from overload_kit import BrokerUnderLoad, calm_client, now, one_batch, record

pytestmark = [pytest.mark.slow, pytest.mark.prove]

MIB = 1 << 20
P99_MS_MAX = 500.0
"""Maximum latency of a client with a token (produce and fetch together) during an attack on an otherwise idle machine.
"""
MEMORY_MIB_MAX = 64.0
"""Maximum memory that an attack may cost a broker."""
AT_ONCE = 16

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
            answer = await calls.call(method, path, body, headers)
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
            quiet = await calm.run(1.0)
            before_mib, cpu = broker.memory_mib, broker.cpu_seconds
            attack = Attack(broker, bodies()[what], headers())
            _, beside = await asyncio.gather(attack.run(seconds), calm.run(seconds))
            cpu = broker.cpu_seconds - cpu
        requests = attack.statuses.total()
        record(
            f"stranger: {what}, {headers.__name__.replace('_', ' ')}",
            {
                "requests": requests,
                "requests_per_second": round(requests / seconds),
                "statuses": dict(attack.statuses),
                "broker_cpu_us_per_request": round(cpu / requests * 1e6),
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
