"""Computes the partitions of all keys of a column at once.

The broker and, for tables, the SDK call this module. Keys of equal length are hashed together by numpy, four bytes of
all keys per step. In columns with many lengths or long keys, each distinct key is hashed once. The results must equal
those of `partition_for_key`.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from fairlead_api.batch.columns import nulls_of
from fairlead_api.partitioning import MURMUR2_SEED, POSITIVE_MASK, partition_for_key

NO_PARTITION: Final = -1
"""Result for a null key, whose partition the sender chooses."""
_M: Final = np.uint32(0x5BD1E995)
_R: Final = np.uint32(24)
_COLUMN_LENGTH_MAX: Final = 64
"""Maximum length in bytes of keys that numpy hashes; for longer keys, hashing each distinct key once is faster."""
_COLUMN_LENGTHS_MAX: Final = 16
"""Maximum number of different key lengths in a column that numpy hashes, because each length needs a separate pass."""


def partitions_for_keys(
    keys: pa.BinaryArray | pa.DictionaryArray, partition_count: int
) -> npt.NDArray[np.int32]:
    """Return the partition of each key; -1 for null keys."""
    if isinstance(keys, pa.DictionaryArray):
        return _by_distinct_keys(keys, partition_count)
    places = np.full(len(keys), NO_PARTITION, np.int32)
    if keys.null_count == len(keys):
        return places
    _, offsets_buffer, data = keys.buffers()
    assert offsets_buffer is not None, "a column with keys has offsets"
    assert data is not None, "Arrow keeps an empty buffer for a column without bytes"
    offsets = np.frombuffer(memoryview(offsets_buffer), np.int32, len(keys) + 1, 4 * keys.offset)
    lengths = np.diff(offsets)
    if keys.null_count:
        lengths[nulls_of(keys)] = NO_PARTITION
    present = _distinct_lengths(lengths)
    if len(present) > _COLUMN_LENGTHS_MAX or max(present) > _COLUMN_LENGTH_MAX:
        return _by_distinct_keys(keys.dictionary_encode(), partition_count)
    content = np.frombuffer(memoryview(data), np.uint8)
    for length in present:
        rows = lengths == length
        keys_as_rows = _rows_of_bytes(content, offsets[:-1][rows], length)
        places[rows] = _places(_murmur2_columns(keys_as_rows), partition_count)
    return places


def _distinct_lengths(lengths: npt.NDArray[np.int32]) -> list[int]:
    first = int(lengths[0])
    if first >= 0 and (lengths == first).all():
        return [first]
    return [int(length) for length in np.unique(lengths) if length >= 0]


def _rows_of_bytes(
    content: npt.NDArray[np.uint8], starts: npt.NDArray[np.int32], length: int
) -> npt.NDArray[np.uint8]:
    """Return keys of equal length as the rows of an array; keys that are adjacent in memory are not copied."""
    first = int(starts[0])
    if int(starts[-1]) - first == length * (len(starts) - 1):
        return content[first : first + length * len(starts)].reshape(len(starts), length)
    return content[starts[:, np.newaxis] + np.arange(length)]


def _by_distinct_keys(keys: pa.DictionaryArray, partition_count: int) -> npt.NDArray[np.int32]:
    distinct = [
        NO_PARTITION if key is None else partition_for_key(key, partition_count)
        for key in keys.dictionary.cast(pa.binary()).to_pylist()
    ]
    places = np.array([*distinct, NO_PARTITION], np.int32)
    return places[keys.indices.fill_null(len(distinct)).to_numpy(zero_copy_only=False)]


def _murmur2_columns(keys: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint32]:
    """Return the hashes of rows of equal length, by Kafka's variant of Austin Appleby's MurmurHash2.

    Each step is executed for all rows at once.
    """
    count, length = keys.shape
    whole = length // 4
    words = np.ascontiguousarray(keys[:, : 4 * whole]).view("<u4").astype(np.uint32, copy=False)
    hashes = np.full(count, np.uint32(MURMUR2_SEED ^ length), np.uint32)
    for number in range(whole):
        word = words[:, number] * _M
        word ^= word >> _R
        word *= _M
        hashes *= _M
        hashes ^= word
    for number in range(length - 1, 4 * whole - 1, -1):
        hashes ^= keys[:, number].astype(np.uint32) << np.uint32(8 * (number - 4 * whole))
    if length % 4:
        hashes *= _M
    hashes ^= hashes >> np.uint32(13)
    hashes *= _M
    hashes ^= hashes >> np.uint32(15)
    return hashes


def _places(hashes: npt.NDArray[np.uint32], partition_count: int) -> npt.NDArray[np.int32]:
    return ((hashes & np.uint32(POSITIVE_MASK)) % np.uint32(partition_count)).astype(np.int32)
