"""Split of the ranges of one read into Spark tasks.

A task needs tens of milliseconds before its first record, so a read has only as many tasks as there are cores, or fewer
if there is little to read, and each task reads several partitions. A source in Python does not know how many cores a
Spark cluster has. The module does no I/O and is called by the readers.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from fairlead_spark.planning.ranges import OffsetRange

TASK_ROWS_MIN: Final = 10_000
"""Number of records that justify another task if no option sets the number of tasks."""


@dataclass(frozen=True, slots=True)
class TaskCount:
    """Limits for the number of tasks; None for a limit that the user did not set."""

    cores: int
    at_least: int | None = None
    at_most: int | None = None
    rows_max: int | None = None
    """Maximum number of records of one task; this limit is not used together with `at_most`."""

    def of(self, ranges: Sequence[OffsetRange]) -> int:
        """Return the number of tasks for the ranges, at least 1."""
        rows = _rows(ranges)
        wanted = min(len(ranges), self.cores, 1 + rows // TASK_ROWS_MIN)
        if self.at_least is not None:
            wanted = max(wanted, min(self.at_least, rows))
        if self.at_most is not None:
            wanted = min(wanted, self.at_most)
        return max(wanted, 1)


def share_out(ranges: Sequence[OffsetRange], count: TaskCount) -> list[tuple[OffsetRange, ...]]:
    """Distribute the ranges among tasks with similar numbers of records; no task is empty.

    Ranges are split only if there are fewer ranges than tasks, or if a range has more records than a task may have.
    """
    if not ranges:
        return []
    tasks = count.of(ranges)
    shares = _balanced(ranges, tasks)
    if count.rows_max is None or max(map(_rows, shares)) <= count.rows_max:
        return shares
    return _bounded(ranges, min(count.rows_max, _rows(ranges) // tasks))


def _rows(ranges: Sequence[OffsetRange]) -> int:
    return sum(part.size for part in ranges)


def _balanced(ranges: Sequence[OffsetRange], tasks: int) -> list[tuple[OffsetRange, ...]]:
    """Distribute the ranges among exactly this number of tasks."""
    pieces = _cut(ranges, tasks)
    if len(pieces) == tasks:
        return [(piece,) for piece in pieces]
    loads = [(0, task) for task in range(tasks)]
    shares: list[list[OffsetRange]] = [[] for _ in range(tasks)]
    for piece in sorted(pieces, key=lambda piece: -piece.size):
        load, task = heapq.heappop(loads)
        shares[task].append(piece)
        heapq.heappush(loads, (load + piece.size, task))
    return [tuple(sorted(share, key=lambda piece: (piece.topic, piece.partition))) for share in shares]


def _bounded(ranges: Sequence[OffsetRange], rows_max: int) -> list[tuple[OffsetRange, ...]]:
    """Distribute the ranges among tasks of at most `rows_max` records: at least rows / `rows_max` tasks.

    Two pieces of a range never fit into one task, as `RangeRead` requires: a range with several pieces is larger than
    `rows_max`, so the records of two pieces exceed `rows_max`.
    """
    shares: list[list[OffsetRange]] = []
    left = 0
    for part in ranges:
        for piece in _pieces(part, -(-part.size // rows_max)):
            if piece.size > left:
                shares.append([])
                left = rows_max
            shares[-1].append(piece)
            left -= piece.size
    return [tuple(share) for share in shares]


def _cut(ranges: Sequence[OffsetRange], tasks: int) -> list[OffsetRange]:
    """Split the largest ranges into contiguous pieces until there are as many pieces as tasks."""
    pieces = dict.fromkeys(range(len(ranges)), 1)
    largest = [(-part.size, index) for index, part in enumerate(ranges)]
    heapq.heapify(largest)
    for _ in range(tasks - len(ranges)):
        _, index = heapq.heappop(largest)
        pieces[index] += 1
        heapq.heappush(largest, (-ranges[index].size // pieces[index], index))
    return [piece for index, part in enumerate(ranges) for piece in _pieces(part, pieces[index])]


def _pieces(part: OffsetRange, count: int) -> list[OffsetRange]:
    bounds = [part.start + part.size * step // count for step in range(count + 1)]
    return [part.within(start, stop) for start, stop in pairwise(bounds) if stop > start]
