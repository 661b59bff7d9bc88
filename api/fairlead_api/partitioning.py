"""Assignment of a key to a partition by Kafka's rule, so that Fairlead and Kafka assign a key to the same partition.

The SDK and the broker's topic produce calls use this module for single keys; `batch.partitioning` handles whole
columns. This module must not depend on Arrow or on how records without a key are distributed.
"""

from __future__ import annotations

from typing import Final

from murmurhash2 import murmurhash2

MURMUR2_SEED: Final = 0x9747B28C
"""Kafka's seed (org.apache.kafka.common.utils.Utils.murmur2)."""
_SIGN: Final = 1 << 31
POSITIVE_MASK: Final = 0x7FFFFFFF


def murmur2(key: bytes) -> int:
    """Return Kafka's 32-bit murmur2 hash of a key as a signed integer, as in Java."""
    return (murmurhash2(key, MURMUR2_SEED) ^ _SIGN) - _SIGN


def partition_for_key(key: bytes, partition_count: int) -> int:
    """Return the partition of a key: the hash without its sign bit, modulo the number of partitions."""
    return int(murmurhash2(key, MURMUR2_SEED) & POSITIVE_MASK) % partition_count
