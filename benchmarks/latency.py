"""`make bench-latency`: measures the latency of acknowledgements without load, under load, and on a large topic.

A producer of Kafka runs at the same rate in the cases with a peer; all other cases are reported without a comparison.
Results are written to build/bench/latency.json, and tables to standard output.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from statistics import median

from pairing import Outcome, Pairs, table
from parts import add_folders, measure_parts
from peers.awake import awake_processors
from peers.brokers import HERE, FairleadPeer, KafkaPeer, alone, both_peers, fetch_kafka

from fairlead import Admin

Figures = dict[str, float]
KAFKA_SETTINGS = ("acks=all", "linger.ms=0", "compression.type=none")
KAFKA_PROGRAM = HERE / "peers/kafka/PacedProducer.java"
KAFKA_TARGETS = {"p50": 1.5, "p99": 1.0}
"""Largest ratio to Kafka with `durability=replicated`."""
SYNCED_P50_MS_MAX = 3
TAIL_P50_MS_MAX = 1.5
PARTITIONS_TIMES_MAX = 3
STEADY_P99_MS_MAX = 50
LARGE_TIMES_MAX = 1.3
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


def kafka_paced(kafka: KafkaPeer, name: str, seconds: float) -> Figures:
    """Measure 1,000 single records per second with a Java program, which Java compiles when it starts the program."""
    topic = ("--topic", name, "--partitions", "1", "--replication-factor", "1")
    kafka.tool(
        "org.apache.kafka.tools.TopicCommand", "--bootstrap-server", kafka.bootstrap, "--create", *topic
    )
    output = kafka.tool(str(KAFKA_PROGRAM), kafka.bootstrap, name, "1000", str(seconds), *KAFKA_SETTINGS)
    figures: Figures = json.loads(output.strip().splitlines()[-1])
    print(f"kafka: {figures}", file=sys.stderr, flush=True)
    return figures


def paced(options: argparse.Namespace, folder: Path) -> dict[str, object]:
    """Compare 1,000 single records per second with Kafka, in alternating rounds."""
    percentiles: dict[str, list[Figures]] = {"kafka": [], "replicated": [], "synced": []}
    with both_peers(folder, fetch_kafka(options.cache)) as (fairlead, kafka):
        bench = LatencyBench(fairlead, options.seconds)
        for number in range(options.rounds):
            alone(kafka, (fairlead, kafka))
            percentiles["kafka"].append(kafka_paced(kafka, f"latency-{number}", options.seconds))
            alone(fairlead, (fairlead, kafka))
            for durability in ("replicated", "synced"):
                percentiles[durability].append(bench.paced(durability))
    cases = [
        Pairs(
            f"acks=all, `{durability}`, 1,000 records/s, {name}",
            "µs",
            tuple(round(each[f"{name}_ms"] * 1000) for each in percentiles[durability]),
            tuple(round(each[f"{name}_ms"] * 1000) for each in percentiles["kafka"]),
            target if durability == "replicated" else None,
            at_least=False,
        )
        for durability in ("replicated", "synced")
        for name, target in KAFKA_TARGETS.items()
    ]
    print(table(cases))
    p50 = median(each["p50_ms"] for each in percentiles["synced"])
    synced = Outcome(
        "acks=all, `synced`, 1,000 records/s, fsync included",
        f"p50 {p50:.1f} ms",
        f"p50 at most {SYNCED_P50_MS_MAX} ms",
        p50 <= SYNCED_P50_MS_MAX,
    )
    return {"cases": [each.document() for each in cases], "outcomes": [synced.document()]}


def _alone(
    measure: Callable[[LatencyBench, argparse.Namespace], list[Outcome]],
) -> Callable[[argparse.Namespace, Path], dict[str, object]]:
    """Return a part that needs only a Fairlead broker."""

    def part(options: argparse.Namespace, folder: Path) -> dict[str, object]:
        fairlead = FairleadPeer.start(folder)
        try:
            outcomes = measure(LatencyBench(fairlead, options.seconds), options)
        finally:
            fairlead.stop()
        return {"outcomes": [each.document() for each in outcomes]}

    return part


def _text(figures: Figures) -> str:
    return f"p50 {figures['p50_ms']:.1f} ms, p99 {figures['p99_ms']:.1f} ms"


def partitions(bench: LatencyBench, _: argparse.Namespace) -> list[Outcome]:
    """Send 1,000 records per second over one and over many partitions."""
    outcomes: list[Outcome] = []
    before = 0.0
    for count in (1, 100, 1000):
        figures = bench.active_partitions(count)
        case = f"`synced`, 1,000 records a second over {count:,} partition{'s' * (count > 1)}"
        if count == 1000:
            times = figures["p99_ms"] / before
            reached = times <= PARTITIONS_TIMES_MAX
            target = f"p99 at most {PARTITIONS_TIMES_MAX}x of 100 partitions"
            outcomes.append(Outcome(case, f"{_text(figures)}: {times:.1f}x", target, reached))
        else:
            outcomes.append(Outcome(case, _text(figures)))
        before = figures["p99_ms"]
    return outcomes


def bursts(bench: LatencyBench, _: argparse.Namespace) -> list[Outcome]:
    """Send one record to each of many partitions at once."""
    return [
        Outcome(f"`synced`, a record to each of {count:,} partitions at once", _text(bench.bursts(count)))
        for count in (1, 100, 1000)
    ]


def steady(bench: LatencyBench, options: argparse.Namespace) -> list[Outcome]:
    """Send 100,000 records per second in batches for minutes."""
    figures = bench.steady(options.steady_seconds)
    return [
        Outcome(
            f"`synced`, 100,000 records a second in batches of 1,000, {options.steady_seconds:g} s",
            f"{_text(figures)}; {figures['broker_cores']:.2f} of a core, memory from"
            f" {figures['resident_mib_before']:.0f} to {figures['resident_mib_after']:.0f} MiB",
            f"p99 below {STEADY_P99_MS_MAX} ms",
            figures["p99_ms"] < STEADY_P99_MS_MAX,
        )
    ]


def large(bench: LatencyBench, options: argparse.Namespace) -> list[Outcome]:
    """Compare the end of a large topic with an empty topic."""
    empty, full = bench.large_against_empty(options.gib)
    times = full["p99_ms"] / empty["p99_ms"]
    case = f"append and read it back at the end of a log of {options.gib:g} GiB"
    target = f"p99 at most {LARGE_TIMES_MAX}x of an empty topic"
    return [
        Outcome(
            "append and read it back, empty topic",
            _text(empty),
            f"p50 at most {TAIL_P50_MS_MAX} ms",
            empty["p50_ms"] <= TAIL_P50_MS_MAX,
        ),
        Outcome(case, f"{_text(full)}: {times:.2f}x", target, times <= LARGE_TIMES_MAX),
    ]


PARTS: dict[str, Callable[[argparse.Namespace, Path], dict[str, object]]] = {
    "paced": paced,
    "partitions": _alone(partitions),
    "bursts": _alone(bursts),
    "steady": _alone(steady),
    "large": _alone(large),
}


def main() -> None:
    """Parse the command line, measure the parts, print the tables and write the results file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", help=f"parts to measure ({', '.join(PARTS)}); default: all")
    parser.add_argument("--rounds", type=int, default=3, help="paced: alternating rounds")
    parser.add_argument("--seconds", type=float, default=20, help="duration of each case in seconds")
    parser.add_argument(
        "--steady-seconds", type=float, default=300, help="duration of the steady case in seconds"
    )
    parser.add_argument("--gib", type=float, default=20, help="size of the large topic in GiB")
    add_folders(parser)
    with awake_processors():
        measure_parts(PARTS, parser.parse_args(), "latency.json")


if __name__ == "__main__":
    main()
