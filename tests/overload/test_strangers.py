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
from overload_kit import BrokerUnderLoad, Latencies, WellBehavedClient, calm_client, pause, until

pytestmark = [pytest.mark.slow, pytest.mark.prove]

PROGRAM = Path(__file__).with_name("stranger.py")
P99_MS_MAX = 500.0
"""Maximum latency of a client with a token (produce and fetch together) during an attack on an otherwise idle machine.
"""
COST_MAX = 0.1
"""Maximum processor time of the broker for a refused request, as a share of its time for a turn (a produce and a fetch)
of a client with a token in the same run."""
COST_MAX_OF = {"JSON": 0.2, "large bodies": 0.4, "flood": 0.2}
"""Maximum of requests with bodies, of which the broker receives the part that the client sends before the refusal."""
HANDSHAKE_COST_MAX = 0.2
"""Maximum processor time of the broker for a TLS handshake, as a share of its time for a turn."""
TLS = "over TLS"
MEMORY_MIB_MAX = 64.0
"""Maximum memory that an attack may cost a broker."""
UNREAD_MIB_MAX = 256.0
"""Maximum memory of the requests that connections send until the broker ignores the next connections. A slower machine
needs more, because the broker notices the delay of its loop later: 38 MiB and 155 MiB were measured."""
FLOOD_P99_MS_MAX = 5000.0
"""Maximum latency of a client with a token during a flood: its two requests wait for all requests in flight."""
UNREAD_SECONDS = 1.0
"""Maximum time to the first request, which doubles for connections without an accepted token."""
UNREAD_SECONDS_MAX = 5.0
"""Maximum age of a connection without an accepted token."""
FILES_MAX = 10
"""Maximum number of files that a broker opens for other reasons during an attack."""
ANSWER_SECONDS = 90.0
LOOK_SECONDS = 0.02


class Stranger:
    """A stranger as a separate process, and what it costs the broker."""

    def __init__(self, broker: BrokerUnderLoad, what: str, token: str, seconds: float) -> None:
        """Start the attack, which lasts the given number of seconds."""
        self._broker = broker
        self._seconds = seconds
        path = os.pathsep.join(each for each in sys.path if each)
        ca = [] if broker.ca_pem is None else [str(broker.folder / "tls" / "ca.crt")]
        self._process = subprocess.Popen(
            [sys.executable, str(PROGRAM), what, token, str(seconds), broker.address, *ca],
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


def served(quiet: Latencies, beside: Latencies, after: Latencies) -> dict[str, float]:
    """Return the figures of a client with a token before, during and after an attack."""
    return {
        "quiet_p99_ms": quiet.p99_ms,
        "beside_p99_ms": beside.p99_ms,
        "after_p99_ms": after.p99_ms,
        "failures": beside.failures + after.failures,
    }


@pytest.mark.parametrize(
    ("what", "token", "tls"),
    [
        ("large bodies", "no token", False),
        ("requests", "many wrong tokens", False),
        pytest.param("long polls", "no token", False, marks=pytest.mark.scenario),
        pytest.param("tails", "no token", False, marks=pytest.mark.scenario),
        pytest.param("JSON", "no token", False, marks=pytest.mark.scenario),
        pytest.param("requests", "no token", False, marks=pytest.mark.scenario),
        pytest.param("requests", "no token", True, marks=pytest.mark.scenario),
        pytest.param("requests", "one wrong token", False, marks=pytest.mark.scenario),
    ],
)
async def test_a_stranger_costs_little(
    full: bool, patience: float, tmp_path: Path, what: str, token: str, tls: bool
) -> None:
    """Every request without a valid token is refused and costs almost no memory; clients with a token are served."""
    seconds = 10.0 if full else 1.5
    broker = BrokerUnderLoad(tmp_path)
    broker.enforce()
    if tls:
        broker.use_tls()
    await broker.start()
    try:
        async with calm_client(broker) as calm:
            quiet, of_a_turn = await measure_alone(broker, calm, seconds)
            before_mib = broker.memory_mib
            with stranger(broker, what, token, seconds) as attack:
                beside = await attack.beside(calm)
        statuses = attack.answers["statuses"]
        requests, cpu = sum(statuses.values()), attack.cpu_seconds - of_a_turn * beside.count
        microseconds = cpu / requests * 1e6
        record(
            f"stranger: {what}, {token}" + (f", {TLS}" if tls else ""),
            {
                "requests": requests,
                "requests_per_second": round(requests / seconds),
                "in_flight": attack.answers["in_flight"],
                "statuses": statuses,
                "broker_cpu_us_per_request": round(microseconds),
                "broker_cpu_us_per_turn": round(of_a_turn * 1e6),
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
        assert microseconds <= COST_MAX_OF.get(what, COST_MAX) * of_a_turn * 1e6
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
        microseconds = cpu / refused * 1e6
        record(
            "stranger: flood",
            {
                "requests": refused,
                "requests_per_second": round(refused / took),
                "in_flight": attack.answers["in_flight"],
                "broker_cpu_us_per_request": round(microseconds),
                "broker_cpu_us_per_turn": round(of_a_turn * 1e6),
                "broker_cpu_share": round(cpu / took, 2),
                **served(quiet, beside, after),
                "memory_before_mib": round(before_mib),
                "memory_peak_mib": round(attack.peak_mib),
            },
        )

        assert (refused > 0, attack.answers["stored"], attack.answers["is_over"]) == (True, 0, True)
        assert beside.failures == after.failures == 0
        assert attack.peak_mib <= before_mib + MEMORY_MIB_MAX
        assert microseconds <= COST_MAX_OF["flood"] * of_a_turn * 1e6
        assert beside.p99_ms <= FLOOD_P99_MS_MAX * patience
        assert after.p99_ms <= P99_MS_MAX * patience
    finally:
        broker.kill()


@pytest.mark.parametrize("protocol", ["HTTP/1.1", pytest.param("HTTP/2", marks=pytest.mark.serial)])
async def test_a_stranger_that_reads_no_answer(
    full: bool, patience: float, tmp_path: Path, protocol: str
) -> None:
    """Connections on which a stranger reads no answer are closed, cost little memory, and make no other client fail.

    Over HTTP/2, each connection sends hundreds of requests before it is closed. The broker ignores further connections
    from the stranger's address while it answers these requests (rule T12). Until then, several thousand requests wait
    for the processor, and other tests would multiply this wait.
    """
    seconds = 10.0 if full else 5.0
    broker = BrokerUnderLoad(tmp_path, first_request_seconds_max=UNREAD_SECONDS)
    broker.enforce()
    await broker.start()
    try:
        async with calm_client(broker) as calm:
            quiet, of_a_turn = await measure_alone(broker, calm, seconds / 2)
            before_mib, descriptors = broker.memory_mib, broker.descriptors
            with stranger(broker, "unread", protocol, seconds) as attack:
                beside = await attack.beside(calm)
            is_over = await until(lambda: broker.descriptors <= descriptors + FILES_MAX, ANSWER_SECONDS)
            after = await calm.run(seconds / 2)
        cpu = attack.cpu_seconds - of_a_turn * beside.count
        record(
            f"stranger: unread answers, {protocol}",
            {
                **attack.answers,
                "broker_cpu_share": round(cpu / seconds, 2),
                **served(quiet, beside, after),
                "memory_before_mib": round(before_mib),
                "memory_peak_mib": round(attack.peak_mib),
            },
        )

        assert (attack.answers["closed"] > 0, is_over) == (True, True)
        assert attack.answers["longest_seconds"] <= UNREAD_SECONDS_MAX * patience
        assert beside.failures == after.failures == 0
        assert attack.peak_mib <= before_mib + UNREAD_MIB_MAX
        assert beside.p99_ms <= P99_MS_MAX * patience
        assert after.p99_ms <= P99_MS_MAX * patience
    finally:
        broker.kill()


@pytest.mark.serial
@pytest.mark.parametrize("how", ["abandoned", pytest.param("finished", marks=pytest.mark.scenario)])
async def test_a_flood_of_handshakes(full: bool, patience: float, tmp_path: Path, how: str) -> None:
    """TLS handshakes without pause, after which no request follows, cost little; clients with a token are served."""
    seconds = 10.0 if full else 1.5
    broker = BrokerUnderLoad(tmp_path)
    broker.enforce()
    broker.use_tls()
    await broker.start()
    try:
        async with calm_client(broker) as calm:
            quiet, of_a_turn = await measure_alone(broker, calm, seconds)
            before_mib, descriptors = broker.memory_mib, broker.descriptors
            with stranger(broker, "handshakes", how, seconds) as attack:
                beside = await attack.beside(calm)
            is_over = await until(lambda: broker.descriptors <= descriptors + FILES_MAX, ANSWER_SECONDS)
            after = await calm.run(seconds / 2)
        handshakes, cpu = attack.answers["handshakes"], attack.cpu_seconds - of_a_turn * beside.count
        microseconds = cpu / max(1, handshakes) * 1e6
        record(
            f"stranger: handshakes, {how}",
            {
                **attack.answers,
                "handshakes_per_second": round(handshakes / seconds),
                "broker_cpu_us_per_handshake": round(microseconds),
                "broker_cpu_us_per_turn": round(of_a_turn * 1e6),
                "broker_cpu_share": round(cpu / seconds, 2),
                **served(quiet, beside, after),
                "memory_before_mib": round(before_mib),
                "memory_peak_mib": round(attack.peak_mib),
            },
        )

        assert (handshakes > 0, attack.answers["failed"], is_over) == (True, 0, True)
        assert beside.failures == after.failures == 0
        assert attack.peak_mib <= before_mib + MEMORY_MIB_MAX
        assert microseconds <= HANDSHAKE_COST_MAX * of_a_turn * 1e6
        assert beside.p99_ms <= P99_MS_MAX * patience
        assert after.p99_ms <= P99_MS_MAX * patience
    finally:
        broker.kill()
