"""128-bit hashes of the keys of records, computed for a whole column at once.

`key_map` stores hashes instead of keys. Each hash is four sums of the key's 32-bit words, each word multiplied by a
number that is drawn at random for each round, modulo 2^64, of which the upper half is kept (multilinear hashing). For
any two different keys, the probability of equal hashes is 2^-128, even if a client has chosen the keys, since the
numbers are drawn after the keys were stored. The hash of a key does not depend on the other keys of the column.
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
_WORD_BYTES: Final = 4
_LANES: Final = 4
LONG_KEY_BYTES: Final = 256
"""Keys beyond this size are hashed one by one with BLAKE2b, whose time per key is small compared with their size."""
_WORDS_MAX: Final = LONG_KEY_BYTES // _WORD_BYTES
_UPPER_HALF: Final = np.uint64(0xFFFF_FFFF_0000_0000)
_HALF_BITS: Final = np.uint64(32)


class KeyHashes:
    """Hash function of one round."""

    __slots__ = ("_multipliers", "_seed")

    def __init__(self, seed: bytes) -> None:
        """`seed`: `SEED_BYTES` random bytes, drawn for this round."""
        assert len(seed) == SEED_BYTES, f"a seed of {len(seed)} bytes"
        self._seed = seed
        # Each lane has one multiplier for each word, one for the length, and one number that is added.
        drawn = hashlib.shake_256(seed).digest(8 * _LANES * (_WORDS_MAX + 2))
        self._multipliers = np.frombuffer(drawn, np.uint64).reshape(_LANES, _WORDS_MAX + 2)

    def of(self, keys: pa.Array[Any]) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
        """Return the two halves of the hash of each key in a binary column. The hashes of null keys have no meaning."""
        count = len(keys)
        _, offsets, data = keys.buffers()
        assert offsets is not None, "a binary column with rows has offsets"
        bounds = np.frombuffer(memoryview(offsets), np.int32, count + 1, keys.offset * 4).astype(np.int64)
        content = np.frombuffer(memoryview(data), np.uint8) if data is not None else np.empty(0, np.uint8)
        content = content[int(bounds[0]) : int(bounds[-1])]
        bounds -= bounds[0]
        lengths = np.diff(bounds)
        sums = self._multipliers[:, :1] * lengths.astype(np.uint64) + self._multipliers[:, 1:2]
        long = np.flatnonzero(lengths > LONG_KEY_BYTES)
        words = np.zeros(len(content) + _WORD_BYTES, np.uint8)
        words[: len(content)] = content
        # An unaligned word begins at every byte.
        self._add_words(np.ndarray(len(content) + 1, "<u4", words, 0, (1,)), bounds, lengths, sums)
        upper = (sums[0] & _UPPER_HALF) | (sums[1] >> _HALF_BITS)
        lower = (sums[2] & _UPPER_HALF) | (sums[3] >> _HALF_BITS)
        for row in long.tolist():
            key = content[bounds[row] : bounds[row + 1]]
            digest = hashlib.blake2b(key.tobytes(), digest_size=16, key=self._seed).digest()
            upper[row], lower[row] = np.frombuffer(digest, np.uint64)
        return upper, lower

    def _add_words(
        self,
        words: NDArray[np.uint32],
        bounds: NDArray[np.int64],
        lengths: NDArray[np.int64],
        sums: NDArray[np.uint64],
    ) -> None:
        """Add the multiplied words of each key of at most `LONG_KEY_BYTES` bytes to its sums."""
        rows = np.flatnonzero(lengths <= LONG_KEY_BYTES)
        everything = len(rows) == len(lengths)
        for number in range(_WORDS_MAX):
            start = number * _WORD_BYTES
            longer = lengths[rows] > start
            if not longer.all():
                rows, everything = rows[longer], False
                if not len(rows):
                    return
            found = words[bounds[rows] + start].astype(np.uint64)
            left = lengths[rows] - start
            partial = np.flatnonzero(left < _WORD_BYTES)
            if len(partial):
                # The last word of a key is cut before the bytes of the next key.
                found[partial] &= (np.uint64(1) << (left[partial] * 8).astype(np.uint64)) - np.uint64(1)
            for lane in range(_LANES):
                added = found * self._multipliers[lane, number + 2]
                if everything:
                    sums[lane] += added
                else:
                    sums[lane][rows] += added
