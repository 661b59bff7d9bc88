"""Transactions of a history: their outcomes, what they wrote and read, and the cycles between them.

A transaction of unknown outcome is committed if a reader got one of its records. Between transactions, a write that
follows a write of another transaction in a partition is a ww edge, and a read of another transaction's record is a wr
edge. A cycle with a ww edge (G0) is allowed, because two partitions may order two transactions differently. A cycle of
wr edges (G1c) is not, because a record can be read only after its transaction was decided.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise
from typing import Any

from anomalies import Anomaly, Findings

Place = tuple[str, str]
"""Key and value of a record."""
Graph = Mapping[int, set[int]]
"""Transactions that precede each transaction."""


class Transactions:
    """The transactions of a history."""

    def __init__(self, findings: Findings) -> None:
        self._findings = findings
        self._written: defaultdict[int, list[Place]] = defaultdict(list)
        self._writers: dict[Place, int] = {}
        self._outcomes: dict[int, str] = {}
        self._read: defaultdict[int, set[Place]] = defaultdict(set)
        self._answers: list[tuple[str, int, list[str]]] = []
        """Key, last stable offset and values of each answer with a record of a transaction."""
        self._visible: set[int] = set()

    def __bool__(self) -> bool:
        return bool(self._written)

    # -- events

    def wrote(self, txn: int, key: str, values: list[str]) -> None:
        """Record the values that a transaction sends."""
        for value in values:
            self._written[txn].append((key, value))
            self._writers[key, value] = txn

    def ended(self, txn: int, outcome: str) -> None:
        """Record the answer to a commit or an abort: `ok`, `fail` or `info`."""
        self._outcomes[txn] = outcome

    def polled(self, event: Mapping[str, Any]) -> None:
        """Record an answer to a reader, and find records that a transaction read before its own commit."""
        key, txn = event["key"], event.get("txn")
        values = [value for _, value in event["records"] if (key, value) in self._writers]
        self._visible |= {self._writers[key, value] for value in values}
        if values and "last_stable_offset" in event:
            self._answers.append((key, event["last_stable_offset"], values))
        if txn is None:
            return
        for offset, value in event["records"]:
            if self._writers.get((key, value)) == txn:
                said = f"{key}@{offset}: transaction {txn} read its own {value!r}"
                self._findings.note(Anomaly.PRECOMMITTED_READ, said)
            self._read[txn].add((key, value))

    # -- judging

    def is_aborted(self, txn: int | None) -> bool:
        """Return whether a transaction is aborted, or has an unknown outcome and no record that a reader got."""
        if txn is None:
            return False
        outcome = self._outcomes.get(txn, "info")
        return outcome == "fail" or (outcome == "info" and txn not in self._visible)

    def is_visible(self, txn: int | None) -> bool:
        """Return whether readers got a record of a transaction."""
        return txn in self._visible

    def judge(self, offsets: Mapping[Place, int]) -> None:
        """Find intermediate reads and cycles; `offsets` maps each transactional record to its offset."""
        self._judge_answers(offsets)
        follows, reads = self._follows(offsets), self._reads()
        circle = _cycle(reads)
        if circle:
            said = f"transactions {circle} read each other's records"
            self._findings.note(Anomaly.CIRCULAR_FLOW, said)
            return
        circle = _cycle({txn: follows.get(txn, set()) | reads.get(txn, set()) for txn in self._written})
        if circle:
            self._findings.note(Anomaly.WRITE_CYCLE, f"transactions {circle} have no common order")

    def _judge_answers(self, offsets: Mapping[Place, int]) -> None:
        """Find answers with a last stable offset between two records of a transaction in the partition."""
        last: dict[tuple[int, str], int] = {}
        for (key, value), offset in offsets.items():
            txn = self._writers[key, value]
            last[txn, key] = max(last.get((txn, key), -1), offset)
        found = {
            (txn, key, stable)
            for key, stable, values in self._answers
            for txn in {self._writers[key, value] for value in values}
            if stable <= last.get((txn, key), -1)
        }
        for txn, key, stable in sorted(found):
            said = f"{key}: transaction {txn} was read up to {stable}, and has a record at {last[txn, key]}"
            self._findings.note(Anomaly.INTERMEDIATE_READ, said)

    def _follows(self, offsets: Mapping[Place, int]) -> Graph:
        """Return the ww edges: committed transactions whose records directly precede those of a transaction."""
        logs: defaultdict[str, list[tuple[int, int]]] = defaultdict(list)
        for (key, value), offset in offsets.items():
            txn = self._writers[key, value]
            if not self.is_aborted(txn):
                logs[key].append((offset, txn))
        before: defaultdict[int, set[int]] = defaultdict(set)
        for log in logs.values():
            for (_, first), (_, second) in pairwise(sorted(log)):
                if first != second:
                    before[second].add(first)
        return before

    def _reads(self) -> Graph:
        """Return the wr edges: transactions whose records a committed transaction read."""
        return {
            txn: {self._writers[place] for place in places if place in self._writers} - {txn}
            for txn, places in self._read.items()
            if not self.is_aborted(txn) or txn not in self._written
        }


def _cycle(graph: Graph) -> list[int]:
    """Return the transactions of one cycle, or nothing."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []
