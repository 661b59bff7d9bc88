"""Walks over the batches of a file: the batches that they yield, and where they stop."""

from __future__ import annotations

from pathlib import Path

import pytest

from fairlead_broker.log.segments.batch_walk import (
    BadBatch,
    find_good_batch,
    first_append_time,
    verify_batches,
    walk_headers,
)
from fairlead_broker.log.segments.storage import File, PosixStorage
from log_kit import BatchMaker, stored
from refusals import raises


def file_with(path: Path, data: bytes) -> File:
    """Return an open file with this content."""
    path.write_bytes(data)
    return PosixStorage().open(path)


def test_both_walks_meet_every_batch(tmp_path: Path, make: BatchMaker) -> None:
    """Both walks yield every batch at its position, whether smaller or larger than the window."""
    batches = [make(0, 2), make(2, 1, 50_000), make(3, 3), make(6, 1, 6 << 20), make(7, 1)]
    data = stored(*batches)
    file = file_with(tmp_path / "log", data)
    expected, position = [], 0
    for batch in batches:
        expected.append((position, batch.base_offset))
        position += batch.nbytes

    for walk in (walk_headers, verify_batches):
        assert [(met.position, met.header.base_offset) for met in walk(file, 0, len(data), 0)] == expected
        assert [met.end for met in walk(file, 0, len(data), 0)][-1] == len(data)
    assert first_append_time(file, len(data)) == make.append_time_us
    assert first_append_time(file, 0) is None


def test_only_the_verifying_walk_reads_the_content(tmp_path: Path, make: BatchMaker) -> None:
    """A changed value is found by the walk that verifies contents, but not by the walk over headers."""
    data = bytearray(stored(make(0), make(1)))
    data[-20] ^= 1
    file = file_with(tmp_path / "log", bytes(data))

    assert len(list(walk_headers(file, 0, len(data), 0))) == 2
    with raises(BadBatch, "checksum") as bad:
        list(verify_batches(file, 0, len(data), 0))
    assert (bad.value.position, bad.value.search_from) == (len(data) // 2, len(data))


def test_every_bit_of_a_stamp_matters(tmp_path: Path, make: BatchMaker) -> None:
    """A walk over headers stops at a batch with any flipped bit in its stamp."""
    data = stored(make(0))
    for bit in range(8 * 32):
        changed = bytearray(data)
        changed[bit // 8] ^= 1 << bit % 8
        file = file_with(tmp_path / "log", bytes(changed))

        with pytest.raises(BadBatch) as bad:
            list(walk_headers(file, 0, len(data), 0))
        assert bad.value.position == 0


def test_offsets_follow_one_another(tmp_path: Path, make: BatchMaker) -> None:
    """A good batch at an unexpected offset stops the walk, and a search finds the batch with the later offset."""
    first, second = make(5, 2), make(7)
    again, swapped = stored(first, make(6)), stored(second, first)
    file = file_with(tmp_path / "again", again)
    with raises(BadBatch, 6):
        list(walk_headers(file, 0, len(again), 5))
    with raises(BadBatch, 5, 7):
        list(walk_headers(file, 0, len(again), 8))
    file = file_with(tmp_path / "swapped", swapped)
    with raises(BadBatch, 7, 5) as gap:
        list(verify_batches(file, 0, len(swapped), 5))
    found = find_good_batch(file, gap.value.search_from, len(swapped), 5)

    assert found is not None
    assert (found.position, found.header.base_offset) == (0, 7)


@pytest.mark.parametrize(
    "garbage_bytes", [8, 80, 88, 4096, (4 << 20) - 88, (4 << 20) - 8, 4 << 20, (8 << 20) + 16]
)
@pytest.mark.parametrize("garbage", [b"\x00", b"\x01", b"\xff"])
def test_the_next_good_batch_is_found(
    tmp_path: Path, make: BatchMaker, garbage: bytes, garbage_bytes: int
) -> None:
    """The first good batch after garbage of any length is found, at any position in the window."""
    batch = stored(make(7))
    file = file_with(tmp_path / "log", garbage * garbage_bytes + batch + stored(make(8)))
    size = garbage_bytes + 2 * len(batch)
    found = find_good_batch(file, 0, size, 0)

    assert found is not None
    assert (found.position, found.header.base_offset) == (garbage_bytes, 7)
    later = find_good_batch(file, 0, size, 8)
    assert later is not None
    assert later.header.base_offset == 8
    assert find_good_batch(file, 0, size, 9) is None
    assert find_good_batch(file, 0, garbage_bytes, 0) is None
