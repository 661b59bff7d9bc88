"""Parts of `make bench` that need no tools of the peers: JSON over HTTP, heartbeats, start time, and memory."""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from pairing import Outcome, Pairs, table
from peers.brokers import (
    HERE,
    FairleadPeer,
    KafkaPeer,
    PeerFailedError,
    alone,
    cpu_seconds,
    fetch_kafka,
    with_bytecode,
)
from throughput import PARTITIONS, VALUE_BYTES, Bench

from fairlead import Admin

IDLE_SECONDS = 5.0
START_SECONDS_TARGET = 0.9
COMMAND_SECONDS_TARGET = 0.35
BATCHES = (1, 100)
DURABILITIES = ("replicated", "synced")
HEARTBEAT_US_MAX = 80
HTTP_TARGETS = {
    ("replicated", 1): {"broker_cpu_us_per_record": 150, "requests_per_second": 7000},
    ("replicated", 100): {"broker_cpu_us_per_record": 3},
}
"""Largest processor time in microseconds, and smallest rate, by durability and number of records in a request."""


def http(options: argparse.Namespace, folder: Path) -> dict[str, object]:
    """Measure 16 concurrent requests with 1 and with 100 JSON records, and the CPU time per record on both sides.

    In each round, an application without any work gets the same requests.
    """
    fairlead = FairleadPeer.start(folder)
    try:
        with _empty_application() as (empty, empty_url):
            cases = []
            for durability in DURABILITIES:
                for batch in BATCHES:
                    case = HttpCase(
                        durability, batch, max(100, options.records // (500 if batch == 1 else 2000))
                    )
                    runs = [case.run(fairlead, empty, empty_url, number) for number in range(options.pairs)]
                    cases.append(case.document(runs))
    finally:
        fairlead.stop()
    return {"cases": cases}


@contextmanager
def _empty_application() -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Run the application without any work; yield its process and its URL."""
    command = [sys.executable, str(HERE / "workloads/empty_application.py")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process, process.stdout.readline().strip()
        finally:
            process.terminate()


@dataclass(frozen=True, slots=True)
class HttpCase:
    """Requests with a number of JSON records to a topic with a durability."""

    durability: str
    batch: int
    requests: int

    def run(
        self, fairlead: FairleadPeer, empty: subprocess.Popen[str], empty_url: str, number: int
    ) -> dict[str, float]:
        """Measure one round: the broker, and then the application without any work."""
        topic = f"http-{self.durability}-{self.batch}-{number}"
        asyncio.run(_create(fairlead.url, topic, self.durability))
        measured, used = self._post(fairlead.process.pid, fairlead.url, topic)
        _, least = self._post(empty.pid, empty_url, topic)
        measured |= {"broker_cpu_us_per_record": used, "empty_cpu_us_per_record": least}
        return {name: round(value, 1) for name, value in measured.items()}

    def document(self, runs: list[dict[str, float]]) -> dict[str, object]:
        """Return the case with its runs and targets."""
        targets = HTTP_TARGETS.get((self.durability, self.batch), {})
        reached = all(
            median(run[name] for run in runs) <= limit
            if name == "broker_cpu_us_per_record"
            else median(run[name] for run in runs) >= limit
            for name, limit in targets.items()
        )
        return {
            "durability": self.durability,
            "batch": self.batch,
            "runs": runs,
            "targets": targets,
            "reached": reached if targets else None,
        }

    def _post(self, pid: int, url: str, topic: str) -> tuple[dict[str, float], float]:
        """Return the client's figures, and the processor time of the server in microseconds per record."""
        return _sent(pid, url, topic, "--requests", str(self.requests), "--batch", str(self.batch))


def _sent(pid: int, url: str, topic: str, *options: str) -> tuple[dict[str, float], float]:
    """Return the client's figures, and the processor time of the server in microseconds per record."""
    before = cpu_seconds(pid)
    command = [
        sys.executable,
        str(HERE / "workloads/http_workload.py"),
        "--url",
        url,
        "--topic",
        topic,
        *options,
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        msg = f"http ended with {done.returncode}: {done.stderr[-3000:]}"
        raise PeerFailedError(msg)
    measured: dict[str, float] = json.loads(done.stdout)
    return measured, (cpu_seconds(pid) - before) / measured["records"] * 1e6


def heartbeats(options: argparse.Namespace, folder: Path) -> dict[str, object]:
    """Measure a broker's processor time for a group's heartbeat that changes nothing, 16 at a time.

    In each round, an application without any work gets as many requests. The difference is the time of the broker's own
    code.
    """
    asked = ("--heartbeats", "--requests", str(options.records // 500))
    fairlead = FairleadPeer.start(folder)
    try:
        asyncio.run(_create(fairlead.url, "heartbeats", "replicated"))
        with _empty_application() as (empty, empty_url):
            runs = []
            for _ in range(options.pairs):
                measured, used = _sent(fairlead.process.pid, fairlead.url, "heartbeats", *asked)
                _, least = _sent(empty.pid, empty_url, "", *asked)
                runs.append((used, least, used - least, measured["requests_per_second"]))
    finally:
        fairlead.stop()
    used, least, own, rates = (median(figures) for figures in zip(*runs, strict=True))
    differences = [run[2] for run in runs]
    outcome = Outcome(
        "a heartbeat that changes nothing, 16 at a time: the broker's processor time beyond an empty application's",
        f"{own:.0f} ({min(differences):.0f} to {max(differences):.0f}) µs, in all {used:.0f} µs against {least:.0f} µs;"
        f" {rates:,.0f} a second",
        f"at most {HEARTBEAT_US_MAX} µs",
        own <= HEARTBEAT_US_MAX,
    )
    return {"runs": runs, "outcomes": [outcome.document()]}


async def _create(url: str, topic: str, durability: str) -> None:
    async with Admin(url) as admin:
        await admin.create_topic(topic, partitions=PARTITIONS, config={"durability": durability})


def start(options: argparse.Namespace, folder: Path) -> dict[str, object]:
    """Start both brokers repeatedly; measure start times in seconds, a command, and memory when idle and under load."""
    jars = fetch_kafka(options.cache)
    seconds: dict[str, list[float]] = {"fairlead": [], "kafka": []}
    idle: dict[str, list[float]] = {"fairlead": [], "kafka": []}
    loaded: dict[str, list[float]] = {"fairlead": [], "kafka": []}
    commands: list[float] = []
    for number in range(options.pairs):
        place = folder / str(number)
        fairlead = FairleadPeer.start(place)
        try:
            time.sleep(IDLE_SECONDS)
            commands.append(_command_seconds(fairlead))
            fairlead.pause()
            kafka = KafkaPeer.start(place, jars)
            try:
                time.sleep(IDLE_SECONDS)
                for peer in (fairlead, kafka):
                    seconds[peer.name].append(peer.start_seconds)
                    idle[peer.name].append(peer.resident_bytes() / 2**20)
                _load(Bench(fairlead, kafka, options.records, VALUE_BYTES), fairlead, kafka)
                for peer in (fairlead, kafka):
                    loaded[peer.name].append(peer.resident_bytes("VmHWM") / 2**20)
            finally:
                kafka.stop()
        finally:
            fairlead.stop()
    pairs = [
        Pairs(case, unit, tuple(sides["fairlead"]), tuple(sides["kafka"]), target, at_least=False)
        for case, unit, sides, target in (
            ("start of the process to ready", "ms", _milliseconds(seconds), None),
            ("memory when idle", "MiB", idle, 0.5),
            ("memory at its peak under load", "MiB", loaded, 0.5),
        )
    ]
    print(table(pairs))
    ready = median(seconds["fairlead"])
    return {
        "cases": [each.document() for each in pairs],
        "start_seconds": round(ready, 2),
        "start_seconds_target": START_SECONDS_TARGET,
        "start_reached": ready <= START_SECONDS_TARGET,
        "command_seconds": [round(each, 2) for each in commands],
        "command_seconds_target": COMMAND_SECONDS_TARGET,
        "command_reached": median(commands) <= COMMAND_SECONDS_TARGET,
    }


def _command_seconds(fairlead: FairleadPeer) -> float:
    """Return the time in seconds that `fairlead topic list` takes from its start to its end."""
    command = [str(Path(sys.executable).with_name("fairlead")), "topic", "list", "--bootstrap", fairlead.url]
    began = time.monotonic()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=with_bytecode())
    return time.monotonic() - began


def _milliseconds(seconds: dict[str, list[float]]) -> dict[str, list[float]]:
    return {name: [each * 1000 for each in taken] for name, taken in seconds.items()}


def _load(bench: Bench, fairlead: FairleadPeer, kafka: KafkaPeer) -> None:
    alone(fairlead, (fairlead, kafka))
    topic = bench.fairlead_topic("replicated")
    bench.fairlead_side("produce", topic)
    bench.fairlead_side("consume", topic)
    alone(kafka, (fairlead, kafka))
    topic = bench.kafka_topic()
    bench.kafka_produce(topic)
    bench.kafka_consume(topic)
