"""Part of `make bench` for single records in Python: compares `send` with the Python clients of Kafka and NATS.

`group_parts/consuming.py` measures the reading of single records; only the reads of NATS are also measured in this
part. A side is a client with one way of sending. While one broker is measured, the other brokers are stopped.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from statistics import median

from pairing import Pairs, table
from peers.brokers import (
    HERE,
    RUN_SECONDS_MAX,
    FairleadPeer,
    KafkaPeer,
    PeerFailedError,
    PeerProcess,
    alone,
    both_peers,
    fetch_kafka,
)
from peers.nats import NatsPeer, fetch_nats
from throughput import KILOBYTE, VALUE_BYTES, Bench

SIDES = {
    "sdk-send": "`await send()`",
    "sdk-blocking-send": "blocking `send()`",
    "sdk-blocking-send-batch": "blocking `send_batch()`, 1,000 records a call",
    "sdk-hand-over": "records handed to another thread and not sent",
    "aiokafka-send": "aiokafka, `await send()`",
    "confluent-produce": "confluent-kafka, `produce()`",
    "nats-publish": "nats-py, `await publish_async()`",
}
TARGETS = (
    ("sdk-send", "aiokafka-send", 5.0),
    ("sdk-send", "confluent-produce", 1.0),
    ("sdk-send", "nats-publish", None),
    ("sdk-blocking-send", "confluent-produce", None),
    ("sdk-hand-over", "confluent-produce", None),
    ("sdk-blocking-send-batch", "confluent-produce", 1.0),
)
"""Pairs of sides to compare, each with a target; NATS and the blocking `send()` are reported without a target.

The rate of records that are only handed to another thread limits a blocking `send()`.
"""


class Records:
    """Three brokers, and methods that send the records of one side to a new topic of its broker."""

    def __init__(self, fairlead: FairleadPeer, kafka: KafkaPeer, nats: NatsPeer, records: int) -> None:
        self._bench = Bench(fairlead, kafka, records)
        self.fairlead, self._kafka, self._nats = fairlead, kafka, nats
        self._records = records
        self._streams = 0

    def peer_of(self, side: str) -> PeerProcess:
        """Return the broker that a side uses."""
        if side.startswith("sdk"):
            return self.fairlead
        return self._nats if side.startswith("nats") else self._kafka

    def send(self, side: str, share: float) -> dict[str, float]:
        """Return the measurements of a side that sends its share of the records, in whole thousands."""
        self.alone(side)
        records = max(1, round(self._records * share / 1000)) * 1000
        if side.startswith("sdk"):
            topic = self._bench.fairlead_topic("replicated")
            measured = run_side(side, self.fairlead.url, topic, records, VALUE_BYTES)
            self._bench.delete_fairlead_topic(topic)
        elif side.startswith("nats"):
            measured = run_side(side, self._nats.url, self.stream(), records, VALUE_BYTES)
        else:
            topic = self._bench.kafka_topic()
            measured = run_side(side, self._kafka.bootstrap, topic, records, VALUE_BYTES)
            self._bench.delete_kafka_topic(topic)
        return measured

    def stream(self) -> str:
        """Return the name of a stream that does not exist yet."""
        self._streams += 1
        return f"bench-{self._streams}"

    def alone(self, side: str) -> None:
        """Pause the brokers that a side does not use."""
        alone(self.peer_of(side), (self.fairlead, self._kafka, self._nats))


def run_side(side: str, url: str, topic: str, records: int, value_bytes: int) -> dict[str, float]:
    """Run one side of `record_workload` in a separate process. Raises `PeerFailedError`."""
    command = [
        sys.executable,
        str(HERE / "workloads/record_workload.py"),
        side,
        "--url",
        url,
        "--topic",
        topic,
    ]
    command += ["--records", str(records), "--value-bytes", str(value_bytes)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=RUN_SECONDS_MAX)
    if done.returncode != 0:
        msg = f"{side} ended with {done.returncode}: {done.stderr[-3000:]}"
        raise PeerFailedError(msg)
    measured: dict[str, float] = json.loads(done.stdout)
    print(f"{side}: {measured['records_per_second']:,.0f} records/s", file=sys.stderr, flush=True)
    return measured


def send(options: argparse.Namespace, folder: Path) -> dict[str, object]:
    """Measure sending by every side in turn, for the requested number of rounds."""
    figures: dict[str, list[dict[str, float]]] = {side: [] for side in SIDES}
    with both_peers(folder, fetch_kafka(options.cache)) as (fairlead, kafka):
        nats = NatsPeer.start(folder, fetch_nats(options.cache))
        try:
            records = Records(fairlead, kafka, nats, options.records)
            for _ in range(options.pairs):
                for side, measured in figures.items():
                    # Sides that are much slower send fewer records, so that a round takes only seconds.
                    slow = side.startswith(("aiokafka", "nats"))
                    measured.append(records.send(side, 0.02 if slow else 0.2))
        finally:
            nats.stop()
    rates = {side: tuple(each["records_per_second"] for each in runs) for side, runs in figures.items()}
    pairs = [
        Pairs(f"{SIDES[our]}, against {SIDES[their]}", "records/s", rates[our], rates[their], target)
        for our, their, target in TARGETS
    ]
    print(table(pairs).replace("| Kafka |", "| peer |", 1))
    return {
        "value_bytes": VALUE_BYTES,
        "cases": [each.document() for each in pairs],
        "cpu_seconds_per_million": {
            SIDES[side]: round(median(each["cpu_seconds_per_million"] for each in runs), 2)
            for side, runs in figures.items()
        },
    }


def nats(options: argparse.Namespace, folder: Path) -> dict[str, object]:
    """Compare the SDK, which sends 1 KB records in batches, with nats-py on a NATS stream with file storage."""
    produced: dict[str, list[float]] = {"fairlead": [], "nats": []}
    consumed: dict[str, list[float]] = {"fairlead": [], "nats": []}
    count = max(1, options.records // 100_000) * 1000
    with both_peers(folder, fetch_kafka(options.cache)) as (fairlead, kafka):
        server = NatsPeer.start(folder, fetch_nats(options.cache))
        try:
            bench = Bench(fairlead, kafka, options.records // 5, KILOBYTE)
            records = Records(fairlead, kafka, server, options.records)
            for _ in range(options.pairs):
                records.alone("sdk")
                topic = bench.fairlead_topic("replicated")
                produced["fairlead"].append(bench.fairlead_side("produce", topic))
                consumed["fairlead"].append(bench.fairlead_side("consume", topic))
                bench.delete_fairlead_topic(topic)
                records.alone("nats")
                stream = records.stream()
                for side, into in (("nats-publish", produced), ("nats-fetch", consumed)):
                    rate = run_side(side, server.url, stream, count, KILOBYTE)["records_per_second"]
                    into["nats"].append(rate)
        finally:
            server.stop()
    pairs = [
        Pairs(f"{what} 1 KB, against NATS JetStream", "records/s", *(tuple(each) for each in sides.values()))
        for what, sides in (("produce", produced), ("consume", consumed))
    ]
    print(table(pairs).replace("| Kafka |", "| nats-py |", 1))
    return {"cases": [each.document() for each in pairs]}
