"""Segments: cached reads, lazy opening, damage under a read."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from fairlead_api.configuration import TopicConfig
from fairlead_api.identifiers import Offset
from fairlead_broker.log import LogDamaged
from fairlead_broker.log.segments import SegmentCache
from log_kit import BatchMaker, FaultyStorage, LogBox, begin, read_all, stored

SMALL = TopicConfig(segment_bytes=4096, index_interval_bytes=512)


def test_cached_reads_equal_reads_that_may_wait(box: LogBox, make: BatchMaker) -> None:
    """On a file system that can tell, what is in memory is read the same way, in the last and in closed segments."""
    log = box.open(SMALL)
    begin(log)
    batches = make.fill(log, 60, records=3)
    if log.read_cached(Offset(0), 100, log.end_offset) is None:
        pytest.skip(f"the file system of {box.path} refuses RWF_NOWAIT")
    box.stop()
    log = box.open()
    before = log.read_cached(Offset(0), 100, log.end_offset)
    read_all(log)

    assert before is None, "a closed segment is opened by a read that may wait"
    for offset in range(log.end_offset):
        for bytes_max in (1, 2000, 1 << 30):
            cached = log.read_cached(Offset(offset), bytes_max, log.end_offset)
            waited = log.read(Offset(offset), bytes_max, log.end_offset)
            assert cached is not None
            assert (cached.data, cached.next_offset) == (waited.data, waited.next_offset)
    nothing = log.read_cached(log.end_offset, 100, log.end_offset)
    assert nothing is not None
    assert (nothing.data, nothing.next_offset) == (b"", log.end_offset)
    assert read_all(log) == stored(*batches)


def test_cached_reads_take_a_mib_at_most(box: LogBox, make: BatchMaker) -> None:
    """However much is asked for, one read on the loop returns at most 1 MiB of whole batches."""
    log = box.open()
    make.fill(log, 50, 1, 100_000)
    found = log.read_cached(Offset(0), 1 << 30, log.end_offset)
    if found is None:
        pytest.skip(f"the file system of {box.path} refuses RWF_NOWAIT")

    assert (1 << 20) - 101_000 < len(found.data) <= 1 << 20
    assert found.next_offset == 10


def test_what_left_the_page_cache_is_left_to_the_pool(box: LogBox, make: BatchMaker) -> None:
    """A read on the loop returns whole batches that are in memory, or nothing; it never waits, and never lies."""
    log = box.open()
    begin(log)
    batches = make.fill(log, 300, 1, 3000)
    if log.read_cached(Offset(0), 100, log.end_offset) is None:
        pytest.skip(f"the file system of {box.path} refuses RWF_NOWAIT")
    log.sync()
    descriptor = os.open(box.log_files()[0], os.O_RDONLY)
    missed = 0
    for start in (0, 200_000, 500_000):
        os.posix_fadvise(descriptor, start, 100_000, os.POSIX_FADV_DONTNEED)
        for offset in range(0, 300, 7):
            found = log.read_cached(Offset(offset), 50_000, log.end_offset)
            if found is None:
                missed += 1
            else:
                assert len(found.data) >= batches[0].nbytes
                assert stored(*batches[offset:]).startswith(found.data)
                assert found.next_offset == offset + len(found.data) // batches[0].nbytes
    os.close(descriptor)

    assert read_all(log) == stored(*batches)
    if not missed:
        pytest.skip(f"the file system of {box.path} does not give up its pages")


def test_a_read_holds_what_it_reads(box: LogBox, make: BatchMaker) -> None:
    """A segment that a reader holds can be removed: the bytes are there until the last reader lets go."""
    log = box.open(SMALL)
    batches = make.fill(log, 40)
    log.sync()
    first = log._segments[0]
    held = first.load()
    log.checkpoint_high_watermark = log.end_offset
    log.advance_log_start(Offset(first.next_offset))

    assert not first.path.exists()
    data = memoryview(bytearray(held.size))
    assert held.file.read_into(data, 0) == held.size
    assert stored(*batches).startswith(data)


def test_segments_not_used_for_long_are_closed(box: LogBox, make: BatchMaker) -> None:
    """No more closed segments stay open than the cache holds, and they open again when needed."""
    log = box.open(SMALL)
    batches = make.fill(log, 100)
    cache = box.opened._cache
    cache.segments_max = 3
    for _ in range(2):
        assert read_all(log) == stored(*batches)

    in_use = [segment for segment in log._segments if segment.body is not None]
    assert len(in_use) == 4
    assert log._segments[-1] in in_use
    cache.index_bytes_max = 1
    assert read_all(log) == stored(*batches)
    assert len([segment for segment in log._segments if segment.body is not None]) == 2


def test_an_empty_cache_forgets_anything() -> None:
    """Bounds have defaults that name their reason."""
    assert SegmentCache().segments_max > 0


def test_damage_under_a_read_is_told(box: LogBox, make: BatchMaker) -> None:
    """Headers that are gone raise, with the offsets that are affected, in the last and in closed segments."""
    log = box.open(replace(SMALL, index_interval_bytes=0))
    make.fill(log, 40)
    for path in (box.log_files()[0], box.log_files()[-1]):
        first = int(path.stem)
        data = bytearray(path.read_bytes())
        data[: len(data) // 2] = bytes(len(data) // 2)
        path.write_bytes(data)
        with pytest.raises(LogDamaged) as damaged:
            log.read(Offset(first), 1 << 20, log.end_offset)

        assert damaged.value.first_offset == first
        assert damaged.value.next_good_offset > first
        assert log.read(Offset(damaged.value.next_good_offset), 1, log.end_offset).data


def test_sizes_ask_the_file_system_once(box: LogBox, make: BatchMaker, faults: FaultyStorage) -> None:
    """The size of the log is known without opening its segments."""
    log = box.open(SMALL)
    batches = make.fill(log, 50)
    box.stop()
    log = box.open()
    faults.opened.clear()

    assert log.size_bytes == len(stored(*batches))
    assert faults.opened == []
    for path in box.log_files()[:-1]:
        Path(path).unlink()
    assert log.size_bytes == len(stored(*batches))
