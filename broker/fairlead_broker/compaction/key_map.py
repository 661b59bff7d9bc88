"""The map of a round: for each key of the cleanable range, the offset of its newest record.

A slot contains the two halves of the key's hash and the distance of the offset from the map's first offset: 20 bytes.
The map is a hash table with open addressing that is filled to at most nine tenths; its operations work on whole
columns. Keys themselves are not stored: two keys with equal hashes of 128 bits count as one key.

One half of the hash determines the first slot of a key, and the other half the distance to each further slot, so that
long runs of used slots do not form even in a full map. The number of slots is a prime, so that the search for a key
reaches every slot.
"""

from __future__ import annotations

from math import isqrt
from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

SLOT_BYTES: Final = 20
BUFFER_BYTES_MIN: Final = 16 << 20
"""Smallest buffer, which has room for the keys of several windows."""
_SLOTS_MIN: Final = 3
_SLOTS_AT_FIRST: Final = 4093
_GROWN_ROWS: Final = 1 << 17
"""Number of slots that are moved together to a larger map, few enough that their copies need little memory."""


class KeyMap:
    """Newest offset of each key, for as many keys as fit in the buffer."""

    __slots__ = ("_base", "_count", "_lower", "_numbers", "_slots_max", "_upper")

    def __init__(self, buffer_bytes: int) -> None:
        """`buffer_bytes`: memory of the full map. A map whose offsets span more than 2^32 takes a fifth more."""
        self._slots_max = _prime(max(buffer_bytes // SLOT_BYTES, _SLOTS_MIN))
        self._base = self._count = 0
        self._numbers: NDArray[np.uint32] | NDArray[np.int64] = np.zeros(0, np.uint32)
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
        if not len(offsets):
            return True
        if not self._count:
            self._base = int(offsets[0])
        numbers = offsets - (self._base - 1)
        if numbers[-1] > np.iinfo(self._numbers.dtype).max:
            self._numbers = self._numbers.astype(np.int64)
        slots = self._find(upper, lower)
        new = self._numbers[slots] == 0
        needed = self._count + int(np.count_nonzero(new))
        if needed > _room(len(self._upper)):
            if needed > _room(self._slots_max) and self._count:
                return False
            self._grow(needed)
            slots = self._find(upper, lower)
        # Of several equal indexes, numpy keeps the value of the last one, which is the newest record.
        self._numbers[slots[~new]] = numbers[~new]
        self._insert(upper[new], lower[new], numbers[new], slots[new])
        return True

    def holds(self, upper: NDArray[np.uint64], lower: NDArray[np.uint64]) -> NDArray[np.bool_]:
        """Return whether the map has each key."""
        found: NDArray[np.bool_] = self._numbers[self._find(upper, lower)] != 0
        return found

    def newest_offsets(self) -> NDArray[np.int64]:
        """Return the newest offset of every key, in ascending order."""
        found: NDArray[np.int64] = self._numbers[self._numbers != 0].astype(np.int64)
        found += self._base - 1
        found.sort()
        return found

    def _allocate(self, slots: int) -> None:
        self._upper = np.zeros(slots, np.uint64)
        self._lower = np.zeros(slots, np.uint64)
        # Number of the newest record's offset, counted from 1 at the map's first offset, or 0 for an empty slot.
        self._numbers = np.zeros(slots, self._numbers.dtype)

    def _grow(self, keys: int) -> None:
        """Double the map until it has room for this number of keys; the buffer limits a map that has keys."""
        slots = len(self._upper)
        while _room(slots) < keys:
            slots = _prime(2 * slots)
            if _room(self._slots_max) >= keys:
                slots = min(slots, self._slots_max)
        upper, lower, numbers = self._upper, self._lower, self._numbers
        self._allocate(slots)
        self._count = 0
        for start in range(0, len(upper), _GROWN_ROWS):
            part = slice(start, start + _GROWN_ROWS)
            used = np.flatnonzero(numbers[part]) + start
            self._insert(upper[used], lower[used], numbers[used], self._home(upper[used]))

    def _home(self, upper: NDArray[np.uint64]) -> NDArray[np.int64]:
        """Return the first slot of each key."""
        return (upper % np.uint64(len(self._upper))).astype(np.int64)

    def _next(self, slots: NDArray[np.int64], lower: NDArray[np.uint64]) -> NDArray[np.int64]:
        """Return the slot that follows each slot in the search for a key."""
        count = len(self._upper)
        found = slots + 1 + (lower % np.uint64(count - 1)).astype(np.int64)
        found[found >= count] -= count
        return found

    def _find(self, upper: NDArray[np.uint64], lower: NDArray[np.uint64]) -> NDArray[np.int64]:
        """Return the slot of each key, or the empty slot at which the search for the key ends."""
        slots = self._home(upper)
        rows = np.arange(len(upper))
        while len(rows):
            at = slots[rows]
            other = (self._numbers[at] != 0) & (
                (self._upper[at] != upper[rows]) | (self._lower[at] != lower[rows])
            )
            rows = rows[other]
            slots[rows] = self._next(slots[rows], lower[rows])
        return slots

    def _insert(
        self,
        upper: NDArray[np.uint64],
        lower: NDArray[np.uint64],
        numbers: NDArray[np.uint32] | NDArray[np.int64],
        slots: NDArray[np.int64],
    ) -> None:
        """Store keys that the map lacks, each in the first free slot of its search from `slots` on.

        The last of equal keys wins.
        """
        while len(slots):
            free = self._numbers[slots] == 0
            # Several rows may claim the same free slot: the last row gets it, together with earlier rows of the same
            # key.
            at = slots[free]
            self._upper[at], self._lower[at] = upper[free], lower[free]
            self._numbers[at] = numbers[free]
            self._count += int(np.count_nonzero(self._numbers[at] == numbers[free]))
            other = (self._upper[slots] != upper) | (self._lower[slots] != lower)
            upper, lower, numbers = upper[other], lower[other], numbers[other]
            slots = self._next(slots[other], lower)


def _room(slots: int) -> int:
    """Return the number of keys at which a map of this size is full."""
    return slots * 9 // 10


def _prime(number: int) -> int:
    """Return the largest prime up to a number of at least `_SLOTS_MIN`."""
    candidate = number if number % 2 else number - 1
    while any(candidate % factor == 0 for factor in range(3, isqrt(candidate) + 1, 2)):
        candidate -= 2
    return candidate
