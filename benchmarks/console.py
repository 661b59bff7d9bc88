"""`make bench-console`: measures the console: times of its pages, first paints, memory, searches and live tails.

Results are written to build/bench/console.json.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

from console_parts import pages, searching, tabs, tailing
from parts import add_folders, measure_parts

Part: TypeAlias = Callable[[argparse.Namespace, Path], dict[str, object]]

PARTS: dict[str, Part] = {
    "pages": pages.pages,
    "paint": pages.paint,
    "memory": tabs.memory,
    "search": searching.search,
    "tail": tailing.tail,
}


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", help=f"parts to measure ({', '.join(PARTS)}); default: all")
    parser.add_argument("--topics", type=int, default=1000, help="pages, memory: number of topics")
    parser.add_argument("--groups", type=int, default=100, help="pages, memory: number of groups")
    parser.add_argument("--many-topics", type=int, default=10_000, help="paint: number of topics")
    parser.add_argument("--many-groups", type=int, default=1000, help="paint: number of groups")
    parser.add_argument(
        "--tab-seconds",
        type=float,
        default=480,
        help="memory: duration of the refreshes of an hour in seconds",
    )
    parser.add_argument(
        "--records", type=int, default=10_000_000, help="search: number of records in the topic"
    )
    parser.add_argument(
        "--rounds", type=int, default=20, help="tail: number of pairs of windows without and with a tail"
    )
    parser.add_argument(
        "--tail-seconds", type=float, default=5, help="tail: duration of each window in seconds"
    )
    add_folders(parser, kept="the results")
    return parser.parse_args()


def main() -> None:
    """Parse the command line, measure the parts, and write the results file."""
    measure_parts(PARTS, _options(), "console.json")


if __name__ == "__main__":
    main()
