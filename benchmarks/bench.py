"""`make bench`: compares Fairlead with Apache Kafka, Kafka's Python clients and NATS JetStream on the same work.

Each part starts new brokers. While one broker is measured, the other brokers are stopped (SIGSTOP). Dirty pages are
written to the disk before the measurement. The run fails if a peer does not start. Results are written to
build/bench/bench.json, and tables to standard output.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import footprint
import records
import throughput
from bench_parts import cleaning, compression, kafka_listener, secured, transaction_cases
from group_parts import consuming
from parts import add_folders, measure_parts

Part: TypeAlias = Callable[[argparse.Namespace, Path], dict[str, object]]

PARTS: dict[str, Part] = {
    "throughput": throughput.throughput,
    "kilobyte": throughput.kilobyte,
    "send": records.send,
    "consume": consuming.consume,
    "kafka-throughput": kafka_listener.throughput,
    "kafka-waiting": kafka_listener.waiting,
    "nats": records.nats,
    "compression": compression.compression,
    "cleaning": cleaning.cleaning,
    "cleaning-large": cleaning.large_cleaning,
    "rebuild": cleaning.rebuild,
    "cleaning-latency": cleaning.producers_while_cleaning,
    "http": footprint.http,
    "heartbeats": footprint.heartbeats,
    "start": footprint.start,
    "secured": secured.secured,
    "transactions": transaction_cases.transactions,
    "transform": transaction_cases.transform,
    "isolation": transaction_cases.isolation,
    "decisions": transaction_cases.decisions,
}


def main() -> None:
    """Parse the command line, measure the parts, print the tables and write the results file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", help=f"parts to measure ({', '.join(PARTS)}); default: all")
    parser.add_argument(
        "--records",
        type=int,
        default=5_000_000,
        help="number of 100-byte records; proportionally fewer larger records",
    )
    parser.add_argument("--pairs", type=int, default=5, help="alternating rounds of each case")
    parser.add_argument(
        "--share",
        type=float,
        default=0.4,
        help="consume: fraction of the records that is read record by record",
    )
    add_folders(parser)
    measure_parts(PARTS, parser.parse_args(), "bench.json")


if __name__ == "__main__":
    main()
