"""`make bench-revision`: runs the workloads of `make bench`, without Kafka, on this checkout and an earlier revision.

Each revision has its own broker and its own client, with the same installed packages; the default is the last revision
without transactions. The clients take turns of less than a second, so that a change of the machine's speed affects both
revisions, and no turn includes the start of a program. Both revisions are started several times, because the C
allocator of some processes returns memory to the system again and again, and that of others keeps it. While one broker
is measured, the other broker is stopped (SIGSTOP). Each row has a ratio of rates by turn, and a ratio of records per
second of processor time in user mode (broker and client) by life. Time in the kernel is not included, because it
depends on other load of the machine. Results are written to build/bench/revisions.json.
"""

from __future__ import annotations

import argparse
import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from pairing import Pairs, table
from parts import add_folders, measure_parts
from peers.brokers import HERE, FairleadPeer, alone
from throughput import KILOBYTE, VALUE_BYTES, Bench
from turns import TurnsClient

CHECKOUT = HERE.parent
BEFORE_TRANSACTIONS = "7a5a03fc"
PACKAGES = ("api", "broker", "client")
RATIO_MIN = 0.98


class Turn(NamedTuple):
    """Figures of one turn."""

    records: int
    rate: float
    """Records per second."""
    user_seconds: float
    """Processor time of broker and client in user mode."""


Lives = dict[Path, list[list[Turn]]]
"""Turns of a case in each life, by checkout."""


class Revision:
    """A checkout with a running broker and a running client, which carries out one turn after another."""

    def __init__(self, checkout: Path, folder: Path, name: str) -> None:
        """Start the broker and the client with the packages of the checkout."""
        environment = {"PYTHONPATH": os.pathsep.join(str(checkout / each) for each in PACKAGES)}
        with _environment(environment):
            self.peer = FairleadPeer.start(folder, name=name)
        self._bench = Bench(self.peer, self.peer, 0)
        self._client = TurnsClient(environment)

    def topic(self, durability: str) -> str:
        """Create a topic."""
        return self._bench.fairlead_topic(durability)

    def delete(self, topic: str) -> None:
        """Delete a topic."""
        self._bench.delete_fairlead_topic(topic)

    def run(self, side: str, topic: str, records: int, value_bytes: int) -> Turn:
        """Run one turn. Raises `PeerFailedError`."""
        began = _user_seconds(self.peer.process.pid)
        figures = self._client.run(side, self.peer.url, topic, records, value_bytes)
        used = _user_seconds(self.peer.process.pid) - began + figures["user_seconds"]
        return Turn(records, figures["records_per_second"], used)

    def stop(self) -> None:
        """Stop client and broker."""
        self._client.stop()
        self.peer.stop()


def _user_seconds(pid: int) -> float:
    """Return the processor time of a process in user mode."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return int(fields[11]) / os.sysconf("SC_CLK_TCK")


@contextmanager
def _environment(values: dict[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def compare(options: argparse.Namespace, folder: Path) -> dict[str, object]:
    """Measure producing and consuming in alternating rounds of both revisions."""
    old = folder / "checkout"
    subprocess.run(["git", "-C", CHECKOUT, "worktree", "add", "--detach", old, options.revision], check=True)
    cases: dict[str, Lives] = {}
    try:
        for life in range(options.lives):
            order = (CHECKOUT, old) if life % 2 else (old, CHECKOUT)
            for case, turns in _life(order, folder / f"life-{life}", options).items():
                lives = cases.setdefault(case, {CHECKOUT: [], old: []})
                for checkout in order:
                    lives[checkout].append(turns[checkout])
    finally:
        subprocess.run(["git", "-C", CHECKOUT, "worktree", "remove", "--force", old], check=True)
    results = [
        Pairs(
            f"{case}, {what}, compared with the earlier revision (in the column peer)",
            "records/s",
            *(values(lives[checkout]) for checkout in (CHECKOUT, old)),
            target=RATIO_MIN,
        )
        for case, lives in cases.items()
        for what, values in (("by time", _by_time), ("by processor time in user mode", _by_user_time))
    ]
    print(table(results))
    return {"revision": options.revision, "cases": [each.document() for each in results]}


def _by_time(lives: list[list[Turn]]) -> tuple[float, ...]:
    return tuple(turn.rate for turns in lives for turn in turns)


def _by_user_time(lives: list[list[Turn]]) -> tuple[float, ...]:
    return tuple(
        sum(turn.records for turn in turns) / sum(turn.user_seconds for turn in turns) for turns in lives
    )


def _life(
    checkouts: Sequence[Path], folder: Path, options: argparse.Namespace
) -> dict[str, dict[Path, list[Turn]]]:
    """Start both revisions, measure all rounds, and stop both; return the turns of each case by checkout."""
    cases: dict[str, dict[Path, list[Turn]]] = {}
    revisions: dict[Path, Revision] = {}
    try:
        for number, checkout in enumerate(checkouts):
            revisions[checkout] = Revision(checkout, folder, f"revision-{number}")
        peers = [revision.peer for revision in revisions.values()]
        for value_bytes, records in ((VALUE_BYTES, options.records), (KILOBYTE, options.records // 5)):
            for number in range(options.pairs + 1):
                for durability in ("synced", "replicated"):
                    for checkout in checkouts if number % 2 else checkouts[::-1]:
                        alone(revisions[checkout].peer, peers)
                        found = _turns(revisions[checkout], durability, records, value_bytes)
                        if number:  # the first round of a life warms up
                            for case, turn in found.items():
                                cases.setdefault(case, {}).setdefault(checkout, []).append(turn)
    finally:
        for revision in revisions.values():
            revision.stop()
    return cases


def _turns(revision: Revision, durability: str, records: int, value_bytes: int) -> dict[str, Turn]:
    """Produce to a new topic and, with `durability=replicated`, consume the records; return the turn of each case."""
    topic, size = revision.topic(durability), f"{value_bytes:,} B"
    turns = {f"produce, {durability} {size}": revision.run("produce", topic, records, value_bytes)}
    if durability == "replicated":
        turns[f"consume {size}"] = revision.run("consume", topic, records, value_bytes)
    revision.delete(topic)
    return turns


def main() -> None:
    """Parse the command line, compare the revisions, and write the results file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", help="parts to measure (revisions)")
    parser.add_argument("--revision", default=BEFORE_TRANSACTIONS, help="revision of this repository")
    parser.add_argument("--records", type=int, default=4_000_000, help="number of 100-byte records of a turn")
    parser.add_argument("--pairs", type=int, default=5, help="alternating rounds of a life")
    parser.add_argument("--lives", type=int, default=7, help="times that both revisions are started")
    add_folders(parser)
    measure_parts({"revisions": compare}, parser.parse_args(), "revisions.json")


if __name__ == "__main__":
    main()
