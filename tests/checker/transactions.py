"""Transactions of a history: their outcomes, what they wrote and read, and the cycles between them.

A transaction of unknown outcome is committed if a reader got one of its records. Between transactions, a write that
follows a write of another transaction in a partition is a ww edge. A transaction reads a partition up to a position: a
wr edge leads to the transaction from the writers of the records that it got and of the last record below the position,
and a rw edge leads from the transaction to the writer of the first record after the position.

A cycle of wr edges (G1c) is forbidden, because a record can be read only after its transaction was decided. Other
cycles are allowed and counted: cycles with ww edges (G0), because two partitions may order two transactions
differently; and cycles with rw edges, because two partitions may show a transaction at different moments. With one rw
edge the cycle is read skew (G-single), and with several rw edges it is an anti-dependency cycle (G2).
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any

from anomalies import Anomaly, Findings

Place = tuple[str, str]
"""Key and value of a record."""
Graph = Mapping[int, set[int]]
"""Transactions that precede each transaction."""
Logs = Mapping[str, list[tuple[int, int]]]
"""Offsets and transactions of all committed records of each key, in ascending order."""


class Transactions:
    """The transactions of a history."""

    def __init__(self, findings: Findings) -> None:
        self._findings = findings
        self._written: defaultdict[int, list[Place]] = defaultdict(list)
        self._writers: dict[Place, int] = {}
        self._outcomes: dict[int, str] = {}
        self._read: defaultdict[int, set[Place]] = defaultdict(set)
        self._positions: defaultdict[int, dict[str, int]] = defaultdict(dict)
        """Offset after the last read of each key in each transaction that reads."""
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
        position = event.get("position")
        if position is None and event["records"]:
            position = event["records"][-1][0] + 1
        if position is not None:
            positions = self._positions[txn]
            positions[key] = max(position, positions.get(key, 0))
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
        logs = self._logs(offsets)
        reads = self._reads(logs)
        order = _joined(_follows(logs), reads)
        for knot in _knots(reads):
            said = f"transactions {sorted(knot)} read each other's records"
            self._findings.note(Anomaly.CIRCULAR_FLOW, said)
        ordered = []
        for knot in _knots(order):
            ordered.append(knot)
            self._findings.note(Anomaly.WRITE_CYCLE, f"transactions {sorted(knot)} have no common order")
        overtaken = self._overtaken(logs)
        for knot in _knots(_joined(order, _turned(overtaken))):
            skewed = [
                txn for txn in sorted(knot) if _reaches(order, txn, overtaken.get(txn, set()) & knot, knot)
            ]
            for txn in skewed:
                said = f"transaction {txn} read a partition before and another one after the same transaction"
                self._findings.note(Anomaly.READ_SKEW, said)
            if not skewed and not any(each <= knot for each in ordered):
                said = f"transactions {sorted(knot)} overwrite what the others have read"
                self._findings.note(Anomaly.ANTI_DEPENDENCY, said)

    def _judge_answers(self, offsets: Mapping[Place, int]) -> None:
        """Find answers with a last stable offset inside a transaction that they show.

        The last stable offset of a partition is the first offset of an open transaction, or the end of the committed
        records. An answer may end between two records of a committed transaction only if another transaction begins
        there. A last stable offset at a record of the transaction itself, or after the first record of another
        transaction, shows that an open transaction was read.
        """
        first: dict[tuple[int, str], int] = {}
        last: dict[tuple[int, str], int] = {}
        writers: dict[tuple[str, int], int] = {}
        for (key, value), offset in offsets.items():
            txn = self._writers[key, value]
            writers[key, offset] = txn
            first[txn, key] = min(first.get((txn, key), offset), offset)
            last[txn, key] = max(last.get((txn, key), -1), offset)
        found = {
            (txn, key, stable)
            for key, stable, values in self._answers
            for txn in {self._writers[key, value] for value in values}
            if stable <= last.get((txn, key), -1)
            and (other := writers.get((key, stable))) is not None
            and (other == txn or first[other, key] != stable)
        }
        for txn, key, stable in sorted(found):
            said = f"{key}: transaction {txn} was read up to {stable}, and has a record at {last[txn, key]}"
            self._findings.note(Anomaly.INTERMEDIATE_READ, said)

    def _logs(self, offsets: Mapping[Place, int]) -> Logs:
        """Return the committed records of each key."""
        logs: defaultdict[str, list[tuple[int, int]]] = defaultdict(list)
        for (key, value), offset in offsets.items():
            txn = self._writers[key, value]
            if not self.is_aborted(txn):
                logs[key].append((offset, txn))
        for log in logs.values():
            log.sort()
        return logs

    def _readers(self) -> Iterator[int]:
        """Return the transactions that read and are committed, or have no records and thus need no commit."""
        for txn in self._positions:
            if txn not in self._written or not self.is_aborted(txn):
                yield txn

    def _reads(self, logs: Logs) -> Graph:
        """Return the wr edges: for each transaction, the writers of the records up to its positions."""
        before: dict[int, set[int]] = {}
        for txn in self._readers():
            found = {self._writers[place] for place in self._read[txn] if place in self._writers}
            for key, position in self._positions[txn].items():
                log = logs.get(key, [])
                at = bisect_left(log, (position,))
                if at:
                    found.add(log[at - 1][1])
            before[txn] = found - {txn}
        return before

    def _overtaken(self, logs: Logs) -> Graph:
        """Return the rw edges: for each transaction, the writers of the first records after its positions."""
        after: dict[int, set[int]] = {}
        for txn in self._readers():
            after[txn] = set()
            for key, position in self._positions[txn].items():
                log = logs.get(key, [])
                following = (log[at][1] for at in range(bisect_left(log, (position,)), len(log)))
                writer = next((each for each in following if each != txn), None)
                if writer is not None:
                    after[txn].add(writer)
        return after


def _follows(logs: Logs) -> Graph:
    """Return the ww edges: committed transactions whose records directly precede those of a transaction."""
    before: defaultdict[int, set[int]] = defaultdict(set)
    for log in logs.values():
        for (_, first), (_, second) in pairwise(log):
            if first != second:
                before[second].add(first)
    return before


def _turned(graph: Graph) -> Graph:
    """Return the graph with all edges reversed."""
    turned: defaultdict[int, set[int]] = defaultdict(set)
    for txn, others in graph.items():
        for other in others:
            turned[other].add(txn)
    return turned


def _joined(first: Graph, second: Graph) -> Graph:
    """Return the graph with the edges of both graphs."""
    return {txn: first.get(txn, set()) | second.get(txn, set()) for txn in (*first, *second)}


def _reaches(graph: Graph, start: int, wanted: set[int], among: set[int]) -> bool:
    """Return whether a path from a transaction leads to one of the wanted ones through the transactions `among`."""
    seen, open_ = {start}, [start]
    while open_ and wanted:
        for other in graph.get(open_.pop(), set()) & among:
            if other in wanted:
                return True
            if other not in seen:
                seen.add(other)
                open_.append(other)
    return False


def _knots(graph: Graph) -> Iterator[set[int]]:
    """Return the sets of transactions of which each has a path to all others (R. Tarjan's algorithm)."""
    numbers: dict[int, int] = {}
    lowest: dict[int, int] = {}
    stack: list[int] = []
    stacked: set[int] = set()
    for root in graph:
        if root in numbers:
            continue
        numbers[root] = lowest[root] = len(numbers)
        path = [(root, iter(graph.get(root, ())))]
        stack.append(root)
        stacked.add(root)
        while path:
            txn, others = path[-1]
            following = next(others, None)
            if following is None:
                path.pop()
                if path:
                    lowest[path[-1][0]] = min(lowest[path[-1][0]], lowest[txn])
                if lowest[txn] == numbers[txn]:
                    knot = {stack.pop()}
                    while txn not in knot:
                        knot.add(stack.pop())
                    stacked -= knot
                    if len(knot) > 1:
                        yield knot
            elif following not in numbers:
                numbers[following] = lowest[following] = len(numbers)
                path.append((following, iter(graph.get(following, ()))))
                stack.append(following)
                stacked.add(following)
            elif following in stacked:
                lowest[txn] = min(lowest[txn], numbers[following])
