"""Kafka's rule for a single key."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead_api.partitioning import murmur2, partition_for_key


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_murmur2_is_kafkas(key: bytes, expected: int) -> None:
    """The hashes of keys equal the values in Kafka's own unit test."""
    assert murmur2(key) == expected


@given(st.binary(max_size=200), st.integers(1, 10_000))
def test_a_partition_is_the_hash_without_its_sign(key: bytes, count: int) -> None:
    """A key's partition is its hash without the sign bit, modulo the number of partitions."""
    assert partition_for_key(key, count) == (murmur2(key) & 0x7FFFFFFF) % count
