"""Parts of `make bench` that compare producing and consuming with Apache Kafka's own tools in the same run.

Fairlead and Kafka are started once, on the same disk and the same cores. While one peer is measured, the other peer is
stopped (SIGSTOP) after its dirty pages were written to the disk, so that the peers do not disturb each other. Every
case is measured in alternating pairs.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from pairing import Pairs, table
from peers.brokers import (
    HERE,
    FairleadPeer,
    KafkaPeer,
    PeerFailedError,
    PeerProcess,
    alone,
    both_peers,
    fetch_kafka,
)

from fairlead import Admin

PARTITIONS = 6
VALUE_BYTES = 100
KILOBYTE = 1_000
PRODUCER_SETTINGS = ("acks=all", "batch.size=500000", "linger.ms=10", "compression.type=none")
CONSUMER_OPTIONS = (
    # The values of these two options, or their defaults, replace the client's properties of the same meaning.
    *("--fetch-size", "4194304"),
    *("--socket-buffer-size", "4194304"),
    # The tool reads one property after each option, and ignores further values without an error.
    *("--command-property", "fetch.max.bytes=52428800"),
    *("--command-property", "fetch.min.bytes=1048576"),
    *("--command-property", "max.poll.records=50000"),
)
"""Options of ConsumerPerformance for large fetches."""


class Bench:
    """The two peers, and the measurements that can be made on the peers."""

    def __init__(
        self, fairlead: FairleadPeer, kafka: KafkaPeer, records: int, value_bytes: int = VALUE_BYTES
    ) -> None:
        self._fairlead = fairlead
        self._kafka = kafka
        self._records = records
        self._value_bytes = value_bytes
        self._topics = 0

    def alone(self, peer: PeerProcess) -> None:
        """Reserve the machine for `peer`: pause the other peer, and wait until dirty pages are written back."""
        alone(peer, (self._fairlead, self._kafka))

    def fairlead_topic(self, durability: str, partitions: int = PARTITIONS) -> str:
        """Create a new Fairlead topic; return its name."""
        self._topics += 1
        name = f"bench-{self._topics}"

        async def create() -> None:
            async with Admin(self._fairlead.url) as admin:
                await admin.create_topic(name, partitions=partitions, config={"durability": durability})

        asyncio.run(create())
        return name

    def fairlead_topic_id(self, name: str) -> str:
        """Return the id of a topic, which is also the name of its folder."""

        async def ask() -> str:
            async with Admin(self._fairlead.url) as admin:
                return str((await admin.describe_topic(name)).topic_id)

        return asyncio.run(ask())

    def delete_fairlead_topic(self, name: str) -> None:
        """Delete a topic of this run, to free its disk space."""

        async def delete() -> None:
            async with Admin(self._fairlead.url) as admin:
                await admin.delete_topic(name)

        asyncio.run(delete())

    def fairlead_side(self, side: str, topic: str, *more: str) -> float:
        """Return the number of records per second that the SDK reached."""
        command = [
            sys.executable,
            str(HERE / "workloads/workload.py"),
            side,
            "--url",
            self._fairlead.url,
            "--topic",
            topic,
        ]
        command += ["--partitions", str(PARTITIONS), "--records", str(self._records)]
        done = subprocess.run(
            [*command, "--value-bytes", str(self._value_bytes), *more],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            msg = f"fairlead {side} ended with {done.returncode}: {done.stderr[-3000:]}"
            raise RuntimeError(msg)
        return float(json.loads(done.stdout)["records_per_second"])

    def kafka_topic(self) -> str:
        """Create a new Kafka topic with the same number of partitions; return its name."""
        self._topics += 1
        name = f"bench-{self._topics}"
        self._topic_tool(
            "--create", "--topic", name, "--partitions", str(PARTITIONS), "--replication-factor", "1"
        )
        return name

    def delete_kafka_topic(self, name: str) -> None:
        """Delete a topic of this run, to free its disk space."""
        self._topic_tool("--delete", "--topic", name)

    def _topic_tool(self, *arguments: str) -> None:
        bootstrap = ("--bootstrap-server", self._kafka.bootstrap)
        self._kafka.tool("org.apache.kafka.tools.TopicCommand", *bootstrap, *arguments)

    def kafka_produce(
        self,
        topic: str,
        *settings: str,
        payload: Path | None = None,
        tls: Path | None = None,
        transaction_ms: int | None = None,
    ) -> float:
        """Return the records per second that ProducerPerformance prints; later settings override earlier settings.

        `tls`: file with the TLS settings. `transaction_ms`: time from the beginning of a transaction to its commit.
        """
        values = ["--payload-file", str(payload)] if payload else ["--record-size", str(self._value_bytes)]
        arguments = ["--topic", topic, "--num-records", str(self._records), *values]
        if transaction_ms is not None:
            arguments += ["--transaction-duration-ms", str(transaction_ms)]
        arguments += [
            "--throughput",
            "-1",
            *_with_file(tls),
            "--command-property",
            f"bootstrap.servers={self._kafka.bootstrap if tls is None else self._kafka.tls_bootstrap}",
        ]
        output = self._kafka.tool(
            "org.apache.kafka.tools.ProducerPerformance", *arguments, *PRODUCER_SETTINGS, *settings
        )
        return float(output.strip().splitlines()[-1].split("sent, ")[1].split(" records/sec")[0])

    def kafka_consume(self, topic: str, tls: Path | None = None) -> float:
        """Return the records per second of ConsumerPerformance in its fetch time, which excludes joining the group."""
        bootstrap = self._kafka.bootstrap if tls is None else self._kafka.tls_bootstrap
        arguments = ["--bootstrap-server", bootstrap, "--topic", topic, *_with_file(tls)]
        arguments += ["--num-records", str(self._records), "--hide-header"]
        # The default timeout of ten seconds is too short on a busy machine.
        arguments += ["--timeout", "60000"]
        output = self._kafka.tool("org.apache.kafka.tools.ConsumerPerformance", *arguments, *CONSUMER_OPTIONS)
        rate = float(output.strip().splitlines()[-1].split(",")[-1])
        if not 0 < rate < math.inf:
            msg = f"Kafka's tool measures nothing with so few records: {output.strip()}"
            raise PeerFailedError(msg)
        return rate

    def produce_case(self, durability: str, target: float, pairs: int) -> Pairs:
        """Measure producing with acks=all and one replica."""
        ours, theirs = [], []
        for _ in range(pairs):
            self.alone(self._fairlead)
            topic = self.fairlead_topic(durability)
            ours.append(self.fairlead_side("produce", topic))
            self.delete_fairlead_topic(topic)
            self.alone(self._kafka)
            topic = self.kafka_topic()
            theirs.append(self.kafka_produce(topic))
            self.delete_kafka_topic(topic)
        return Pairs(
            f"produce {self._value_bytes:,} B, acks=all, {durability}",
            "records/s",
            tuple(ours),
            tuple(theirs),
            target,
        )

    def idempotence_case(self, target: float, pairs: int) -> Pairs:
        """Compare producing with idempotence to producing without it and with one request in flight per partition."""
        self.alone(self._fairlead)
        measured: dict[str, list[float]] = {"--idempotence": [], "--no-idempotence": []}
        for _ in range(pairs):
            for option, figures in measured.items():
                topic = self.fairlead_topic("replicated")
                figures.append(self.fairlead_side("produce", topic, option))
                self.delete_fairlead_topic(topic)
                os.sync()
        on, off = (tuple(figures) for figures in measured.values())
        return Pairs("idempotence on, compared with off (in the column peer)", "records/s", on, off, target)

    def consume_case(self, target: float, pairs: int) -> Pairs:
        """Measure consuming and checking the records that the earlier cases produced."""
        self.alone(self._fairlead)
        our_topic = self.fairlead_topic("replicated")
        self.fairlead_side("produce", our_topic)
        self.alone(self._kafka)
        their_topic = self.kafka_topic()
        self.kafka_produce(their_topic)
        ours, theirs = [], []
        for _ in range(pairs):
            self.alone(self._fairlead)
            ours.append(self.fairlead_side("consume", our_topic))
            self.alone(self._kafka)
            theirs.append(self.kafka_consume(their_topic))
        case = f"consume {self._value_bytes:,} B as Arrow batches"
        return Pairs(case, "records/s", tuple(ours), tuple(theirs), target)

    def memory_case(self, target: float) -> Pairs:
        """Measure the peak resident memory after all earlier cases."""
        ours, theirs = (peer.resident_bytes("VmHWM") / 2**20 for peer in (self._fairlead, self._kafka))
        return Pairs("peak resident memory of the broker", "MiB", (ours,), (theirs,), target, at_least=False)


def _with_file(settings: Path | None) -> tuple[str, ...]:
    """Return the option that passes a file with settings to Kafka's tools; empty without a file."""
    return () if settings is None else ("--command-config", str(settings))


def throughput(options: argparse.Namespace, folder: Path) -> dict[str, object]:
    """Measure 100-byte records: producing with both durabilities, idempotence, consuming, and memory of the brokers."""
    pairs: int = options.pairs
    cases: list[Callable[[Bench], Pairs]] = [
        lambda bench: bench.produce_case("replicated", 2.5, pairs),
        lambda bench: bench.produce_case("synced", 1.5, pairs),
        lambda bench: bench.idempotence_case(1.0, pairs),
        lambda bench: bench.consume_case(1.7, pairs),
        lambda bench: bench.memory_case(0.5),
    ]
    return _measured(options, folder, options.records, VALUE_BYTES, cases)


def kilobyte(options: argparse.Namespace, folder: Path) -> dict[str, object]:
    """Measure producing and consuming with 1 KB records, a fifth as many as in the runs with 100-byte records."""
    pairs: int = options.pairs
    cases: list[Callable[[Bench], Pairs]] = [
        lambda bench: bench.produce_case("replicated", 1.5, pairs),
        lambda bench: bench.consume_case(1.5, pairs),
    ]
    return _measured(options, folder, options.records // 5, KILOBYTE, cases)


def _measured(
    options: argparse.Namespace,
    folder: Path,
    records: int,
    value_bytes: int,
    cases: list[Callable[[Bench], Pairs]],
) -> dict[str, object]:
    results = []
    with both_peers(folder, fetch_kafka(options.cache)) as (fairlead, kafka):
        bench = Bench(fairlead, kafka, records, value_bytes)
        for case in cases:
            results.append(case(bench))
            print(f"{results[-1].case}: {results[-1].ratio:.2f}x", file=sys.stderr, flush=True)
    print(table(results))
    return {"records": records, "cases": [result.document() for result in results]}
