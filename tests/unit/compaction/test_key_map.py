"""The map of newest offsets, compared with a dictionary."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead_broker.compaction.key_map import SLOT_BYTES, KeyMap

WINDOWS = st.lists(st.lists(st.integers(0, 40), min_size=1, max_size=30), max_size=8)


def columns(keys: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """Return hashes with many equal home slots."""
    numbers = np.array(keys, np.uint64)
    return numbers % np.uint64(5), numbers


@given(WINDOWS, st.sampled_from([8, 16, 64, 4096]))
@settings(deadline=None, max_examples=150)
def test_the_map_has_the_newest_offset_of_each_key(windows: list[list[int]], slots: int) -> None:
    """The map equals a dictionary of the stored windows; a window that does not fit leaves the map unchanged."""
    key_map, expected, offset = KeyMap(slots * SLOT_BYTES), {}, 0
    for keys in windows:
        offsets = np.arange(offset, offset + len(keys))
        offset += len(keys)
        if key_map.put(*columns(keys), offsets):
            expected.update(zip(keys, offsets.tolist(), strict=True))
        else:
            assert len(expected) + len(keys) > (slots - 3) * 9 // 10
    every = list(range(45))

    assert key_map.holds(*columns(every)).tolist() == [key in expected for key in every]
    assert key_map.newest_offsets().tolist() == sorted(expected.values())
    assert len(key_map) == len(expected)
    assert (key_map.used_ratio > 0) == bool(expected)


def test_the_first_window_has_room_in_any_buffer() -> None:
    """An empty map grows beyond its buffer for one window, and then refuses new keys."""
    key_map = KeyMap(8 * SLOT_BYTES)
    keys = list(range(1000))

    assert key_map.put(*columns(keys), np.arange(1000))
    assert key_map.put(*columns(keys[:10]), np.arange(1000, 1010))
    assert not key_map.put(*columns(list(range(2000, 3000))), np.arange(2000, 3000))
    assert len(key_map) == 1000


def test_offsets_may_lie_far_apart() -> None:
    """Offsets that span more than 2^32, as in a log cleaned many times, are kept, also when the map grows."""
    key_map, far = KeyMap(1 << 20), 5 << 32
    for first, offset in ((0, 7), (1, far), (2000, 2 * far)):
        keys = list(range(first, first + 2000))
        assert key_map.put(*columns(keys), np.arange(offset, offset + 2000))

    newest = key_map.newest_offsets()
    assert newest.tolist() == [7, *range(far, far + 1999), *range(2 * far, 2 * far + 2000)]
