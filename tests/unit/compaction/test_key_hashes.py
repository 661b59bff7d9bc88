"""Hashes of keys: equal keys have equal hashes in every window, and different keys have different hashes."""

from __future__ import annotations

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead_broker.compaction.key_hashes import LONG_KEY_BYTES, KeyHashes

HASHES = KeyHashes(bytes(range(32)))
KEYS = st.lists(st.binary(max_size=40) | st.binary(min_size=LONG_KEY_BYTES - 2, max_size=LONG_KEY_BYTES + 40))


def hashes_of(keys: list[bytes | None], start: int = 0) -> list[tuple[int, int]]:
    """Return the hashes of the keys from a given row of the column."""
    column = pa.array(keys, pa.binary())[start:]
    upper, lower = HASHES.of(column)
    return list(zip(upper.tolist(), lower.tolist(), strict=True))


@given(KEYS, st.integers(0, 5))
@settings(deadline=None, max_examples=60)
def test_a_hash_depends_on_its_key_alone(keys: list[bytes], start: int) -> None:
    """A key has the same hash alone, among other keys and in a slice; different keys have different hashes."""
    found = hashes_of(keys)

    assert found == [hashes_of([key])[0] for key in keys]
    assert hashes_of(keys, min(start, len(keys))) == found[start:]
    assert len(set(found)) == len(set(keys))


def test_zeros_at_the_end_of_a_key_count() -> None:
    """Keys of zero bytes with different lengths have different hashes, even if only the last word differs in length."""
    keys: list[bytes | None] = [bytes(count) for count in range(LONG_KEY_BYTES + 8)]

    assert len(set(hashes_of(keys))) == len(keys)


def test_the_seed_changes_every_hash() -> None:
    """With another seed a key has another hash, so collisions prepared by an attacker do not last."""
    upper, lower = KeyHashes(bytes(32)).of(pa.array([b"key"], pa.binary()))

    assert (int(upper[0]), int(lower[0])) != hashes_of([b"key"])[0]


def test_null_keys_take_no_bytes_of_their_neighbours() -> None:
    """A null key between other keys leaves their hashes unchanged."""
    first, _, last = hashes_of([b"first", None, b"last"])

    assert [first, last] == hashes_of([b"first", b"last"])
