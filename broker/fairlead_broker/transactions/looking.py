"""Schedule of the reads by which leaders of partitions learn the outcomes of open transactions (rule 7.3.2).

A leader reads the record of a producer with an open transaction when its leadership begins, after a hint, after a batch
with a higher epoch, when the transaction is a second old, and every five seconds after that. One schedule serves all
partitions of a broker, so that one read covers up to a hundred producers. The module is pure; times are monotonic
seconds.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from typing import Final

from fairlead_api.identifiers import ProducerId

FIRST_SECONDS: Final = 1.0
"""Age in seconds of a transaction at which its producer's record is first read without a hint."""
INTERVAL_SECONDS: Final = 5.0
READ_MAX: Final = 100
"""Maximum number of producers in one read."""
READS_PER_SECOND: Final = 20


class Looks:
    """Times at which the records of producers with open transactions are due to be read."""

    def __init__(self) -> None:
        self._due: dict[ProducerId, float] = {}
        self._queue: list[tuple[float, ProducerId]] = []
        self._next_read = 0.0

    def __len__(self) -> int:
        return len(self._due)

    def opened(self, producer_id: ProducerId, now: float) -> None:
        """Schedule the first read of a producer's record after a transaction was opened in a partition."""
        if producer_id not in self._due:
            self._schedule(producer_id, now + FIRST_SECONDS)

    def hinted(self, producers: Iterable[ProducerId], now: float) -> None:
        """Schedule an immediate read of these producers, except those without an open transaction."""
        for producer_id in producers:
            if self._due.get(producer_id, now) > now:
                self._schedule(producer_id, now)

    def ended(self, producer_id: ProducerId) -> None:
        """Cancel the reads of a producer that has no open transaction in any partition."""
        self._due.pop(producer_id, None)

    def next_read(self) -> float | None:
        """Return the time of the next read, or None if no transaction is open."""
        self._drop_stale()
        return max(self._queue[0][0], self._next_read) if self._queue else None

    def take(self, now: float) -> list[ProducerId]:
        """Return the producers to read now, the longest waiting first, and schedule their next reads."""
        taken: list[ProducerId] = []
        if now < self._next_read:
            return taken
        while len(taken) < READ_MAX:
            self._drop_stale()
            if not self._queue or self._queue[0][0] > now:
                break
            producer_id = heapq.heappop(self._queue)[1]
            taken.append(producer_id)
            self._due[producer_id] = now + INTERVAL_SECONDS
        for producer_id in taken:
            heapq.heappush(self._queue, (now + INTERVAL_SECONDS, producer_id))
        if taken:
            self._next_read = now + 1 / READS_PER_SECOND
        return taken

    def _schedule(self, producer_id: ProducerId, at: float) -> None:
        self._due[producer_id] = at
        heapq.heappush(self._queue, (at, producer_id))

    def _drop_stale(self) -> None:
        """Drop queue entries of reads that have been cancelled or rescheduled."""
        while self._queue and self._due.get(self._queue[0][1]) != self._queue[0][0]:
            heapq.heappop(self._queue)
