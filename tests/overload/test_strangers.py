"""Attacks by callers with no token or with invalid tokens, on a broker that enforces access rules."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from figures import record
from overload_kit import BrokerUnderLoad, Latencies, WellBehavedClient, calm_client, pause

pytestmark = [pytest.mark.slow, pytest.mark.prove]

PROGRAM = Path(__file__).with_name("stranger.py")
P99_MS_MAX = 500.0
"""Maximum latency of a client with a token (produce and fetch together) during an attack on an otherwise idle machine.
"""
MEMORY_MIB_MAX = 64.0
"""Maximum memory that an attack may cost a broker."""
FLOOD_P99_MS_MAX = 5000.0
"""Maximum latency of a client with a token during a flood: its two requests wait for all requests in flight."""
ANSWER_SECONDS = 90.0
LOOK_SECONDS = 0.02


class Stranger:
    """A stranger as a separate process, and what it costs the broker."""

    def __init__(self, broker: BrokerUnderLoad, what: str, token: str, seconds: float) -> None:
        """Start the attack, which lasts the given number of seconds."""
        self._broker = broker
        self._seconds = seconds
        path = os.pathsep.join(each for each in sys.path if each)
        self._process = subprocess.Popen(
            [sys.executable, str(PROGRAM), what, token, str(seconds), broker.address],
            env={**os.environ, "PYTHONPATH": path},
            stdout=subprocess.PIPE,
            text=True,
        )
        self.peak_mib = 0.0
        self.cpu_seconds = 0.0
        self.answers: dict[str, Any] = {}

    async def beside(self, calm: WellBehavedClient) -> Latencies:
        """Return the latencies of a client during the attack, and keep the cost and the answers of the attack."""
        assert self._process.stdout is not None
        assert await asyncio.to_thread(self._process.stdout.readline) == "begun\n"
        before = self._broker.cpu_seconds
        looking = asyncio.create_task(self._look())
        found = await calm.run(self._seconds)
        printed, _ = await asyncio.to_thread(self._process.communicate, None, ANSWER_SECONDS)
        looking.cancel()
        self.cpu_seconds = self._broker.cpu_seconds - before
        self.answers = json.loads(printed)
        return found

    def kill(self) -> None:
        """End the process in any case."""
        self._process.kill()
        self._process.communicate()

    async def _look(self) -> None:
        while True:
            self.peak_mib = max(self.peak_mib, self._broker.memory_mib)
            await pause(LOOK_SECONDS)


@contextmanager
def stranger(broker: BrokerUnderLoad, what: str, token: str, seconds: float) -> Iterator[Stranger]:
    """Yield an attack on a broker."""
    attack = Stranger(broker, what, token, seconds)
    try:
        yield attack
    finally:
        attack.kill()


async def measure_alone(
    broker: BrokerUnderLoad, calm: WellBehavedClient, seconds: float
) -> tuple[Latencies, float]:
    """Return the latencies of a client without an attack, and the broker's processor time for each of its turns."""
    await calm.run(seconds / 2)
    before = broker.cpu_seconds
    quiet = await calm.run(seconds / 2)
    return quiet, (broker.cpu_seconds - before) / max(1, quiet.count)


@pytest.mark.parametrize(
    ("what", "token"),
    [
        ("large bodies", "no token"),
        ("requests", "many wrong tokens"),
        pytest.param("long polls", "no token", marks=pytest.mark.scenario),
        pytest.param("tails", "no token", marks=pytest.mark.scenario),
        pytest.param("JSON", "no token", marks=pytest.mark.scenario),
        pytest.param("requests", "no token", marks=pytest.mark.scenario),
        pytest.param("requests", "one wrong token", marks=pytest.mark.scenario),
    ],
)
async def test_a_stranger_costs_little(
    full: bool, patience: float, tmp_path: Path, what: str, token: str
) -> None:
    """Every request without a valid token is refused and costs almost no memory; clients with a token are served."""
    seconds = 10.0 if full else 1.5
    broker = BrokerUnderLoad(tmp_path)
    broker.enforce()
    await broker.start()
    try:
        async with calm_client(broker) as calm:
            quiet, of_a_turn = await measure_alone(broker, calm, seconds)
            before_mib = broker.memory_mib
            with stranger(broker, what, token, seconds) as attack:
                beside = await attack.beside(calm)
        statuses = attack.answers["statuses"]
        requests, cpu = sum(statuses.values()), attack.cpu_seconds - of_a_turn * beside.count
        record(
            f"stranger: {what}, {token}",
            {
                "requests": requests,
                "requests_per_second": round(requests / seconds),
                "in_flight": attack.answers["in_flight"],
                "statuses": statuses,
                "broker_cpu_us_per_request": round(cpu / requests * 1e6),
                "broker_cpu_share": round(cpu / seconds, 2),
                "quiet_p99_ms": quiet.p99_ms,
                "beside_p99_ms": beside.p99_ms,
                "failures": beside.failures,
                "memory_before_mib": round(before_mib),
                "memory_peak_mib": round(attack.peak_mib),
            },
        )

        assert statuses.keys() <= {"401", "429"}
        assert beside.failures == 0
        assert beside.p99_ms <= P99_MS_MAX * patience
        assert attack.peak_mib <= before_mib + MEMORY_MIB_MAX
    finally:
        broker.kill()


@pytest.mark.scenario
async def test_a_flood_of_refused_requests(full: bool, patience: float, tmp_path: Path) -> None:
    """A stranger with thousands of requests in flight delays other clients for as long as the flood lasts.

    No request from the other client fails, and the memory of the requests in flight is bounded.
    """
    seconds = 10.0 if full else 1.5
    broker = BrokerUnderLoad(tmp_path)
    broker.enforce()
    await broker.start()
    try:
        async with calm_client(broker) as calm:
            quiet, of_a_turn = await measure_alone(broker, calm, seconds)
            before_mib = broker.memory_mib
            with stranger(broker, "flood", "no token", seconds) as attack:
                beside = await attack.beside(calm)
            after = await calm.run(seconds / 2)
        refused, took = attack.answers["refused"], attack.answers["seconds"]
        cpu = attack.cpu_seconds - of_a_turn * beside.count
        record(
            "stranger: flood",
            {
                "requests": refused,
                "requests_per_second": round(refused / took),
                "in_flight": attack.answers["in_flight"],
                "broker_cpu_us_per_request": round(cpu / refused * 1e6),
                "broker_cpu_share": round(cpu / took, 2),
                "quiet_p99_ms": quiet.p99_ms,
                "beside_p99_ms": beside.p99_ms,
                "after_p99_ms": after.p99_ms,
                "failures": beside.failures + after.failures,
                "memory_before_mib": round(before_mib),
                "memory_peak_mib": round(attack.peak_mib),
            },
        )

        assert (refused > 0, attack.answers["stored"], attack.answers["is_over"]) == (True, 0, True)
        assert beside.failures == after.failures == 0
        assert attack.peak_mib <= before_mib + MEMORY_MIB_MAX
        assert beside.p99_ms <= FLOOD_P99_MS_MAX * patience
        assert after.p99_ms <= P99_MS_MAX * patience
    finally:
        broker.kill()
