"""Which records of a window stay.

A record stays if it is the newest record of its key and is not a tombstone with an expired horizon. Only tombstones
below the removal limit are removed, since a follower that was away may still have the deleted record.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import numpy as np
from numpy.typing import NDArray

from fairlead_api.batch.columns import nulls_of

if TYPE_CHECKING:
    from fairlead_broker.compaction.fates import RoundFacts
    from fairlead_broker.compaction.newest_records import NewestRecords
    from fairlead_broker.compaction.windows import Window


class KeptRows(msgspec.Struct, frozen=True):
    """Decision about each record of a window."""

    stays: NDArray[np.bool_]
    tombstones: NDArray[np.bool_]
    """Records without a value."""
    removed_to: int
    """Offset after the last expired tombstone that is removed, or 0."""


def kept_rows(window: Window, newest: NewestRecords, facts: RoundFacts) -> KeptRows:
    """Return which records of a window stay."""
    values = window.columns.column(1)
    stays = newest.of(window)
    tombstones = nulls_of(values)
    if not tombstones.any():
        return KeptRows(stays, tombstones, 0)
    counts = [batch.rows for batch in window.batches]
    horizons = np.repeat(np.array([batch.horizon_us for batch in window.batches], np.int64), counts)
    gone = stays & tombstones & (horizons < facts.now_us) & (window.offsets < facts.removal_limit)
    removed = np.flatnonzero(gone)
    return KeptRows(stays & ~gone, tombstones, int(window.offsets[removed[-1]]) + 1 if len(removed) else 0)
