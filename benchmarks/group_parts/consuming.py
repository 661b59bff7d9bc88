"""Rate at which one member of a group reads records with the SDK, and with Kafka's Python clients on Kafka's broker.

`groups.py` calls this module. The topics of Fairlead and Kafka contain the same number of records of the same size.
Every side (a client with one way of reading) reads as the only member of a new group, in a separate process, while the
other broker is stopped.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from statistics import median

from pairing import Pairs, table
from peers.brokers import HERE, RUN_SECONDS_MAX, FairleadPeer, KafkaPeer, PeerProcess, both_peers, fetch_kafka
from throughput import VALUE_BYTES, Bench

OURS = {
    "batches": "Arrow batches",
    "record-loops": "a loop over each batch",
    "records": "`async for` over records",
}
THEIRS = {
    "confluent-consume": "confluent-kafka, `consume(10000)`",
    "confluent-poll": "confluent-kafka, `poll()`",
    "aiokafka-getmany": "aiokafka, `getmany()`",
    "aiokafka-iterate": "aiokafka, `async for`",
}
TARGETS = (
    ("record-loops", "confluent-consume", 3.0),
    ("record-loops", "aiokafka-getmany", 1.5),
    ("records", "confluent-poll", 3.0),
    ("records", "aiokafka-iterate", 1.5),
    ("batches", "confluent-consume", 10.0),
    ("batches", "confluent-poll", 10.0),
    ("batches", "aiokafka-getmany", 5.0),
)
"""Pairs of sides to compare, each with a target: lists with lists, single records with single records, and batches with
all sides of the peers."""
BATCHES_TIMES = 4
"""Factor by which more records are read if they are read as batches, since a read of half a second would mostly measure
its start."""


def consume(options: argparse.Namespace, folder: Path) -> dict[str, object]:
    """Measure reading by every side in turn, for the requested number of rounds."""
    jars = fetch_kafka(options.cache)
    with both_peers(folder, jars) as (fairlead, kafka):
        return _measure(Bench(fairlead, kafka, BATCHES_TIMES * options.records), fairlead, kafka, options)


def _measure(
    bench: Bench, fairlead: FairleadPeer, kafka: KafkaPeer, options: argparse.Namespace
) -> dict[str, object]:
    bench.alone(fairlead)
    our_topic = bench.fairlead_topic("replicated")
    bench.fairlead_side("produce", our_topic)
    bench.alone(kafka)
    their_topic = bench.kafka_topic()
    bench.kafka_produce(their_topic)
    figures: dict[str, list[dict[str, float]]] = {side: [] for side in (*OURS, *THEIRS)}
    for _ in range(options.pairs):
        for side, measured in figures.items():
            peer: PeerProcess = fairlead if side in OURS else kafka
            bench.alone(peer)
            url, topic = (fairlead.url, our_topic) if side in OURS else (kafka.bootstrap, their_topic)
            # Sides that read Arrow batches read the whole topic. Sides that read messages or records reach a tenth of
            # the speed of Arrow batches, so they read only a part of the topic.
            share = BATCHES_TIMES if side == "batches" else options.share
            measured.append(_run(side, url, topic, round(options.records * share)))
            print(f"{side}: {measured[-1]['records_per_second']:,.0f} records/s", file=sys.stderr, flush=True)
    rates = {side: tuple(each["records_per_second"] for each in runs) for side, runs in figures.items()}
    pairs = [
        Pairs(f"{OURS[our]}, against {THEIRS[their]}", "records/s", rates[our], rates[their], target)
        for our, their, target in TARGETS
    ]
    print(table(pairs).replace("| Kafka |", "| peer |", 1))
    return {
        "records": options.records,
        "cases": [each.document() for each in pairs],
        "cpu_seconds_per_million": {
            (OURS | THEIRS)[side]: round(median(each["cpu_seconds_per_million"] for each in runs), 2)
            for side, runs in figures.items()
        },
    }


def _run(side: str, url: str, topic: str, records: int) -> dict[str, float]:
    command = [
        sys.executable,
        str(HERE / "workloads/groups_workload.py"),
        side,
        "--url",
        url,
        "--topic",
        topic,
    ]
    command += ["--records", str(records), "--value-bytes", str(VALUE_BYTES)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=RUN_SECONDS_MAX)
    if done.returncode != 0:
        msg = f"{side} ended with {done.returncode}: {done.stderr[-3000:]}"
        raise RuntimeError(msg)
    measured: dict[str, float] = json.loads(done.stdout)
    return measured
