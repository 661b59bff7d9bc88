"""`make bench-spark`: compares batch and streaming reads, writes and triggers with Spark's own Kafka connector.

One Spark session with both connectors reads and writes the same records with Fairlead and with Kafka in turn; the
broker that is not measured is stopped. Results are written to build/bench/spark.json, and tables to standard output.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from pairing import Pairs, table
from parts import add_folders, measured_as
from peers.brokers import (
    HERE,
    FairleadPeer,
    KafkaPeer,
    PeerFailedError,
    both_peers,
    cpu_seconds,
    fetch_kafka,
    take_memory,
)
from peers.spark_driver import CONNECTOR, SparkDriver, fetch_connector, spark_driver
from spark_data import Data
from throughput import PARTITIONS, VALUE_BYTES, Bench

KAFKA_READS = {
    "kafka.max.partition.fetch.bytes": "4194304",
    "kafka.fetch.max.bytes": "52428800",
    "kafka.max.poll.records": "50000",
    "kafka.receive.buffer.bytes": "4194304",
}
KAFKA_WRITES = {"kafka.acks": "all", "kafka.batch.size": "500000", "kafka.linger.ms": "10"}
TRIGGER_RECORDS = 100
TRIGGER_TASKS = 2
TRIGGERS_WARM = 20
WRITES_WARM = 4
"""Number of writes to each system that are not measured: the JVM uses a third of the machine for compilation during the
first four million records."""
SIDES = {"fairlead": "Fairlead", "kafka": "Kafka", "neither": "Parquet files"}
Source = dict[str, Any]


class SparkBench:
    """Both brokers with the same records, and the Spark session that reads and writes the records."""

    def __init__(
        self, bench: Bench, peers: tuple[FairleadPeer, KafkaPeer], spark: SparkDriver, data: Data
    ) -> None:
        self._bench = bench
        self._fairlead, self._kafka = peers
        self._spark = spark
        self._data = data
        self._topics = ("", "")
        self.cpu_seconds_per_million: dict[str, dict[str, list[float]]] = {}
        """Processor seconds of Spark and the broker together per million records, by work and source or sink. The first
        value of each list was measured with a cold JVM."""

    def load(self) -> None:
        """Load the records into a topic of each broker, and check that Spark reads the same records from both."""
        self._bench.alone(self._fairlead)
        ours = self._bench.fairlead_topic("replicated")
        load(self._data, "fairlead", self._fairlead.url, ours)
        self._bench.alone(self._kafka)
        theirs = self._bench.kafka_topic()
        load(self._data, "kafka", self._kafka.bootstrap, theirs)
        self._topics = (ours, theirs)
        for side, source in (("fairlead", self._ours()), ("kafka", self._theirs())):
            self._alone(side)
            self._check(source, 1)

    def _check(self, source: Source, times: int) -> None:
        found = self._spark.ask("count", source=source)
        expected = {
            "records": self._data.records * times,
            "value_bytes": self._data.records * self._data.value_bytes * times,
        }
        if found != expected:
            msg = f"{source['format']} holds {found}, not {expected}"
            raise PeerFailedError(msg)

    def _alone(self, side: str) -> None:
        if side == "neither":
            self._fairlead.pause()
            self._kafka.pause()
            os.sync()
        else:
            self._bench.alone(self._fairlead if side == "fairlead" else self._kafka)

    def _ours(self, topic: str = "", **options: str) -> Source:
        given = {"bootstrap": self._fairlead.url, "subscribe": topic or self._topics[0]}
        return {"format": "fairlead", "options": given | {"startingOffsets": "earliest"} | options}

    def _theirs(self, topic: str = "", **options: str) -> Source:
        given = {"kafka.bootstrap.servers": self._kafka.bootstrap, "subscribe": topic or self._topics[1]}
        given |= {"startingOffsets": "earliest"} | KAFKA_READS
        return {"format": "kafka", "options": given | options}

    def _files(self) -> Source:
        return {"format": "parquet", "options": {"path": str(self._data.folder.absolute())}}

    def _rate(self, side: str, do: str, records: int, part: str = "", **arguments: Any) -> float:
        self._alone(side)
        take_memory()
        before = self._cpu_seconds(side)
        rate: float = records / self._spark.ask(do, **arguments)["seconds"]
        cpu = (self._cpu_seconds(side) - before) / records * 1e6
        part = part or do
        self.cpu_seconds_per_million.setdefault(part, {}).setdefault(SIDES[side], []).append(round(cpu, 2))
        print(
            f"{part} {side}: {rate:,.0f} records/s, {cpu:.2f} s of CPU a million", file=sys.stderr, flush=True
        )
        return rate

    def _cpu_seconds(self, side: str) -> float:
        peer = {"fairlead": self._fairlead, "kafka": self._kafka}.get(side)
        return self._spark.cpu_seconds() + (cpu_seconds(peer.process.pid) if peer else 0.0)

    def reads(self, rounds: int) -> list[Pairs]:
        """Measure reading and discarding all records, from Fairlead, from Kafka and from Parquet files."""
        sides = {"fairlead": self._ours(), "kafka": self._theirs(), "neither": self._files()}
        for side, source in sides.items():  # warm-up: the JVM compiles the code before the first measurement
            self._rate(side, "read", self._data.records, source=source)
        rates: dict[str, list[float]] = {side: [] for side in sides}
        for _ in range(rounds):
            for side, source in sides.items():
                rates[side].append(self._rate(side, "read", self._data.records, source=source))
        ours, kafka, files = (tuple(each) for each in rates.values())
        return [
            Pairs("batch read, against Kafka's connector", "records/s", ours, kafka, 2.0),
            Pairs("batch read, against Parquet (zstd) files", "records/s", ours, files, 0.5),
        ]

    def windows(self, rounds: int) -> list[Pairs]:
        """Measure a streaming count in one-minute windows, with a quarter of the records in each trigger."""
        limit = str(self._data.records // 4)
        sides = {
            "fairlead": self._ours(maxOffsetsPerTrigger=limit),
            "kafka": self._theirs(maxOffsetsPerTrigger=limit),
        }
        rates: dict[str, list[float]] = {side: [] for side in sides}
        for number in range(rounds + 1):
            for side, source in sides.items():
                rate = self._rate(side, "windows", self._data.records, source=source)
                if number:  # the first round is a warm-up
                    rates[side].append(rate)
        ours, theirs = (tuple(each) for each in rates.values())
        case = f"streaming windowed count, {int(limit):,} records a trigger"
        return [Pairs(case, "records/s", ours, theirs, 1.2)]

    def writes(self, rounds: int) -> list[Pairs]:
        """Measure the sinks alone, by writing values that are cheap to create to a new topic."""
        made = {"made": {"records": self._data.records, "value_bytes": self._data.value_bytes}}
        return [
            Pairs(
                "batch write, against Kafka's sink",
                "records/s",
                *self._write_rates("write", rounds, made),
                2.0,
            )
        ]

    def writes_of_files(self, rounds: int) -> list[Pairs]:
        """Measure writing the same number of values from Parquet files, which both sides can read at the same cost."""
        rates = self._write_rates("write-files", rounds, self._files())
        return [Pairs("batch write of Parquet files, against Kafka's sink", "records/s", *rates, 2.0)]

    def _write_rates(self, part: str, rounds: int, rows: Source) -> tuple[tuple[float, ...], ...]:
        rates: dict[str, list[float]] = {"fairlead": [], "kafka": []}
        for number in range(WRITES_WARM + rounds):
            for side, measured in rates.items():
                rate = self._write(part, side, rows)
                if number >= WRITES_WARM:
                    measured.append(rate)
        return tuple(tuple(each) for each in rates.values())

    def _write(self, part: str, side: str, rows: Source) -> float:
        self._alone(side)
        if side == "fairlead":
            topic = self._bench.fairlead_topic("replicated")
            options = {"bootstrap": self._fairlead.url, "topic": topic, "acks": "all"}
        else:
            topic = self._bench.kafka_topic()
            options = {"kafka.bootstrap.servers": self._kafka.bootstrap, "topic": topic} | KAFKA_WRITES
        sink = {"format": side, "options": options}
        rate = self._rate(side, "write", self._data.records, part, rows=rows, sink=sink)
        if side == "fairlead":
            self._check(self._ours(topic), 1)
            self._bench.delete_fairlead_topic(topic)
        else:
            self._check(self._theirs(topic), 1)
            self._bench.delete_kafka_topic(topic)
        return rate

    def triggers(self, rounds: int, measured: int, folder: Path) -> dict[str, object]:
        """Compare the duration of a trigger with a hundred records to that of Spark's rate source."""
        self._alone("fairlead")
        records = TRIGGER_RECORDS * (TRIGGERS_WARM + measured + 20)
        small = Data(
            folder / "small",
            TRIGGER_TASKS,
            records,
            VALUE_BYTES,
            batch_records=TRIGGER_RECORDS // TRIGGER_TASKS,
        )
        small.write()
        topic = self._bench.fairlead_topic("replicated", TRIGGER_TASKS)
        load(small, "fairlead", self._fairlead.url, topic)
        rate = {"rowsPerBatch": str(TRIGGER_RECORDS), "numPartitions": str(TRIGGER_TASKS)}
        sources = {
            "fairlead": self._ours(topic, maxOffsetsPerTrigger=str(TRIGGER_RECORDS)),
            "rate": {"format": "rate-micro-batch", "options": rate},
        }
        figures: dict[str, list[float]] = {name: [] for name in sources}
        parts: dict[str, object] = {}
        for _ in range(rounds):
            for name, source in sources.items():
                answer = self._spark.ask("triggers", source=source, warm=TRIGGERS_WARM, measured=measured)
                figures[name].append(median(answer["milliseconds"]))
                parts[name] = answer["mean_of_parts"]
                print(f"trigger {name}: {figures[name][-1]:.0f} ms", file=sys.stderr, flush=True)
        more = [mine - other for mine, other in zip(figures["fairlead"], figures["rate"], strict=True)]
        return {
            "case": f"a trigger with {TRIGGER_RECORDS} records, {TRIGGER_TASKS} tasks",
            "milliseconds": figures,
            "more_than_rate": more,
            "more_than_rate_median": median(more),
            "target": 60,
            "reached": median(more) <= 60,
            "mean_of_parts_last_round": parts,
        }


def load(data: Data, side: str, address: str, topic: str) -> None:
    """Load a topic in a separate process. Raises `PeerFailedError`."""
    arguments = json.dumps(dataclasses.asdict(data), default=str)
    command = [sys.executable, str(HERE / "spark_data.py"), side, "--data", arguments]
    command += ["--address", address, "--topic", topic]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        msg = f"loading {side} ended with {done.returncode}: {done.stderr[-3000:]}"
        raise PeerFailedError(msg)


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Start brokers and Spark, measure the requested parts, and stop all processes."""
    jars, connector = fetch_kafka(options.cache), fetch_connector(options.cache)
    document: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="fairlead-bench-", dir=options.data) as name:
        folder = Path(name)
        data = Data(folder / "rows", PARTITIONS, options.records, VALUE_BYTES)
        data.write()
        with both_peers(folder, jars) as peers, spark_driver(folder, connector) as spark:
            bench = SparkBench(Bench(*peers, options.records), peers, spark, data)
            document["spark"] = spark.version
            bench.load()
            parts: dict[str, Callable[[], Any]] = {
                "read": lambda: bench.reads(options.rounds),
                "windows": lambda: bench.windows(options.rounds),
                "write": lambda: bench.writes(options.rounds),
                "write-files": lambda: bench.writes_of_files(options.rounds),
                "triggers": lambda: bench.triggers(options.rounds, options.triggers, folder),
            }
            for part in options.parts or parts:
                document[part] = parts[part]()
            document["cpu_seconds_per_million"] = bench.cpu_seconds_per_million
    return document


def main() -> None:
    """Parse the command line, measure the parts, print the tables and write the results file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "parts",
        nargs="*",
        help="parts to measure (read, windows, write, write-files, triggers); default: all",
    )
    parser.add_argument("--records", type=int, default=4_000_000, help="number of records in each topic")
    parser.add_argument(
        "--rounds", type=int, default=5, help="alternating rounds of each case, after one warm-up round"
    )
    parser.add_argument("--triggers", type=int, default=60, help="measured triggers of each round")
    add_folders(parser)
    options = parser.parse_args()
    options.cache.mkdir(parents=True, exist_ok=True)
    # SIGTERM raises SystemExit, so that the context managers of the run stop brokers and Spark.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    results = run(options)
    print(f"machine: {os.cpu_count()} cores, {platform.platform()}; {options.records:,} records")
    print(f"Spark {results['spark']}, local[2]; Kafka's connector {CONNECTOR}: {KAFKA_READS}, {KAFKA_WRITES}")
    pairs = [each for result in results.values() if isinstance(result, list) for each in result]
    print(table(pairs).replace("| Kafka |", "| peer |", 1))
    if "triggers" in results:
        print(json.dumps(results["triggers"], indent=2))
    path = options.cache / "spark.json"
    document = json.loads(path.read_text()) if path.exists() else {}
    document |= {"machine": platform.platform(), "cores": os.cpu_count(), "spark": results.pop("spark")}
    cpu_seconds = results.pop("cpu_seconds_per_million")
    for part, result in results.items():
        cases = [each.document() for each in result] if isinstance(result, list) else result
        document[part] = {"records": options.records, "cases": cases} | measured_as(options)
        if part in cpu_seconds:
            # The first runs of each side are the warm-up.
            warm = WRITES_WARM if part.startswith("write") else 1
            document[part]["cpu_seconds_per_million"] = {
                side: round(median(used[warm:]), 2) for side, used in cpu_seconds[part].items()
            }
    path.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
