"""Kafka's rule for the partitions of keys, applied to a whole column."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead_api.batch.partitioning import partitions_for_keys
from fairlead_api.partitioning import partition_for_key

Keys = list[bytes | None]
COLUMNS = st.one_of(
    st.lists(st.none() | st.binary(max_size=9), max_size=40),
    st.lists(st.none() | st.binary(max_size=100), max_size=60),
    st.integers(0, 70).flatmap(
        lambda length: st.lists(st.binary(min_size=length, max_size=length), max_size=20)
    ),
    st.lists(st.sampled_from([b"AA", b"UA", b"9EE"]), max_size=40),
)


def one_by_one(keys: Keys, count: int) -> list[int]:
    """Return the partition of each key by the rule for single keys."""
    return [-1 if key is None else partition_for_key(key, count) for key in keys]


@given(COLUMNS, st.integers(1, 2**31 - 1))
def test_columns_are_placed_as_single_keys_are(keys: Keys, count: int) -> None:
    """Keys of a column get the same partitions as single keys, even in a slice or a dictionary."""
    column = pa.array(keys, pa.binary())
    expected = one_by_one(keys, count)

    assert partitions_for_keys(column, count).tolist() == expected
    assert partitions_for_keys(column.dictionary_encode(), count).tolist() == expected
    assert partitions_for_keys(column.slice(1), count).tolist() == expected[1:]


@pytest.mark.parametrize(
    "keys",
    [
        [],
        [None],
        [b""],
        [None, b"", None],
        [b"k" * length for length in range(30)],
        [b"k" * 1000, b"x"],
        [b"same length", b"but two null", None],
    ],
)
def test_each_way_through_the_columns_agrees(keys: Keys) -> None:
    """Columns without keys, and null, empty, short and long keys, get the same partitions as single keys."""
    assert partitions_for_keys(pa.array(keys, pa.binary()), 7).tolist() == one_by_one(keys, 7)


def test_text_dictionaries_are_placed_by_their_utf8() -> None:
    """A dictionary of strings is hashed by its UTF-8 bytes."""
    column = pa.array(["größe", "x", None]).dictionary_encode()

    assert partitions_for_keys(column, 9).tolist() == one_by_one(["größe".encode(), b"x", None], 9)
