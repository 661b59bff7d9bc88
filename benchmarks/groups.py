"""`make bench-groups`: measures members that join or die, a thousand groups, and consuming compared with peers.

Parts that need a cluster run three brokers and etcd. Results are written to build/bench/groups.json, and tables to
standard output.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import groups_scale
from group_parts import consuming, moves
from parts import add_folders, measure_parts

Part: TypeAlias = Callable[[argparse.Namespace, Path], dict[str, object]]

PARTS: dict[str, Part] = {
    "consume": consuming.consume,
    "join": moves.join,
    "member": moves.member,
    "coordinator": moves.coordinator,
    "scale": groups_scale.scale,
}


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", help=f"parts to measure ({', '.join(PARTS)}); default: all")
    parser.add_argument(
        "--records", type=int, default=5_000_000, help="consume: number of records in the topic"
    )
    parser.add_argument(
        "--share",
        type=float,
        default=0.4,
        help="consume: fraction of the records that is read record by record",
    )
    parser.add_argument("--pairs", type=int, default=5, help="consume: number of rounds over all sides")
    parser.add_argument(
        "--members", type=int, default=49, help="join: number of members before another member joins"
    )
    parser.add_argument(
        "--processes", type=int, default=2, help="join: number of processes that run the members"
    )
    parser.add_argument(
        "--join-runs", type=int, default=3, help="join: number of times that another member joins"
    )
    parser.add_argument("--runs", type=int, default=10, help="member, coordinator: number of kills")
    parser.add_argument("--session-seconds", type=int, default=6, help="member: session timeout in seconds")
    parser.add_argument(
        "--lease-seconds", type=int, default=3, help="all parts with a cluster: broker lease in seconds"
    )
    parser.add_argument(
        "--groups",
        type=int,
        default=1000,
        help="scale: number of groups, each with ten members on ten partitions",
    )
    parser.add_argument(
        "--seconds", type=float, default=60.0, help="scale: duration of each phase in seconds"
    )
    parser.add_argument(
        "--clients", type=int, default=2, help="scale: number of processes that simulate the members"
    )
    add_folders(parser)
    return parser.parse_args()


def main() -> None:
    """Parse the command line, measure the parts, print the tables and write the results file."""
    options = _options()
    measure_parts(PARTS, options, "groups.json")


if __name__ == "__main__":
    main()
