"""Payload limits of a topic's batches, learnt from refusals of batches that were too large.

The accumulator's queues, batches that are cut, and the sender use this module. A refusal names the limit, and the
encoded size of the batch shows how well its payload compresses. An estimate is sufficient, because a piece that is
still too large is refused and cut again. The module performs no I/O.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Final

BATCH_BYTES_MIN: Final = 240
"""Size of the smallest batch of any codec; cutting a batch cannot satisfy a lower limit."""

OVERHEAD_BYTES: Final = 640
"""Size of a batch of one empty record without compression: header, metadata, padding."""

MARGIN: Final = 0.9
"""Safety factor of the estimate: a piece may need more encoded bytes per payload byte than the whole batch."""


UNLIMITED: Final = sys.maxsize
"""Payload limit of a batch as long as no refusal has reported a limit."""


class BatchSizes:
    """Payload limits of the batches of one topic."""

    __slots__ = ("_batch_bytes", "batch_bytes", "fitting_bytes")

    def __init__(self, batch_bytes: int = UNLIMITED) -> None:
        self.batch_bytes = self._batch_bytes = batch_bytes
        """Payload at which a batch of records is full."""
        self.fitting_bytes = UNLIMITED
        """Largest payload that the topic accepts, according to its refusals so far."""

    def fit(self, payload_bytes: int) -> None:
        """Limit the payload of later batches."""
        self.fitting_bytes = min(self.fitting_bytes, payload_bytes)
        self.batch_bytes = min(self._batch_bytes, self.fitting_bytes)

    def forget(self) -> None:
        """Remove the learnt limit, because the topic's limit may have been raised."""
        self.fitting_bytes = UNLIMITED
        self.batch_bytes = self._batch_bytes


def fitting_bytes(payload_bytes: int, encoded_bytes: int, limit_bytes: int) -> int | None:
    """Estimate the payload that satisfies a limit on encoded bytes, from a batch that exceeds the limit.

    Returns half of the payload if the two sizes allow no estimate: perhaps the limit does not apply to encoded bytes,
    or is close to the overhead of every batch. Returns None if even the smallest batch exceeds the limit.
    """
    if limit_bytes < BATCH_BYTES_MIN:
        return None
    if limit_bytes < 2 * OVERHEAD_BYTES or encoded_bytes <= limit_bytes:
        return max(payload_bytes // 2, 1)
    share = (limit_bytes - OVERHEAD_BYTES) / (encoded_bytes - OVERHEAD_BYTES)
    return max(int(payload_bytes * share * MARGIN), 1)


def cuts(sizes: Iterable[int], bytes_max: int) -> list[int]:
    """Return the indexes at which to cut records so that each piece has at most `bytes_max` bytes, or one record."""
    places: list[int] = []
    piece_bytes = 0
    for place, size in enumerate(sizes):
        if place and piece_bytes + size > bytes_max:
            places.append(place)
            piece_bytes = 0
        piece_bytes += size
    return places
