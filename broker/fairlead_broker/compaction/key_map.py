"""The map of a round: for each key of the cleanable range, the offset of its newest record.

A slot contains the two halves of the key's hash and the offset: 24 bytes. The map is a hash table with open addressing
that is filled to at most three quarters; its operations work on whole columns. Keys themselves are not stored: two keys
with equal hashes of 128 bits count as one key.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

SLOT_BYTES: Final = 24
BUFFER_BYTES_MIN: Final = 16 << 20
"""Smallest buffer, which has room for the keys of several windows."""
_SLOTS_AT_FIRST: Final = 1 << 12


class KeyMap:
    """Newest offset of each key, for as many keys as fit in the buffer."""

    __slots__ = ("_count", "_lower", "_next_offsets", "_slots_max", "_upper")

    def __init__(self, buffer_bytes: int) -> None:
        """`buffer_bytes`: memory of the full map. The number of slots is the largest power of two that fits."""
        self._slots_max = 1 << ((buffer_bytes // SLOT_BYTES).bit_length() - 1)
        self._count = 0
        self._allocate(min(_SLOTS_AT_FIRST, self._slots_max))

    def __len__(self) -> int:
        """Return the number of keys."""
        return self._count

    @property
    def used_ratio(self) -> float:
        """Number of keys divided by the number of keys for which the buffer has room."""
        return self._count / _room(max(self._slots_max, len(self._upper)))

    def put(self, upper: NDArray[np.uint64], lower: NDArray[np.uint64], offsets: NDArray[np.int64]) -> bool:
        """Store the offsets of keys; later offsets replace earlier ones. Returns False if there is no room.

        `offsets` must be in ascending order, and above all stored offsets. If there is no room, the map is unchanged.
        The first records always have room: an empty map grows beyond its buffer rather than refuse them.
        """
        slots = self._find(upper, lower)
        new = self._next_offsets[slots] == 0
        needed = self._count + int(np.count_nonzero(new))
        if needed > _room(len(self._upper)):
            if needed > _room(self._slots_max) and self._count:
                return False
            self._grow(needed)
            slots = self._find(upper, lower)
        # Of several equal indexes, numpy keeps the value of the last one, which is the newest record.
        self._next_offsets[slots[~new]] = offsets[~new] + 1
        self._insert(upper[new], lower[new], offsets[new] + 1, slots[new])
        return True

    def holds(self, upper: NDArray[np.uint64], lower: NDArray[np.uint64]) -> NDArray[np.bool_]:
        """Return whether the map has each key."""
        found: NDArray[np.bool_] = self._next_offsets[self._find(upper, lower)] != 0
        return found

    def newest_offsets(self) -> NDArray[np.int64]:
        """Return the newest offset of every key, in ascending order."""
        found: NDArray[np.int64] = self._next_offsets[self._next_offsets != 0]
        found -= 1
        found.sort()
        return found

    def _allocate(self, slots: int) -> None:
        self._upper = np.zeros(slots, np.uint64)
        self._lower = np.zeros(slots, np.uint64)
        # Offset after the newest record, or 0 for an empty slot.
        self._next_offsets = np.zeros(slots, np.int64)

    def _grow(self, keys: int) -> None:
        """Double the map until it has room for this number of keys."""
        slots = len(self._upper)
        while _room(slots) < keys:
            slots *= 2
        used = np.flatnonzero(self._next_offsets)
        upper, lower, next_offsets = self._upper[used], self._lower[used], self._next_offsets[used]
        self._allocate(slots)
        self._count = 0
        self._insert(upper, lower, next_offsets, self._home(upper))

    def _home(self, upper: NDArray[np.uint64]) -> NDArray[np.int64]:
        return (upper & np.uint64(len(self._upper) - 1)).astype(np.int64)

    def _find(self, upper: NDArray[np.uint64], lower: NDArray[np.uint64]) -> NDArray[np.int64]:
        """Return the slot of each key, or the empty slot at which the search for the key ends."""
        slots, mask = self._home(upper), len(self._upper) - 1
        rows = np.arange(len(upper))
        while len(rows):
            at = slots[rows]
            other = (self._next_offsets[at] != 0) & (
                (self._upper[at] != upper[rows]) | (self._lower[at] != lower[rows])
            )
            rows = rows[other]
            slots[rows] = (slots[rows] + 1) & mask
        return slots

    def _insert(
        self,
        upper: NDArray[np.uint64],
        lower: NDArray[np.uint64],
        next_offsets: NDArray[np.int64],
        slots: NDArray[np.int64],
    ) -> None:
        """Store keys that the map lacks, each in the first free slot from `slots` on. The last of equal keys wins."""
        mask = len(self._upper) - 1
        while len(slots):
            free = self._next_offsets[slots] == 0
            # Several rows may claim the same free slot: the last row gets it, together with earlier rows of the same
            # key.
            at = slots[free]
            self._upper[at], self._lower[at] = upper[free], lower[free]
            self._next_offsets[at] = next_offsets[free]
            self._count += int(np.count_nonzero(self._next_offsets[at] == next_offsets[free]))
            other = (self._upper[slots] != upper) | (self._lower[slots] != lower)
            upper, lower, next_offsets = upper[other], lower[other], next_offsets[other]
            slots = (slots[other] + 1) & mask


def _room(slots: int) -> int:
    """Return the number of keys at which a map of this size is full."""
    return slots * 3 // 4
