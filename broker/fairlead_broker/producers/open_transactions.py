"""Open transactions of a partition, and the last stable offset that follows from them (rule 7.2.6).

`ProducerState` owns one object. The state is replayed from the log, so all replicas have the same open transactions.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Final

from fairlead_api.identifiers import Offset, ProducerId

OPEN_MAX: Final = 10_000
"""Maximum number of open transactions in a partition."""


class OpenTransactions:
    """First offsets of open transactions by producer, and of transactions whose marker might not be committed yet."""

    __slots__ = ("_ending", "first_offsets")

    def __init__(
        self, opened: Iterable[tuple[ProducerId, Offset]] = (), ending: Iterable[tuple[Offset, Offset]] = ()
    ) -> None:
        # Transactions are opened in the order of offsets, so the first one has the lowest first offset.
        self.first_offsets: dict[ProducerId, Offset] = dict(sorted(opened, key=lambda each: each[1]))
        """First offset of each open transaction, in ascending order. Other modules only read the mapping."""
        self._ending: deque[tuple[Offset, Offset]] = deque(ending)

    def __len__(self) -> int:
        return len(self.first_offsets)

    def __contains__(self, producer_id: ProducerId) -> bool:
        return producer_id in self.first_offsets

    def opened(self, producer_id: ProducerId, first_offset: Offset) -> None:
        """Apply the first batch of a transaction."""
        self.first_offsets[producer_id] = first_offset

    def ended(self, producer_id: ProducerId, marker_offset: Offset) -> None:
        """Apply a marker; if its producer has no open transaction, the marker has no effect."""
        first = self.first_offsets.pop(producer_id, None)
        if first is not None:
            self._ending.append((marker_offset, first))

    def stable_offset(self, high_watermark: Offset, log_start: Offset) -> Offset:
        """Return the last stable offset: readers of committed records read the offsets below it.

        The last stable offset is the lowest of the high watermark and of the first offsets of transactions that are
        open or whose marker is not below the high watermark, but never lower than the log start.
        """
        ending = self._ending
        if not ending and not self.first_offsets:
            return max(high_watermark, log_start)
        self.committed(high_watermark)
        result = high_watermark
        if self.first_offsets:
            result = min(result, next(iter(self.first_offsets.values())))
        if ending:
            result = min(result, *(first for _, first in ending))
        return max(result, log_start)

    def committed(self, high_watermark: Offset) -> None:
        """Drop the transactions whose marker is below a high watermark."""
        ending = self._ending
        while ending and ending[0][0] < high_watermark:
            ending.popleft()

    def copy(self) -> OpenTransactions:
        """Return an independent copy."""
        return OpenTransactions(self.first_offsets.items(), self._ending)
