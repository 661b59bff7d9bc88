"""Which partition a key belongs to: Kafka's rule, so that both systems place a key alike.

Called by the SDK and by the easy produce path of the server for single keys; `batch_partitioning` is the form for
columns. Must not know Arrow, nor how records without a key are spread.
"""

from __future__ import annotations

from typing import Final

from murmurhash2 import murmurhash2

MURMUR2_SEED: Final = 0x9747B28C
"""Kafka's seed (org.apache.kafka.common.utils.Utils.murmur2)."""
_SIGN: Final = 1 << 31
POSITIVE_MASK: Final = 0x7FFFFFFF


def murmur2(key: bytes) -> int:
    """Return Kafka's 32-bit murmur2 of a key, signed as Java has it."""
    return (murmurhash2(key, MURMUR2_SEED) ^ _SIGN) - _SIGN


def partition_for_key(key: bytes, partition_count: int) -> int:
    """Return the partition of a key among so many: the hash without its sign, modulo the count."""
    return int(murmurhash2(key, MURMUR2_SEED) & POSITIVE_MASK) % partition_count
