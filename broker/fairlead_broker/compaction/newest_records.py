"""Which records of a log are the newest for their keys, after a round has mapped the keys of its range.

In the mapped range, the newest records are those whose offsets are in the map. The second pass of a round therefore
hashes no key of this range again, and does not decode batches without a newest record. Below the mapped range, which
earlier rounds have cleaned, a record is the newest of its key if the map lacks the key.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from fairlead_api.batch.columns import nulls_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from fairlead_api.batch.header import BatchHeader
    from fairlead_broker.compaction.key_hashes import KeyHashes
    from fairlead_broker.compaction.key_map import KeyMap
    from fairlead_broker.compaction.windows import Window


class NewestRecords:
    """Newest records of a log below the end of the mapped range."""

    __slots__ = ("_hashes", "_map", "_map_from", "_offsets")

    def __init__(self, key_map: KeyMap, hashes: KeyHashes, map_from: int) -> None:
        """`map_from`: batches that end at or below this offset are not in the map; all other batches are."""
        self._map = key_map
        self._hashes = hashes
        self._map_from = map_from
        self._offsets = key_map.newest_offsets()

    def may_be_in(self, header: BatchHeader) -> bool:
        """Return whether a batch may have a newest record."""
        if header.next_offset <= self._map_from:
            return True
        first = int(np.searchsorted(self._offsets, header.base_offset))
        return first < len(self._offsets) and int(self._offsets[first]) < header.next_offset

    def of(self, window: Window) -> NDArray[np.bool_]:
        """Return which records of a window are the newest of their keys; a record without a key is never the newest."""
        offsets = window.offsets
        stays = np.zeros(len(offsets), np.bool_)
        unmapped = sum(batch.rows for batch in window.batches if batch.header.next_offset <= self._map_from)
        if unmapped:
            keys = window.columns.column(0).slice(0, unmapped)
            stays[:unmapped] = ~self._map.holds(*self._hashes.of(keys))
            stays[:unmapped] &= ~nulls_of(keys)
        mapped = offsets[unmapped:]
        if len(mapped):
            first, stop = np.searchsorted(self._offsets, (mapped[0], mapped[-1] + 1))
            stays[unmapped + np.searchsorted(mapped, self._offsets[first:stop])] = True
        return stays
