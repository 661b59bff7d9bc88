"""Topics with a write quorum, compared with topics of in-sync replicas on the same three brokers.

`cluster.py` calls this module, which measures acknowledgements while one follower is slow (also on Kafka), throughput,
and failovers after leaders are killed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import median

import failover
from pairing import Outcome, Pairs
from peers.brokers import HERE, fetch_kafka
from peers.clusters import BROKERS, FairleadCluster, KafkaCluster
from throughput import PARTITIONS, VALUE_BYTES

from fairlead import Admin
from fairlead_api.configuration import ConfigInput

QUORUM: Mapping[str, ConfigInput] = {"replication.mode": "quorum"}
IN_SYNC: Mapping[str, ConfigInput] = {"min.insync.replicas": 2}
MODES = {"write quorum, W 2": QUORUM, "in-sync replicas, minimum 2": IN_SYNC}
DELAY_SECONDS = 0.1
"""Delay in each direction, so that a request to or from the slow follower takes 200 ms longer."""
RATE = 200
"""Records per second while acknowledgements are measured."""
MORE_SECONDS_MAX = 0.1
"""Target: maximum difference in seconds between the median failover times of the two replication modes."""
KAFKA_PERCENTILES = re.compile(r"(\d+) ms 50th, \d+ ms 95th, (\d+) ms 99th")

Latencies = tuple[float, float]
"""The median and the 99th percentile of acknowledgements, in milliseconds."""


def slow_follower(options: argparse.Namespace, folder: Path) -> dict[str, object]:
    """Measure acks=all with and without a delayed follower, on both kinds of topics and on Kafka."""
    fairlead = FairleadCluster.start(folder / "fairlead", lease_seconds=6, has_links=True)
    try:
        kafka = KafkaCluster.start(folder / "kafka", fetch_kafka(options.cache), has_links=True)
        try:
            cases = _slow_follower(fairlead, kafka, options)
        finally:
            kafka.stop()
    finally:
        fairlead.stop()
    return {"added_ms": 2 * DELAY_SECONDS * 1000, "rate": RATE, "cases": cases}


def _slow_follower(
    fairlead: FairleadCluster, kafka: KafkaCluster, options: argparse.Namespace
) -> list[dict[str, object]]:
    measured: dict[str, list[tuple[Latencies, Latencies]]] = {
        name: [] for name in (*MODES, "Kafka, minimum 2")
    }
    for number in range(options.pairs):
        kafka.pause()
        fairlead.resume()
        # The leases of the paused brokers expire within this time, and the brokers register again.
        time.sleep(fairlead.lease_seconds)
        asyncio.run(failover.settled(fairlead))
        for mode, config in MODES.items():
            topic = f"slow-{number}-{'quorum' if config is QUORUM else 'isr'}"
            asyncio.run(failover.new_topic(fairlead, topic, 1, config))
            slow = f"broker-{asyncio.run(_last_replica(fairlead, topic))}"

            def paced(topic: str = topic) -> Latencies:
                return _paced(fairlead, topic, options.seconds)

            measured[mode].append(_with_and_without(fairlead, slow, paced))
        fairlead.pause()
        kafka.resume()
        topic = f"slow-{number}"
        server = ("--bootstrap-server", kafka.bootstrap)
        replicas = ":".join(str(node) for node in range(1, BROKERS + 1))
        kafka.tool(
            "org.apache.kafka.tools.TopicCommand",
            *(*server, "--create", "--topic", topic, "--replica-assignment", replicas),
        )
        measured["Kafka, minimum 2"].append(
            _with_and_without(
                kafka, f"node-{BROKERS}", lambda topic=topic: _kafka_paced(kafka, topic, options.seconds)
            )
        )
        fairlead.resume()
    return [
        Pairs(
            f"{what} of acks=all, {mode}",
            "ms",
            tuple(with_delay[at] for with_delay, _ in pairs),
            tuple(without[at] for _, without in pairs),
            1.2 if MODES.get(mode) is QUORUM else None,
            at_least=False,
        ).document()
        for mode, pairs in measured.items()
        for at, what in enumerate(("p50", "p99"))
    ]


def _with_and_without(
    cluster: FairleadCluster | KafkaCluster, slow: str, measure: Callable[[], Latencies]
) -> tuple[Latencies, Latencies]:
    without = measure()
    cluster.delay(slow, DELAY_SECONDS)
    try:
        return measure(), without
    finally:
        cluster.delay(slow, 0.0)


async def _last_replica(cluster: FairleadCluster, topic: str) -> int:
    """Return a follower of the topic's only partition."""
    async with Admin(cluster.bootstrap) as admin:
        partition = await failover.partition_of(admin, topic)
    return next(broker for broker in reversed(partition.replicas) if broker != partition.leader)


def _paced(cluster: FairleadCluster, topic: str, seconds: float) -> Latencies:
    command = [
        sys.executable,
        str(HERE / "workloads/latency_workload.py"),
        "pace",
        "--url",
        cluster.bootstrap,
    ]
    command += ["--topic", topic, "--partitions", "1", "--rate", str(RATE), "--seconds", str(seconds)]
    figures = _printed(command)
    return figures["p50_ms"], figures["p99_ms"]


def _kafka_paced(kafka: KafkaCluster, topic: str, seconds: float) -> Latencies:
    arguments = [
        "--topic",
        topic,
        "--num-records",
        str(int(RATE * seconds)),
        "--record-size",
        str(VALUE_BYTES),
    ]
    arguments += ["--throughput", str(RATE), "--warmup-records", str(int(RATE * seconds / 10))]
    arguments += ["--command-property", f"bootstrap.servers={kafka.bootstrap}"]
    settings = ("acks=all", "linger.ms=0", "compression.type=none")
    output = kafka.tool("org.apache.kafka.tools.ProducerPerformance", *arguments, *settings)
    p50, p99 = KAFKA_PERCENTILES.findall(output)[-1]
    return float(p50), float(p99)


def throughput(cluster: FairleadCluster, options: argparse.Namespace) -> dict[str, object]:
    """Measure producing 100-byte records with acks=all to topics of both kinds, in alternating pairs."""
    cases = []
    for durability in ("replicated", "synced"):
        ours, theirs = [], []
        for number in range(options.pairs):
            sides = ((QUORUM, ours), (IN_SYNC, theirs))
            # The order alternates, because the files of each topic are removed while the next topic is written.
            for mode, speeds in sides if number % 2 == 0 else reversed(sides):
                topic = f"{durability}-{number}-{len(speeds)}-{'quorum' if mode is QUORUM else 'isr'}"
                speeds.append(_produced(cluster, topic, {**mode, "durability": durability}, options.records))
        case = f"produce 100 B, RF 3, acks=all, {durability}"
        cases.append(Pairs(case, "records/s", tuple(ours), tuple(theirs), 0.95).document())
    return {"cases": cases}


def _produced(cluster: FairleadCluster, topic: str, config: Mapping[str, ConfigInput], records: int) -> float:
    asyncio.run(failover.new_topic(cluster, topic, PARTITIONS, config))
    command = [sys.executable, str(HERE / "workloads/workload.py"), "produce", "--url", cluster.bootstrap]
    command += ["--topic", topic, "--partitions", str(PARTITIONS), "--records", str(records)]
    command += ["--value-bytes", str(VALUE_BYTES)]
    figures = _printed(command)
    asyncio.run(_delete(cluster, topic))
    return figures["records_per_second"]


async def _delete(cluster: FairleadCluster, topic: str) -> None:
    async with Admin(cluster.bootstrap) as admin:
        await admin.delete_topic(topic)


def _printed(command: list[str]) -> dict[str, float]:
    """Run a workload to its end, and return the figures that it prints."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        msg = f"{command[1]} ended with {done.returncode}: {done.stderr[-3000:]}"
        raise RuntimeError(msg)
    figures: dict[str, float] = json.loads(done.stdout)
    return figures


def leader_kills(cluster: FairleadCluster, options: argparse.Namespace) -> dict[str, object]:
    """Kill leaders of both kinds of topics in turn; compare the times to the first acknowledgement afterwards."""
    return asyncio.run(_leader_kills(cluster, options.runs))


async def _leader_kills(cluster: FairleadCluster, runs: int) -> dict[str, object]:
    topics = {"quorum": QUORUM, "isr": IN_SYNC}
    for topic, config in topics.items():
        await failover.new_topic(cluster, topic, 1, config)
    outages: dict[str, list[float]] = {topic: [] for topic in topics}
    errors = dict.fromkeys(topics, 0)
    for _ in range(runs):
        for topic in topics:
            outage, failed = await failover.leader_kill(cluster, topic)
            outages[topic].append(outage)
            errors[topic] += failed
    more = median(outages["quorum"]) - median(outages["isr"])
    quorum, in_sync = (failover.percentiles(outages[topic]) for topic in topics)
    outcome = Outcome(
        f"leader killed (-9) to the first new acknowledgement, leases of {cluster.lease_seconds} s, {runs} times each",
        f"write quorum p50 {quorum['p50_ms']:.0f} ms, longest {quorum['max_ms']:,.0f} ms; in-sync replicas p50"
        f" {in_sync['p50_ms']:.0f} ms, longest {in_sync['max_ms']:,.0f} ms",
        f"p50 at most {MORE_SECONDS_MAX * 1000:.0f} ms more",
        more <= MORE_SECONDS_MAX,
    )
    return {"errors": errors, "outages_seconds": outages, "outcomes": [outcome.document()]}
