"""Which records of a window stay.

A record stays if it has a key, no newer record of the key is in the map, and it is not a tombstone whose horizon is
over. A tombstone goes only below the removal limit, since a follower that was away may still have the deleted record.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from fairlead_broker.compaction.fates import RoundFacts
    from fairlead_broker.compaction.key_hashes import KeyHashes
    from fairlead_broker.compaction.key_map import KeyMap
    from fairlead_broker.compaction.windows import Window


class KeptRows(msgspec.Struct, frozen=True):
    """Decision about each record of a window."""

    stays: NDArray[np.bool_]
    tombstones: NDArray[np.bool_]
    """Records without a value."""
    removed_to: int
    """Offset after the last expired tombstone that goes, or 0."""


def kept_rows(window: Window, key_map: KeyMap, hashes: KeyHashes, facts: RoundFacts) -> KeptRows:
    """Return which records of a window stay."""
    keys, values = window.columns.column(0), window.columns.column(1)
    if not len(keys):
        return KeptRows(np.empty(0, np.bool_), np.empty(0, np.bool_), 0)
    stays = key_map.newest(*hashes.of(keys)) <= window.offsets
    if keys.null_count:
        stays &= ~_nulls(keys)
    tombstones = _nulls(values) if values.null_count else np.zeros(len(stays), np.bool_)
    if not tombstones.any():
        return KeptRows(stays, tombstones, 0)
    counts = [batch.rows for batch in window.batches]
    horizons = np.repeat(np.array([batch.horizon_us for batch in window.batches], np.int64), counts)
    gone = stays & tombstones & (horizons < facts.now_us) & (window.offsets < facts.removal_limit)
    gone &= window.offsets >= facts.log_start
    removed = np.flatnonzero(gone)
    return KeptRows(stays & ~gone, tombstones, int(window.offsets[removed[-1]]) + 1 if len(removed) else 0)


def _nulls(column: object) -> NDArray[np.bool_]:
    return column.is_null().to_numpy(zero_copy_only=False)  # type: ignore[attr-defined, no-any-return]
