"""`make bench-revision`: runs the workloads of `make bench`, without Kafka, on this checkout and an earlier revision.

Each revision runs its own broker and its own workload, with the same installed packages; the default is the last
revision without transactions. While one broker is measured, the other broker is stopped (SIGSTOP). Each row has a ratio
of rates, and a ratio of records per second of processor time (broker and client), which is less affected by other load
on the machine. Results are written to build/bench/revisions.json.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from pairing import Pairs, table
from parts import add_folders, measure_parts
from peers.brokers import HERE, FairleadPeer, PeerFailedError, alone, cpu_seconds
from throughput import KILOBYTE, VALUE_BYTES, Bench

CHECKOUT = HERE.parent
BEFORE_TRANSACTIONS = "7a5a03fc"
PACKAGES = ("api", "broker", "client")
RATIO_MIN = 0.98
PARTITIONS = 6


class Rates(NamedTuple):
    """Rates of one run: records per second, and records per second of processor time."""

    by_time: float
    by_processor: float


class Revision:
    """A checkout with a running broker."""

    def __init__(self, checkout: Path, folder: Path, name: str) -> None:
        self._checkout = checkout
        self._environment = {"PYTHONPATH": os.pathsep.join(str(checkout / each) for each in PACKAGES)}
        with _environment(self._environment):
            self.peer = FairleadPeer.start(folder, name=name)
        self._bench = Bench(self.peer, self.peer, 0)

    def topic(self, durability: str) -> str:
        """Create a topic."""
        return self._bench.fairlead_topic(durability)

    def delete(self, topic: str) -> None:
        """Delete a topic."""
        self._bench.delete_fairlead_topic(topic)

    def run(self, side: str, topic: str, records: int, value_bytes: int) -> Rates:
        """Run one side of the revision's workload."""
        command = [sys.executable, str(self._checkout / "benchmarks/workloads/workload.py"), side]
        command += ["--url", self.peer.url, "--topic", topic, "--partitions", str(PARTITIONS)]
        command += ["--records", str(records), "--value-bytes", str(value_bytes)]
        broker, client = cpu_seconds(self.peer.process.pid), _children_seconds()
        done = subprocess.run(
            command, env={**os.environ, **self._environment}, capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            msg = f"{side} of {self.peer.name} ended with {done.returncode}: {done.stderr[-2000:]}"
            raise PeerFailedError(msg)
        used = cpu_seconds(self.peer.process.pid) - broker + _children_seconds() - client
        return Rates(float(json.loads(done.stdout)["records_per_second"]), records / used)


def _children_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


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
    revisions: list[Revision] = []
    try:
        for checkout, name in ((CHECKOUT, "now"), (old, "before")):
            revisions.append(Revision(checkout, folder, name))
        results = [
            pairs
            for value_bytes, records in ((VALUE_BYTES, options.records), (KILOBYTE, options.records // 5))
            for pairs in _measured(revisions, records, value_bytes, options.pairs)
        ]
    finally:
        for revision in revisions:
            revision.peer.stop()
        subprocess.run(["git", "-C", CHECKOUT, "worktree", "remove", "--force", old], check=True)
    print(table(results))
    return {"revision": options.revision, "cases": [each.document() for each in results]}


def _measured(revisions: list[Revision], records: int, value_bytes: int, rounds: int) -> list[Pairs]:
    peers = [revision.peer for revision in revisions]
    cases = ("produce, replicated", "produce, synced", "consume")
    rates: dict[str, list[list[Rates]]] = {case: [[] for _ in revisions] for case in cases}
    for number in range(rounds + 1):
        for at, revision in enumerate(revisions if number % 2 else revisions[::-1]):
            alone(revision.peer, peers)
            place = at if number % 2 else len(revisions) - 1 - at
            for durability in ("synced", "replicated"):
                topic = revision.topic(durability)
                measured = [("produce, " + durability, revision.run("produce", topic, records, value_bytes))]
                if durability == "replicated":
                    measured.append(("consume", revision.run("consume", topic, records, value_bytes)))
                revision.delete(topic)
                if number:  # the first round warms up
                    for case, found in measured:
                        rates[case][place].append(found)
    return [
        Pairs(
            f"{case} {value_bytes:,} B, {what}, compared with the earlier revision (in the column peer)",
            "records/s",
            *(tuple(getattr(each, field) for each in runs) for runs in rates[case]),
            target=RATIO_MIN,
        )
        for case in cases
        for what, field in (("by time", "by_time"), ("by processor time", "by_processor"))
    ]


def main() -> None:
    """Parse the command line, compare the revisions, and write the results file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", help="parts to measure (revisions)")
    parser.add_argument("--revision", default=BEFORE_TRANSACTIONS, help="revision of this repository")
    parser.add_argument("--records", type=int, default=2_000_000, help="number of 100-byte records of a run")
    parser.add_argument("--pairs", type=int, default=7, help="alternating rounds")
    add_folders(parser)
    measure_parts({"revisions": compare}, parser.parse_args(), "revisions.json")


if __name__ == "__main__":
    main()
