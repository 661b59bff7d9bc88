"""Parts of `make bench` for transactions: compares Fairlead with Kafka, and committed reads with reads of all records.

`transactions` measures producing, latencies and loops that read, transform and write, against Kafka's tools and
confluent-kafka. `decisions` measures how many transactions per second one broker decides. While one broker is measured,
the other broker is stopped.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

from pairing import Pairs, table
from peers.awake import awake_processors
from peers.brokers import (
    HERE,
    RUN_SECONDS_MAX,
    FairleadPeer,
    KafkaPeer,
    PeerFailedError,
    both_peers,
    cpu_seconds,
    fetch_kafka,
)
from throughput import KILOBYTE, VALUE_BYTES, Bench

Figures = dict[str, float]
COMMIT_MS = 100
PRODUCE_TURNS = 8
"""Turns with and without transactions in each round. A turn takes about a second, and the median ratio of all turns is
stable, although the kernel's writes to the disk slow down single turns."""
LATENCY_SECONDS = 10.0
BATCH_RECORDS = 8_000
COPIER_BATCH_RECORDS = 2_000
"""Records per transaction in the trial run of Kafka's TransactionalMessageCopier, which counts records."""
COPIER_TIME = "%Y/%m/%d %H:%M:%S:%f"
PRODUCERS = (1, 100, 1_000)
COMMITS_A_SECOND = 10.0
"""Commits per second of each producer."""
DECISION_P99_MS_MAX = 500
COMMITTED_SHARE_MIN = 0.95
"""Fraction of the requested commits that must be reached."""


class TransactionBench:
    """The two peers, and the cases with transactions."""

    def __init__(self, fairlead: FairleadPeer, kafka: KafkaPeer, options: argparse.Namespace) -> None:
        self._fairlead, self._kafka = fairlead, kafka
        self._rounds = range(options.pairs)
        self._records: int = options.records
        self._large = Bench(fairlead, kafka, options.records // 5, KILOBYTE)
        self._small = Bench(fairlead, kafka, options.records // 5, VALUE_BYTES)

    def produce(self) -> list[Pairs]:
        """Measure producing 1 KB records with a commit every 100 ms, against Kafka and without transactions."""
        ours, theirs = [], []
        with_transactions: list[float] = []
        without: list[float] = []
        bench, records = self._large, self._records // 5
        for _ in self._rounds:
            bench.alone(self._fairlead)
            topic = bench.fairlead_topic("replicated")
            ours.append(self._run("sdk-produce", topic, records=records)["records_per_second"])
            bench.delete_fairlead_topic(topic)
            both = self._run("sdk-produce-both", f"both-{topic}", records=records // 2, turns=PRODUCE_TURNS)
            with_transactions += both["transactions"]
            without += both["plain"]
            bench.alone(self._kafka)
            topic = bench.kafka_topic()
            theirs.append(bench.kafka_produce(topic, transaction_ms=COMMIT_MS))
            bench.delete_kafka_topic(topic)
        case = f"produce 1 KB, commits each {COMMIT_MS} ms"
        compared = f"{case}, compared with no transactions (in the column peer)"
        return [
            Pairs(case, "records/s", tuple(ours), tuple(theirs), 2.0),
            Pairs(compared, "records/s", tuple(with_transactions), tuple(without), 0.9),
        ]

    def commit(self) -> list[Pairs]:
        """Measure transactions with a record in each of three partitions, from the start until the commit's answer."""
        return self._latencies("begin to commit answered", "commit")

    def visible(self) -> list[Pairs]:
        """Measure the same transactions, from the commit until a reader of committed records has all their records."""
        return self._latencies("commit to visible", "visible")

    def _latencies(self, case: str, side: str) -> list[Pairs]:
        ours, theirs = [], []
        bench = self._small
        for _ in self._rounds:
            bench.alone(self._fairlead)
            topic = bench.fairlead_topic("replicated")
            with awake_processors():
                ours.append(self._run(f"sdk-{side}", topic, seconds=LATENCY_SECONDS))
            bench.delete_fairlead_topic(topic)
            bench.alone(self._kafka)
            topic = bench.kafka_topic()
            with awake_processors():
                theirs.append(self._run(f"kafka-{side}", topic, seconds=LATENCY_SECONDS))
            bench.delete_kafka_topic(topic)
        return [
            Pairs(
                f"{case}, a record in each of 3 partitions, {name}",
                "µs",
                *(tuple(each[name] for each in runs) for runs in (ours, theirs)),
                target=1.0,
                at_least=False,
            )
            for name in ("p50", "p99")
        ]

    def transform(self) -> list[Pairs]:
        """Measure reading records, and writing a record for each to another topic, with a commit every 100 ms."""
        ours, python, copied = [], [], []
        bench, records = self._small, self._records // 5
        bench.alone(self._fairlead)
        our_input = bench.fairlead_topic("replicated")
        bench.fairlead_side("produce", our_input)
        bench.alone(self._kafka)
        their_input = bench.kafka_topic()
        bench.kafka_produce(their_input)
        trial = self._copier(their_input, "trial", COPIER_BATCH_RECORDS)
        batch_records = max(1, round(trial * COMMIT_MS / 1000))
        for number in self._rounds:
            bench.alone(self._fairlead)
            topic, group = bench.fairlead_topic("replicated"), f"transform-{number}"
            given = {"records": records, "value_bytes": VALUE_BYTES}
            measured = self._run("sdk-transform", our_input, output=topic, group=group, **given)
            ours.append(measured["records_per_second"])
            bench.delete_fairlead_topic(topic)
            bench.alone(self._kafka)
            topic = bench.kafka_topic()
            measured = self._run("kafka-transform", their_input, output=topic, group=group, **given)
            python.append(measured["records_per_second"])
            bench.delete_kafka_topic(topic)
            copied.append(self._copier(their_input, f"copier-{number}", batch_records))
        case = f"consume, transform, produce 100 B, commits each {COMMIT_MS} ms, against"
        return [
            Pairs(f"{case} TransactionalMessageCopier", "records/s", tuple(ours), tuple(copied), 2.0),
            Pairs(f"{case} the same loop with confluent-kafka", "records/s", tuple(ours), tuple(python)),
        ]

    def _copier(self, topic: str, group: str, batch_records: int) -> float:
        """Return the records per second that Kafka's TransactionalMessageCopier copies after its first commit."""
        output = self._small.kafka_topic()
        arguments = ["--broker-list", self._kafka.bootstrap, "--input-topic", topic, "--output-topic", output]
        arguments += ["--consumer-group", group, "--transactional-id", group, "--group-mode"]
        arguments += ["--use-group-metadata", "--transaction-size", str(batch_records)]
        arguments += ["--input-partition", "0", "--max-messages", str(self._records // 5)]
        printed = self._kafka.tool("org.apache.kafka.tools.TransactionalMessageCopier", *arguments)
        self._small.delete_kafka_topic(output)
        lines = [json.loads(line) for line in printed.splitlines() if line.startswith("{")]
        done = [line for line in lines if int(line.get("totalProcessed", 0)) > 0]
        if int(done[-1]["totalProcessed"]) < self._records // 5:
            msg = f"Kafka's copier ended early: {done[-1]}"
            raise PeerFailedError(msg)
        first, last = (datetime.strptime(line["time"], COPIER_TIME) for line in (done[0], done[-1]))  # noqa: DTZ007 - only the difference is used
        records = int(done[-1]["totalProcessed"]) - int(done[0]["totalProcessed"])
        return records / (last - first).total_seconds()

    def isolation(self) -> list[Pairs]:
        """Measure reading committed records against reading all records, without and with aborted transactions."""
        self._small.alone(self._fairlead)
        results = []
        for name, target, options in (("no", 0.97, ()), ("10% of the", 0.8, ("--aborted",))):
            topic = self._small.fairlead_topic("replicated")
            given = {"value_bytes": VALUE_BYTES, "batch_records": BATCH_RECORDS}
            stored = self._run("sdk-fill", topic, *options, records=self._records, **given)
            committed, everything = [], []
            for _ in self._rounds:
                for isolation, counted, rates in (
                    ("read_committed", "committed", committed),
                    ("read_uncommitted", "records", everything),
                ):
                    measured = self._run(
                        "sdk-read", topic, isolation=isolation, records=stored[counted], **given
                    )
                    rates.append(measured["records_per_second"])
            self._small.delete_fairlead_topic(topic)
            case = f"read committed, {name} transactions aborted, compared with read uncommitted (in the column peer)"
            results.append(Pairs(case, "records/s", tuple(committed), tuple(everything), target))
        return results

    def _run(self, side: str, topic: str, *flags: str, **options: float | str) -> dict[str, Any]:
        url = self._fairlead.url if side.startswith("sdk") else self._kafka.bootstrap
        return run_side(side, url, topic, *flags, **options)


def run_side(side: str, url: str, topic: str, *flags: str, **options: float | str) -> dict[str, Any]:
    """Run one side of `transaction_workload` in a separate process. Raises `PeerFailedError`."""
    command = [sys.executable, str(HERE / "workloads/transaction_workload.py"), side]
    command += ["--url", url, "--topic", topic, *flags]
    for name, value in options.items():
        command += [f"--{name.replace('_', '-')}", f"{value:g}" if isinstance(value, float) else str(value)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=RUN_SECONDS_MAX)
    if done.returncode != 0:
        msg = f"{side} ended with {done.returncode}: {done.stderr[-3000:]}"
        raise PeerFailedError(msg)
    measured: dict[str, Any] = json.loads(done.stdout)
    print(f"{side}: {measured}", file=sys.stderr, flush=True)
    return measured


def transactions(options: argparse.Namespace, folder: Path) -> dict[str, object]:
    """Measure producing in transactions, and the latencies of transactions."""
    return _measured(
        options, folder, TransactionBench.produce, TransactionBench.commit, TransactionBench.visible
    )


def transform(options: argparse.Namespace, folder: Path) -> dict[str, object]:
    """Measure loops that read, transform and write in transactions."""
    return _measured(options, folder, TransactionBench.transform)


def isolation(options: argparse.Namespace, folder: Path) -> dict[str, object]:
    """Measure reads of committed records."""
    return _measured(options, folder, TransactionBench.isolation)


def _measured(
    options: argparse.Namespace, folder: Path, *cases: Callable[[TransactionBench], list[Pairs]]
) -> dict[str, object]:
    results: list[Pairs] = []
    with both_peers(folder, fetch_kafka(options.cache)) as (fairlead, kafka):
        bench = TransactionBench(fairlead, kafka, options)
        for case in cases:
            results += case(bench)
    print(table(results))
    return {"records": options.records, "cases": [result.document() for result in results]}


def decisions(options: argparse.Namespace, folder: Path) -> dict[str, object]:
    """Measure one broker's decisions per second for 1, 100 and 1,000 producers, each with ten commits per second."""
    runs = []
    for producers in PRODUCERS:
        of_producers = [
            _decided(folder / f"{producers}-{number}", producers) for number in range(options.pairs)
        ]
        runs.append({"producers": producers, "runs": of_producers})
        print(f"decisions: {json.dumps(runs[-1])}", file=sys.stderr, flush=True)
    return {
        "commits_a_second": COMMITS_A_SECOND,
        "share_target": COMMITTED_SHARE_MIN,
        "p99_ms_target": DECISION_P99_MS_MAX,
        "cases": runs,
    }


def _decided(folder: Path, producers: int) -> Figures:
    folder.mkdir()
    peer = FairleadPeer.start(folder)
    try:
        topic = Bench(peer, peer, 0).fairlead_topic("replicated")  # type: ignore[arg-type]
        writes, used = peer.metric("fairlead_transaction_writes_total"), cpu_seconds(peer.process.pid)
        measured = run_side(
            "plain-decide",
            peer.url,
            topic,
            seconds=LATENCY_SECONDS,
            producers=producers,
            rate=COMMITS_A_SECOND,
        )
        seconds = measured["seconds"]
        return measured | {
            "writes_per_second": (peer.metric("fairlead_transaction_writes_total") - writes) / seconds,
            "broker_cores": (cpu_seconds(peer.process.pid) - used) / seconds,
        }
    finally:
        peer.stop()
