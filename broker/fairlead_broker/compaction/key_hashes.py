"""128-bit hashes of the keys of records, computed for a whole column at once.

`key_map` stores hashes instead of keys. Each hash consists of the upper halves of four sums modulo 2^64. A sum has one
product for every two 32-bit words of the key; before the multiplication, random numbers that are drawn for each round
are added to the words (multilinear hashing with half the multiplications, Lemire and Kaser 2014). For any two different
keys, the probability of equal hashes is 2^-128, even if a client has chosen the keys, since the numbers are drawn after
the keys were stored. The length of a key is multiplied by a separate random number, so keys of different lengths differ
by that product alone. The hash of a key does not depend on the other keys of the column.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any, Final

import numpy as np

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray

SEED_BYTES: Final = 32
"""Number of random bytes from which the multipliers of a round are derived."""
_WORD_BYTES: Final = 8
_LANES: Final = 4
LONG_KEY_BYTES: Final = 256
"""Keys beyond this size are hashed one by one with BLAKE2b; the time per key is then small compared with its size."""
_WORDS_MAX: Final = LONG_KEY_BYTES // _WORD_BYTES
_BLOCK_ROWS: Final = 16_384
"""Number of keys that are hashed together. Measured: with larger blocks, the arrays no longer fit in the processor's
cache, and hashing takes three times as long.
"""
_LOWER_HALF: Final = np.uint64(0x0000_0000_FFFF_FFFF)
_UPPER_HALF: Final = np.uint64(0xFFFF_FFFF_0000_0000)
_HALF_BITS: Final = np.uint64(32)


class KeyHashes:
    """Hash function of one round."""

    __slots__ = ("_added", "_lengths", "_seed", "_start")

    def __init__(self, seed: bytes) -> None:
        """`seed`: `SEED_BYTES` random bytes, drawn for this round."""
        assert len(seed) == SEED_BYTES, f"a seed of {len(seed)} bytes"
        self._seed = seed
        # Each lane, which computes one of the four sums of a key, has two numbers for the length, and two numbers for
        # the halves of each word.
        drawn = hashlib.shake_256(seed).digest(8 * _LANES * 2 * (_WORDS_MAX + 1))
        numbers = np.frombuffer(drawn, np.uint64).reshape(_LANES, _WORDS_MAX + 1, 2)
        self._lengths, self._start = numbers[:, 0, 0], numbers[:, 0, 1]
        self._added = numbers[:, 1:]

    def of(self, keys: pa.Array[Any]) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
        """Return the two halves of the hash of each key in a binary column. The hashes of null keys have no meaning."""
        count = len(keys)
        _, offsets, data = keys.buffers()
        assert offsets is not None, "a binary column with rows has offsets"
        bounds = np.frombuffer(memoryview(offsets), np.int32, count + 1, keys.offset * 4).astype(np.int64)
        content = np.frombuffer(memoryview(data), np.uint8) if data is not None else np.empty(0, np.uint8)
        upper, lower = np.empty(count, np.uint64), np.empty(count, np.uint64)
        for start in range(0, count, _BLOCK_ROWS):
            stop = min(start + _BLOCK_ROWS, count)
            part = bounds[start : stop + 1]
            sums = self._sums(content[int(part[0]) : int(part[-1])], part - part[0])
            upper[start:stop] = (sums[0] & _UPPER_HALF) | (sums[1] >> _HALF_BITS)
            lower[start:stop] = (sums[2] & _UPPER_HALF) | (sums[3] >> _HALF_BITS)
        for row in np.flatnonzero(np.diff(bounds) > LONG_KEY_BYTES).tolist():
            key = content[bounds[row] : bounds[row + 1]]
            digest = hashlib.blake2b(key.tobytes(), digest_size=16, key=self._seed).digest()
            upper[row], lower[row] = np.frombuffer(digest, np.uint64)
        return upper, lower

    def _sums(self, content: NDArray[np.uint8], bounds: NDArray[np.int64]) -> list[NDArray[np.uint64]]:
        """Return the sums of all keys, by lane. The sums of keys beyond `LONG_KEY_BYTES` bytes have no meaning."""
        lengths = np.diff(bounds)
        # With keys ordered by length, the keys that have a word at a given place form a slice.
        order = np.argsort(np.minimum(lengths, LONG_KEY_BYTES + 1).astype(np.uint16), kind="stable")
        ordered = lengths[order]
        starts = bounds[:-1][order]
        padded = np.zeros(len(content) + _WORD_BYTES, np.uint8)
        padded[: len(content)] = content
        # An unaligned word can begin at any byte.
        words = np.ndarray(len(content) + 1, "<u8", padded, 0, (1,))
        found = ordered.astype(np.uint64)
        sums = [
            found * factor + start
            for factor, start in zip(self._lengths.tolist(), self._start.tolist(), strict=True)
        ]
        stop = int(np.searchsorted(ordered, LONG_KEY_BYTES, "right"))
        first = 0
        for number in range(_WORDS_MAX):
            at = number * _WORD_BYTES
            first = int(np.searchsorted(ordered, at, "right"))
            if first >= stop:
                break
            whole = int(np.searchsorted(ordered, at + _WORD_BYTES, "left"))
            found = words[starts[first:stop] + at]
            # The last word of a key is cut off where the bytes of the next key begin.
            partial = ordered[first : min(whole, stop)] - at
            found[: len(partial)] &= (np.uint64(1) << (partial * 8).astype(np.uint64)) - np.uint64(1)
            upper, lower = found >> _HALF_BITS, found & _LOWER_HALF
            for lane, total in enumerate(sums):
                one, other = self._added[lane, number]
                total[first:stop] += (upper + one) * (lower + other)
        restored = np.empty_like(order)
        restored[order] = np.arange(len(order))
        return [total[restored] for total in sums]
