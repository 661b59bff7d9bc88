"""`make bench-latency`: measures the latency of acknowledgements without load, under load, and on a large topic.

Kafka's tool runs at the same rate in the cases with a peer; all other cases are reported without a comparison. Results
are written to build/bench/latency.json, and tables to standard output.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from parts import add_folders
from peers.brokers import HERE, FairleadPeer, KafkaPeer, fetch_kafka

from fairlead import Admin

Figures = dict[str, float]
KAFKA_SETTINGS = ("acks=all", "linger.ms=0", "compression.type=none")
KAFKA_PERCENTILES = re.compile(r"(\d+) ms 50th, \d+ ms 95th, (\d+) ms 99th")
GIB = 2**30


class LatencyBench:
    """One Fairlead broker, and the cases that run on this broker."""

    def __init__(self, fairlead: FairleadPeer, seconds: float) -> None:
        self._fairlead = fairlead
        self._seconds = seconds
        self._topics = 0

    def topic(self, partitions: int, durability: str) -> str:
        """Create a new topic; return its name."""
        self._topics += 1
        name = f"latency-{self._topics}"

        async def create() -> None:
            """Create the topic, and wait until its partitions have leaders."""
            async with Admin(self._fairlead.url) as admin:
                await admin.create_topic(name, partitions=partitions, config={"durability": durability})

        asyncio.run(create())
        return name

    def work(self, script: str, kind: str, topic: str, **options: float) -> Figures:
        """Run one kind of work in a separate process, and return its figures."""
        command = [sys.executable, str(HERE / script), kind, "--url", self._fairlead.url, "--topic", topic]
        for name, value in options.items():
            command += [f"--{name.replace('_', '-')}", str(int(value)) if value == int(value) else str(value)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            msg = f"{kind} ended with {done.returncode}: {done.stderr[-3000:]}"
            raise RuntimeError(msg)
        figures: Figures = json.loads(done.stdout)
        print(f"{kind}: {figures}", file=sys.stderr, flush=True)
        return figures

    def paced(self, durability: str) -> Figures:
        """Measure sending 1,000 single records per second."""
        topic = self.topic(1, durability)
        return self.work(
            "workloads/latency_workload.py", "pace", topic, partitions=1, rate=1000, seconds=self._seconds
        )

    def active_partitions(self, count: int) -> Figures:
        """Measure sending 1,000 single records per second to `count` partitions in turn, with `durability=synced`."""
        topic = self.topic(count, "synced")
        return self.work(
            "workloads/latency_workload.py", "pace", topic, partitions=count, rate=1000, seconds=self._seconds
        )

    def bursts(self, count: int) -> Figures:
        """Measure rounds in which each of `count` partitions gets one record at once, with `durability=synced`."""
        topic = self.topic(count, "synced")
        return self.work(
            "workloads/latency_workload.py", "rounds", topic, partitions=count, seconds=self._seconds
        )

    def steady(self, seconds: float) -> Figures:
        """Measure 100,000 records per second in batches of 1,000, with the CPU usage and memory of the broker."""
        topic = self.topic(6, "synced")
        cpu, memory = self._cpu_seconds(), self._fairlead.resident_bytes()
        figures = self.work(
            "workloads/latency_workload.py",
            "steady",
            topic,
            partitions=6,
            rate=100_000,
            batch_records=1000,
            seconds=seconds,
        )
        figures["broker_cores"] = (self._cpu_seconds() - cpu) / seconds
        figures["resident_mib_before"] = memory / 2**20
        figures["resident_mib_after"] = self._fairlead.resident_bytes() / 2**20
        return figures

    def large_against_empty(self, gib: float) -> tuple[Figures, Figures]:
        """Measure appending and reading at the end of an empty topic and of a topic that contains `gib` GiB."""
        empty = self.work(
            "workloads/latency_workload.py", "tail", self.topic(1, "replicated"), seconds=self._seconds
        )
        large = self.topic(1, "replicated")
        records = int(gib * GIB / 120)
        self.work(
            "workloads/workload.py", "produce", large, partitions=1, records=records, batch_records=8000
        )
        os.sync()
        return empty, self.work("workloads/latency_workload.py", "tail", large, seconds=self._seconds)

    def _cpu_seconds(self) -> float:
        fields = (
            Path(f"/proc/{self._fairlead.process.pid}/stat")
            .read_text(encoding="ascii")
            .rsplit(")")[1]
            .split()
        )
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def kafka_paced(kafka: KafkaPeer, seconds: float) -> Figures:
    """Measure 1,000 single records per second with Kafka's own tool; return the percentiles that the tool prints."""
    topic = ("--topic", "latency", "--partitions", "1", "--replication-factor", "1")
    kafka.tool(
        "org.apache.kafka.tools.TopicCommand", "--bootstrap-server", kafka.bootstrap, "--create", *topic
    )
    arguments = ["--topic", "latency", "--num-records", str(int(1000 * seconds)), "--record-size", "100"]
    arguments += ["--throughput", "1000", "--warmup-records", str(int(100 * seconds)), "--command-property"]
    output = kafka.tool(
        "org.apache.kafka.tools.ProducerPerformance",
        *arguments,
        f"bootstrap.servers={kafka.bootstrap}",
        *KAFKA_SETTINGS,
    )
    p50, p99 = KAFKA_PERCENTILES.findall(output)[-1]
    return {"p50_ms": float(p50), "p99_ms": float(p99)}


def measure(options: argparse.Namespace) -> dict[str, Figures]:
    """Run the requested cases. Kafka runs alone, before the Fairlead broker starts."""
    results: dict[str, Figures] = {}
    with tempfile.TemporaryDirectory(prefix="fairlead-bench-", dir=options.data) as name:
        folder = Path(name)
        if "paced" in options.cases:
            kafka = KafkaPeer.start(folder, fetch_kafka(options.cache))
            try:
                results["Kafka, 1,000 records/s"] = kafka_paced(kafka, options.seconds)
            finally:
                kafka.stop()
        fairlead = FairleadPeer.start(folder)
        try:
            bench = LatencyBench(fairlead, options.seconds)
            for case in options.cases:
                results |= CASES[case](bench, options)
        finally:
            fairlead.stop()
    return results


def large(bench: LatencyBench, options: argparse.Namespace) -> dict[str, Figures]:
    """Compare a large topic with an empty topic."""
    empty, full = bench.large_against_empty(options.gib)
    return {"append and read, empty topic": empty, f"append and read, {options.gib:g} GiB topic": full}


CASES: dict[str, Callable[[LatencyBench, argparse.Namespace], dict[str, Figures]]] = {
    "paced": lambda bench, _: {
        f"{each}, 1,000 records/s": bench.paced(each) for each in ("replicated", "synced")
    },
    "partitions": lambda bench, _: {
        f"synced, 1,000 records/s over {count:,} partitions": bench.active_partitions(count)
        for count in (1, 100, 1000)
    },
    "bursts": lambda bench, _: {
        f"synced, a record to each of {count:,} partitions at once": bench.bursts(count)
        for count in (1, 100, 1000)
    },
    "steady": lambda bench, options: {"steady 100,000 records/s": bench.steady(options.steady_seconds)},
    "large": large,
}


def table(results: dict[str, Figures]) -> str:
    """Return the results as a Markdown table."""
    lines = ["| case | p50 ms | p99 ms | more |", "|---|---|---|---|"]
    for case, figures in results.items():
        more = ", ".join(f"{name} {value:.2f}" for name, value in figures.items() if not name.startswith("p"))
        lines.append(f"| {case} | {figures['p50_ms']:.2f} | {figures['p99_ms']:.2f} | {more} |")
    return "\n".join(lines)


def main() -> None:
    """Parse the command line, measure the cases, print the table and write the results file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--cases", nargs="*", choices=CASES, default=list(CASES), help="cases to measure; default: all"
    )
    parser.add_argument("--seconds", type=float, default=20, help="duration of each case in seconds")
    parser.add_argument(
        "--steady-seconds", type=float, default=300, help="duration of the steady case in seconds"
    )
    parser.add_argument("--gib", type=float, default=20, help="size of the large topic in GiB")
    add_folders(parser)
    options = parser.parse_args()
    options.cache.mkdir(parents=True, exist_ok=True)
    results = measure(options)
    print(
        f"machine: {os.cpu_count()} cores, {platform.platform()}; Kafka producer: {' '.join(KAFKA_SETTINGS)}"
    )
    print(table(results))
    document = {"machine": platform.platform(), "cores": os.cpu_count(), "cases": results}
    (options.cache / "latency.json").write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
