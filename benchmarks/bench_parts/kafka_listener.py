"""Parts of `make bench` that compare brokers with a Kafka listener with Apache Kafka, with the same Kafka clients.

Kafka's own tools, librdkafka and aiokafka run against each broker in turn, in alternating pairs, while the other broker
is stopped (SIGSTOP). Besides rates, the parts report the processor time that a broker uses for a record.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import math
import socket
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median, quantiles

from aiokafka import AIOKafkaConsumer
from confluent_kafka import KafkaError, Message, Producer
from pairing import Pairs, table
from peers.brokers import (
    FairleadPeer,
    KafkaPeer,
    PeerFailedError,
    PeerProcess,
    alone,
    cpu_seconds,
    fetch_kafka,
    free_port,
)
from throughput import CONSUMER_OPTIONS

from fairlead import Admin

PARTITIONS = 1
TUNED = ("batch.size=500000", "linger.ms=10")
LONE_RECORDS = 500
IDLE_SECONDS = 20.0
JOIN_SECONDS_MAX = 300.0


@dataclass(frozen=True, slots=True)
class Case:
    """A case of throughput: the records, the settings of the client, and the targets."""

    name: str
    value_bytes: int
    settings: tuple[str, ...]
    rate_min: float
    cpu_max: float
    """Target for the processor time of a record, in relation to Kafka's."""


PRODUCE = (
    Case("produce 100 B, tuned", 100, TUNED, 1.0, 1.3),
    Case("produce 100 B, defaults", 100, (), 1.0, 1.0),
    Case("produce 100 B, lz4, tuned", 100, (*TUNED, "compression.type=lz4"), 1.2, 1.3),
    Case("produce 1 KB, tuned", 1_000, TUNED, 1.0, 1.3),
)
CONSUME = (Case("consume 100 B", 100, TUNED, 1.0, 1.3), Case("consume 1 KB", 1_000, TUNED, 1.0, 1.3))


@dataclass(slots=True)
class Side:
    """One of the two systems: its broker, its address, and its figures for each case."""

    peer: PeerProcess
    bootstrap: str
    rates: list[float] = field(default_factory=list)
    cpu_us: list[float] = field(default_factory=list)


class KafkaClients:
    """The same clients for both brokers."""

    def __init__(self, fairlead: FairleadPeer, kafka: KafkaPeer, bootstrap: str) -> None:
        self._fairlead = fairlead
        self._kafka = kafka
        self._peers = (fairlead, kafka)
        self._addresses = (bootstrap, kafka.bootstrap)
        self._topics = 0

    def sides(self) -> tuple[Side, Side]:
        """Return both systems without figures."""
        fairlead, kafka = (
            Side(peer, address) for peer, address in zip(self._peers, self._addresses, strict=True)
        )
        return fairlead, kafka

    def alone(self, side: Side) -> None:
        """Stop the other broker while this broker is measured."""
        alone(side.peer, self._peers)

    def topic(self, side: Side) -> str:
        """Create a topic; return its name."""
        self._topics += 1
        name = f"bench-{self._topics}"
        if side.peer is self._kafka:
            place = ("--bootstrap-server", side.bootstrap, "--topic", name)
            sizes = ("--partitions", str(PARTITIONS), "--replication-factor", "1")
            self._kafka.tool("org.apache.kafka.tools.TopicCommand", *place, "--create", *sizes)
        else:
            asyncio.run(self._create(name))
        return name

    async def _create(self, name: str) -> None:
        # Kafka's tools refuse keys that Kafka does not have. Kafka acknowledges a record before it is on the disk.
        async with Admin(self._fairlead.url) as admin:
            await admin.create_topic(name, partitions=PARTITIONS, config={"durability": "replicated"})

    def produce(self, side: Side, topic: str, case: Case, records: int) -> None:
        """Run ProducerPerformance, and add its rate and the broker's processor time to the side's figures."""
        before = cpu_seconds(side.peer.process.pid)
        output = self._kafka.tool(
            "org.apache.kafka.tools.ProducerPerformance",
            *("--topic", topic, "--num-records", str(records), "--record-size", str(case.value_bytes)),
            *("--throughput", "-1", "--bootstrap-server", side.bootstrap, "--command-property", "acks=all"),
            *case.settings,
        )
        rate = float(output.strip().splitlines()[-1].split("sent, ")[1].split(" records/sec")[0])
        self._add(side, rate, before, records)

    def consume(self, side: Side, topic: str, records: int) -> None:
        """Run ConsumerPerformance, and add its fetch rate and the broker's processor time to the side's figures."""
        before = cpu_seconds(side.peer.process.pid)
        output = self._kafka.tool(
            "org.apache.kafka.tools.ConsumerPerformance",
            *("--bootstrap-server", side.bootstrap, "--topic", topic, "--num-records", str(records)),
            *("--hide-header", "--timeout", "60000"),
            *CONSUMER_OPTIONS,
        )
        rate = float(output.strip().splitlines()[-1].split(",")[-1])
        if not 0 < rate < math.inf:
            msg = f"Kafka's tool measures nothing with so few records: {output.strip()}"
            raise PeerFailedError(msg)
        self._add(side, rate, before, records)

    @staticmethod
    def _add(side: Side, rate: float, cpu_before: float, records: int) -> None:
        side.rates.append(rate)
        side.cpu_us.append((cpu_seconds(side.peer.process.pid) - cpu_before) * 1e6 / records)

    def throughput(self, case: Case, records: int, pairs: int, *, consume: bool) -> tuple[Pairs, Pairs]:
        """Measure a case in alternating pairs; return the rates, and the processor time of a record."""
        sides = self.sides()
        records = records * 100 // case.value_bytes
        topics = {}
        for side in sides if consume else ():
            self.alone(side)
            topics[side.bootstrap] = self.topic(side)
            self.produce(side, topics[side.bootstrap], case, records)
            side.rates.clear()
            side.cpu_us.clear()
        for _ in range(pairs):
            for side in sides:
                self.alone(side)
                if consume:
                    self.consume(side, topics[side.bootstrap], records)
                else:
                    self.produce(side, self.topic(side), case, records)
        ours, theirs = sides
        return (
            Pairs(case.name, "records/s", tuple(ours.rates), tuple(theirs.rates), case.rate_min),
            Pairs(
                f"{case.name}: broker's CPU for a record",
                "µs",
                tuple(ours.cpu_us),
                tuple(theirs.cpu_us),
                case.cpu_max,
                at_least=False,
            ),
        )

    def lone_produces(self, pairs: int) -> tuple[Pairs, Pairs]:
        """Measure produces of one record with acks=all, one after another; return median and 99th percentile."""
        halves: dict[str, tuple[list[float], list[float]]] = {}
        for _ in range(pairs):
            for side in self.sides():
                self.alone(side)
                times = lone_times_us(side.bootstrap, self.topic(side))
                for name, value in (("p50", median(times)), ("p99", quantiles(times, n=100)[98])):
                    halves.setdefault(name, ([], []))[side.peer is self._kafka].append(value)
        p50, p99 = (
            Pairs(f"lone produce, acks=all, {name}", "µs", tuple(ours), tuple(theirs), 2.0, at_least=False)
            for name, (ours, theirs) in halves.items()
        )
        return p50, p99

    def idle_connections(self, count: int) -> tuple[Pairs, Pairs]:
        """Measure memory and processor time of a broker with connections that send nothing."""
        figures = []
        for side in self.sides():
            self.alone(side)
            before = side.peer.resident_bytes()
            host, _, port = side.bootstrap.rpartition(":")
            with contextlib.ExitStack() as open_sockets:
                for _ in range(count):
                    open_sockets.enter_context(socket.create_connection((host, int(port)), timeout=10))
                figures.append(idle_figures(side.peer, before))
        return _idle_pairs(f"{count:,} idle connections", figures)

    def group_members(self, count: int) -> tuple[Pairs, Pairs]:
        """Measure memory and processor time of a broker while members of a classic group are in a stable group."""
        figures = []
        for side in self.sides():
            self.alone(side)
            topic, before = self.topic(side), side.peer.resident_bytes()
            figures.append(asyncio.run(member_figures(side, topic, count, before)))
        return _idle_pairs(f"{count:,} members of a classic group", figures)


def lone_times_us(bootstrap: str, topic: str) -> list[float]:
    """Return the times of produces that each wait for the acknowledgement of the preceding record."""
    producer = Producer({"bootstrap.servers": bootstrap, "acks": "all", "linger.ms": 0})
    errors: list[KafkaError] = []

    def delivered(error: KafkaError | None, _: Message) -> None:
        if error is not None:
            errors.append(error)

    times = []
    for _ in range(LONE_RECORDS + 50):
        begun = time.perf_counter()
        producer.produce(topic, b"v" * 100, on_delivery=delivered)
        producer.flush(30)
        times.append((time.perf_counter() - begun) * 1e6)
    if errors:
        msg = f"{len(errors)} records were not acknowledged: {errors[0]}"
        raise PeerFailedError(msg)
    return times[50:]


async def member_figures(side: Side, topic: str, count: int, before: int) -> tuple[float, float]:
    """Start members, wait until the group is stable, and return the figures of `idle_figures`."""
    members = [
        AIOKafkaConsumer(topic, bootstrap_servers=side.bootstrap, group_id="bench", session_timeout_ms=30_000)
        for _ in range(count)
    ]
    try:
        async with asyncio.timeout(JOIN_SECONDS_MAX):
            await asyncio.gather(*(member.start() for member in members))
            while not any(member.assignment() for member in members):  # noqa: ASYNC110 - no event tells
                await asyncio.sleep(0.5)
        used = cpu_seconds(side.peer.process.pid)
        await asyncio.sleep(IDLE_SECONDS)
        return _figures(side.peer, before, used)
    finally:
        await asyncio.gather(*(member.stop() for member in members), return_exceptions=True)


def idle_figures(peer: PeerProcess, before: int) -> tuple[float, float]:
    """Return the additional memory in MiB, and the processor time in milliseconds of a second."""
    used = cpu_seconds(peer.process.pid)
    time.sleep(IDLE_SECONDS)
    return _figures(peer, before, used)


def _figures(peer: PeerProcess, before: int, used: float) -> tuple[float, float]:
    memory = (peer.resident_bytes() - before) / 2**20
    return max(memory, 0.01), max((cpu_seconds(peer.process.pid) - used) / IDLE_SECONDS * 1000, 0.01)


def _idle_pairs(case: str, figures: list[tuple[float, float]]) -> tuple[Pairs, Pairs]:
    (our_memory, our_cpu), (their_memory, their_cpu) = figures
    return (
        Pairs(f"{case}: additional memory of the broker", "MiB", (our_memory,), (their_memory,)),
        Pairs(f"{case}: CPU of the broker", "ms/s", (our_cpu,), (their_cpu,)),
    )


@contextlib.contextmanager
def _clients(options: argparse.Namespace, folder: Path) -> Iterator[KafkaClients]:
    bootstrap = f"127.0.0.1:{free_port()}"
    fairlead = FairleadPeer.start(folder, "--kafka-listen", bootstrap)
    try:
        kafka = KafkaPeer.start(folder, fetch_kafka(options.cache))
        try:
            yield KafkaClients(fairlead, kafka, bootstrap)
        finally:
            kafka.stop()
    finally:
        fairlead.stop()


def _results(results: list[Pairs], records: int) -> dict[str, object]:
    print(table(results))
    return {"records": records, "cases": [result.document() for result in results]}


def throughput(options: argparse.Namespace, folder: Path) -> dict[str, object]:
    """Measure Kafka's ProducerPerformance and ConsumerPerformance, with 100-byte and 1 KB records."""
    results: list[Pairs] = []
    with _clients(options, folder) as clients:
        for cases, consume in ((PRODUCE, False), (CONSUME, True)):
            for case in cases:
                results += clients.throughput(case, options.records, options.pairs, consume=consume)
                print(f"{results[-2].case}: {results[-2].ratio:.2f}x", file=sys.stderr, flush=True)
    return _results(results, options.records)


def waiting(options: argparse.Namespace, folder: Path) -> dict[str, object]:
    """Measure produces of single records, 1,000 idle connections, and 500 members of a classic group."""
    with _clients(options, folder) as clients:
        results = [
            *clients.lone_produces(options.pairs),
            *clients.idle_connections(1_000),
            *clients.group_members(500),
        ]
    return _results(results, options.records)
