"""How much payload the batches of a topic may have, learnt from the refusals of batches that are too large.

Used by the queues of the accumulator, by batches that are cut, and by the sender. A refusal names the limit, and the
bytes of the batch show the compression of its payload, so an estimate is enough: a piece that is still too large is
refused and cut again. Pure.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Final

BATCH_BYTES_MIN: Final = 240
"""Size of the smallest batch of any codec: below such a limit cutting does not help."""

OVERHEAD_BYTES: Final = 640
"""What a batch of one empty record has without compression: header, metadata, padding."""

MARGIN: Final = 0.9
"""Records are not all alike: some pieces take more than the whole did on average."""


UNLIMITED: Final = sys.maxsize
"""Payload of a batch while no refusal has told that there is a limit."""


class BatchSizes:
    """How much payload the batches of one topic may have."""

    __slots__ = ("_batch_bytes", "batch_bytes", "fitting_bytes")

    def __init__(self, batch_bytes: int = UNLIMITED) -> None:
        self.batch_bytes = self._batch_bytes = batch_bytes
        """Payload at which a batch of records is full."""
        self.fitting_bytes = UNLIMITED
        """Payload that the topic accepts, as far as its refusals have shown."""

    def fit(self, payload_bytes: int) -> None:
        """Make batches no larger from here on."""
        self.fitting_bytes = min(self.fitting_bytes, payload_bytes)
        self.batch_bytes = min(self._batch_bytes, self.fitting_bytes)

    def forget(self) -> None:
        """Try full batches again: the limit may have been raised."""
        self.fitting_bytes = UNLIMITED
        self.batch_bytes = self._batch_bytes


def fitting_bytes(payload_bytes: int, encoded_bytes: int, limit_bytes: int) -> int | None:
    """Return the payload of a batch that keeps a limit on encoded bytes, as far as one that does not can tell.

    Half of it where the two say nothing: the limit may be on something else, or as small as what every batch has. None
    where no batch is small enough.
    """
    if limit_bytes < BATCH_BYTES_MIN:
        return None
    if limit_bytes < 2 * OVERHEAD_BYTES or encoded_bytes <= limit_bytes:
        return max(payload_bytes // 2, 1)
    share = (limit_bytes - OVERHEAD_BYTES) / (encoded_bytes - OVERHEAD_BYTES)
    return max(int(payload_bytes * share * MARGIN), 1)


def cuts(sizes: Iterable[int], bytes_max: int) -> list[int]:
    """Return where to cut records of these sizes so that each piece has at most so many bytes, or one record."""
    places: list[int] = []
    piece_bytes = 0
    for place, size in enumerate(sizes):
        if place and piece_bytes + size > bytes_max:
            places.append(place)
            piece_bytes = 0
        piece_bytes += size
    return places
