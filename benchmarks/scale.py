"""`make bench-scale`: measures one broker as its work grows, and several brokers on one machine.

Each part has steps of growing size, and ends with the limit that is met first. Results are written to
build/bench/scale.json, and the figures of each step to standard error.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

from parts import add_folders, measure_parts
from peers.awake import awake_processors
from scale_parts import many_brokers, one_broker

PARTS: dict[str, Callable[[argparse.Namespace, Path], dict[str, object]]] = {
    "partitions": one_broker.partitions,
    "connections": one_broker.connections,
    "groups": one_broker.groups,
    "producers": one_broker.producers,
    "size": one_broker.size,
    "brokers": many_brokers.brokers,
}
COUNTS = {
    "partitions": (10, 100, 1_000, 10_000),
    "connections": (10, 100, 1_000, 10_000),
    "groups": (10, 100, 1_000, 5_000),
    "producers": (1, 10, 100, 1_000, 10_000),
    "gib": (1, 3, 10),
    "brokers": (1, 2, 4, 8),
}


def main() -> None:
    """Parse the command line, measure the parts, print the results and write the results file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", help=f"parts to measure ({', '.join(PARTS)}); default: all")
    parser.add_argument("--seconds", type=float, default=5, help="duration of each measurement in a step")
    for name, counts in COUNTS.items():
        parser.add_argument(f"--{name}", type=int, nargs="+", default=list(counts), help=f"steps of {name}")
    add_folders(parser, kept="results")
    with awake_processors():
        measure_parts(PARTS, parser.parse_args(), "scale.json")


if __name__ == "__main__":
    main()
