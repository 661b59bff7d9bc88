"""`make bench-groups`: consumer groups. Members that come, die and move; a thousand groups; consuming against peers.

Parts that name a cluster run three brokers and an etcd. Results go to build/bench/groups.json, tables to standard
output.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import groups_consume
import groups_moves
import groups_scale
from parts import add_folders, measure_parts

Part: TypeAlias = Callable[[argparse.Namespace, Path], dict[str, object]]

PARTS: dict[str, Part] = {
    "consume": groups_consume.consume,
    "join": groups_moves.join,
    "member": groups_moves.member,
    "coordinator": groups_moves.coordinator,
    "scale": groups_scale.scale,
}


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", help=f"of {', '.join(PARTS)}; all without")
    parser.add_argument("--records", type=int, default=5_000_000, help="consume: records of the topic")
    parser.add_argument("--share", type=float, default=0.4, help="consume: of them read record by record")
    parser.add_argument("--pairs", type=int, default=5, help="consume: rounds over all sides")
    parser.add_argument("--members", type=int, default=49, help="join: before another one comes")
    parser.add_argument("--processes", type=int, default=2, help="join: that the members are split over")
    parser.add_argument("--join-runs", type=int, default=3, help="join: times that another one comes")
    parser.add_argument("--runs", type=int, default=10, help="member, coordinator: kills")
    parser.add_argument("--session-seconds", type=int, default=6, help="member: session timeout")
    parser.add_argument("--lease-seconds", type=int, default=3, help="all parts with a cluster")
    parser.add_argument("--groups", type=int, default=1000, help="scale: of ten members on ten partitions")
    parser.add_argument("--seconds", type=float, default=60.0, help="scale: of each phase")
    parser.add_argument("--clients", type=int, default=2, help="scale: processes that play the members")
    add_folders(parser)
    return parser.parse_args()


def main() -> None:
    """Parse the command line, measure, print, write the results file."""
    options = _options()
    measure_parts(PARTS, options, "groups.json")


if __name__ == "__main__":
    main()
