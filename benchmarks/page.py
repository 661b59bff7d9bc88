"""`make bench-page`: writes the figures in build/bench into docs/benchmarks.md and draws pictures of them.

Tables are written between marks in the page, with one row for each case; each row includes the command and the day of
the measurement. Trial runs with few records or fewer than three rounds are left out. Cases that were not measured this
time keep their figures, which are stored in docs/figures. `make docs` runs this program without new results to draw the
pictures, which are not in git.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from page_parts import growths, tables
from page_parts.pictures import draw_ratios, draw_requests
from page_parts.results import Results
from parts import absolute_path

PAGE = "docs/benchmarks.md"
FOLDER = "docs/figures"
MARK = "<!-- {name}: {what} -->"
Block: TypeAlias = Callable[[Results, Path], str]
"""Function that returns the Markdown for some results and draws a picture at a path. The Markdown is empty if there are
no results."""


@dataclass(frozen=True, slots=True)
class Section:
    """Content between two marks of the page: blocks that are separated by empty lines."""

    name: str
    blocks: tuple[Block, ...]


def ratios(title: str, file: str, parts: Sequence[str], command: str) -> Block:
    """Return a block with a picture and a table for cases that were measured against a peer."""

    def block(results: Results, path: Path) -> str:
        cases = tables.cases_of(results, file, parts, command)
        if not cases:
            return ""
        draw_ratios(title, cases, path)
        picture = f"![{title}: ratios, their spread and targets](figures/{path.name})"
        return f"{picture}\n\n{tables.ratios(cases)}"

    return block


def outcomes(file: str, parts: Sequence[str], command: str) -> Block:
    """Return a block with a table of cases that were measured without a peer."""

    def block(results: Results, _: Path) -> str:
        return tables.outcomes(results, file, parts, command)

    return block


def grown(part: str) -> Block:
    """Return a block with a picture, a table and the first limit of growing work."""

    def block(results: Results, path: Path) -> str:
        measured = results.part("scale.json", part)
        if measured is None:
            return ""
        growths.draw_growth(measured, path)
        picture = (
            f"![The figures of the table, as the number of {measured['what']} grows](figures/{path.name})"
        )
        return f"{picture}\n\n{growths.growth(measured, part)}"

    return block


def requests(results: Results, path: Path) -> str:
    """Return a picture and a table of the results for JSON over HTTP."""
    measured = results.part("bench.json", "http")
    if measured is None:
        return ""
    draw_requests(measured["cases"], path)
    picture = f"![JSON over HTTP: requests and records per second](figures/{path.name})"
    return f"{picture}\n\n{tables.requests(measured)}"


def start(results: Results, _: Path) -> str:
    """Return a table with the start time of a broker and the limit for this time."""
    measured = results.part("bench.json", "start")
    return tables.start(measured) if measured else ""


def handshakes(results: Results, _: Path) -> str:
    """Return a table of the handshakes per second and the latency of another producer."""
    measured = results.part("bench.json", "secured")
    return tables.handshakes(measured) if measured else ""


def decisions(results: Results, _: Path) -> str:
    """Return a table of the transactions that producers commit per second."""
    measured = results.part("bench.json", "decisions")
    return tables.decisions(measured) if measured else ""


def triggers(results: Results, _: Path) -> str:
    """Return a table that compares the duration of Spark triggers with triggers of Spark's rate source."""
    measured = results.part("spark.json", "triggers")
    return tables.triggers(measured) if measured else ""


def processor(file: str, parts: Sequence[str], command: str) -> Block:
    """Return a block with a table of the processor time per million records."""

    def block(results: Results, _: Path) -> str:
        measured = {part: results.part(file, part) for part in parts}
        return tables.processor({part: each for part, each in measured.items() if each}, command)

    return block


SECTIONS = (
    Section(
        "throughput",
        (ratios("Throughput, against Kafka", "bench.json", ("throughput", "kilobyte"), "make bench"),),
    ),
    Section(
        "start", (ratios("Start and memory, against Kafka", "bench.json", ("start",), "make bench"), start)
    ),
    Section(
        "clients",
        (
            ratios("Clients in Python", "bench.json", ("send", "consume", "nats"), "make bench"),
            processor("bench.json", ("send", "consume"), "make bench"),
        ),
    ),
    Section(
        "compression",
        (ratios("Compressed records, against Kafka", "bench.json", ("compression",), "make bench"),),
    ),
    Section(
        "kafka-listener",
        (
            ratios(
                "Kafka's clients, against Kafka",
                "bench.json",
                ("kafka-throughput", "kafka-waiting"),
                "make bench",
            ),
        ),
    ),
    Section("http", (requests,)),
    Section(
        "secured",
        (ratios("TLS and access rules", "bench.json", ("secured",), "make bench"), handshakes),
    ),
    Section(
        "transactions",
        (
            ratios("Transactions", "bench.json", ("transactions", "transform", "isolation"), "make bench"),
            decisions,
        ),
    ),
    Section(
        "compaction",
        (
            ratios(
                "Compacted topics",
                "bench.json",
                ("cleaning", "cleaning-large", "rebuild", "cleaning-latency"),
                "make bench",
            ),
        ),
    ),
    Section(
        "revisions",
        (
            ratios(
                "Without transactions, against the revision before them",
                "revisions.json",
                ("revisions",),
                "make bench-revision",
            ),
        ),
    ),
    Section(
        "spark",
        (
            ratios(
                "Spark, against its Kafka connector",
                "spark.json",
                ("read", "windows", "write", "write-files"),
                "make bench-spark",
            ),
            triggers,
            processor("spark.json", ("read", "windows", "write", "write-files"), "make bench-spark"),
        ),
    ),
    Section(
        "latency",
        (
            ratios("Latency, against Kafka", "latency.json", ("paced",), "make bench-latency"),
            outcomes(
                "latency.json", ("paced", "partitions", "bursts", "steady", "large"), "make bench-latency"
            ),
        ),
    ),
    Section(
        "cluster",
        (
            ratios("Three brokers, against Kafka", "cluster.json", ("throughput",), "make bench-cluster"),
            outcomes(
                "cluster.json", ("failover", "cut", "moves", "rolling", "partitions"), "make bench-cluster"
            ),
        ),
    ),
    Section(
        "quorum",
        (
            ratios(
                "Write quorums",
                "cluster.json",
                ("slow-follower", "quorum-throughput"),
                "make bench-cluster",
            ),
            outcomes(
                "cluster.json",
                ("slow-follower", "quorum-throughput", "quorum-failover"),
                "make bench-cluster",
            ),
        ),
    ),
    Section(
        "links",
        (
            ratios(
                "Links, against MirrorMaker 2", "cluster.json", ("link-throughput",), "make bench-cluster"
            ),
            outcomes("cluster.json", ("link-lag", "link-hand-overs"), "make bench-cluster"),
        ),
    ),
    *(
        Section(f"scale-{part}", (grown(part),))
        for part in ("partitions", "connections", "groups", "producers", "size")
    ),
    Section("scale-brokers", (grown("brokers"), outcomes("scale.json", ("brokers",), "make bench-scale"))),
    Section(
        "groups",
        (
            outcomes("groups.json", ("join", "member", "coordinator", "scale"), "make bench-groups"),
            outcomes("bench.json", ("heartbeats",), "make bench"),
        ),
    ),
    Section(
        "console",
        (outcomes("console.json", ("pages", "paint", "memory", "search", "tail"), "make bench-console"),),
    ),
)


def with_section(text: str, name: str, inside: str) -> str:
    """Return the page with new content between two marks. Raises `ValueError` if the page lacks the marks."""
    begin, end = (MARK.format(name=name, what=what) for what in ("begin", "end"))
    if not 0 <= text.find(begin) < text.find(end):
        msg = f"the page lacks the marks {begin} and {end}"
        raise ValueError(msg)
    before, _, rest = text.partition(begin)
    return f"{before}{begin}\n\n{inside}\n\n{end}{rest.partition(end)[2]}"


def main() -> None:
    """Write the sections for which there are figures, and draw their pictures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cache", type=absolute_path, default="build/bench", help="folder of the results")
    parser.add_argument("--page", type=absolute_path, default=PAGE, help="page to update")
    parser.add_argument("--figures", type=absolute_path, default=FOLDER, help="folder of the pictures")
    options = parser.parse_args()
    text = options.page.read_text(encoding="utf-8")
    options.figures.mkdir(exist_ok=True)
    results = Results(options.cache, options.figures)
    for section in SECTIONS:
        path = options.figures / f"{section.name}.svg"
        inside = "\n\n".join(filter(None, (block(results, path) for block in section.blocks)))
        if inside:
            text = with_section(text, section.name, inside)
    options.page.write_text(text, encoding="utf-8")
    results.keep()


if __name__ == "__main__":
    main()
