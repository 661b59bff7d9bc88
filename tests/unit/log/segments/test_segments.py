"""Segments: cached reads, lazy opening, damage found by a read."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from fairlead_api.configuration import TopicConfig
from fairlead_api.identifiers import Offset
from fairlead_broker.log import LogDamaged, PartitionLog
from fairlead_broker.log.partition_log import SyncPoint
from fairlead_broker.log.segments.segment_writer import SegmentWriter, open_empty_writer
from fairlead_broker.log.segments.segments import Segment, SegmentCache
from fairlead_broker.log.segments.storage import File, PosixFile, PosixStorage
from log_kit import BatchMaker, FaultyStorage, LogBox, begin, read_all, stored

LET_IN_SECONDS = 0.1
"""Seconds for which the segment waits for the other thread; afterwards, both threads continue in parallel."""
SMALL = TopicConfig(segment_bytes=4096, index_interval_bytes=512)


def test_cached_reads_equal_reads_that_may_wait(box: LogBox, make: BatchMaker) -> None:
    """A cached read returns the same batches as a read that may wait, in the last and in closed segments."""
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
    """A cached read returns at most 1 MiB of whole batches, even if more bytes are requested."""
    log = box.open()
    make.fill(log, 50, 1, 100_000)
    found = log.read_cached(Offset(0), 1 << 30, log.end_offset)
    if found is None:
        pytest.skip(f"the file system of {box.path} refuses RWF_NOWAIT")

    assert (1 << 20) - 101_000 < len(found.data) <= 1 << 20
    assert found.next_offset == 10


def test_what_left_the_page_cache_is_left_to_the_pool(box: LogBox, make: BatchMaker) -> None:
    """A cached read returns whole batches from the page cache or nothing, and never waits for the disk."""
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
    """A removed segment stays readable until its last reader releases the segment."""
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
    """A log keeps no more closed segments open than its cache allows, and opens them again when needed."""
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
    """A segment cache has a default limit of open segments."""
    assert SegmentCache().segments_max > 0


def test_damage_under_a_read_is_reported(box: LogBox, make: BatchMaker) -> None:
    """A read of destroyed headers raises `LogDamaged` with the affected offsets, in the last and in closed segments."""
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
    """The size of a log is known without opening its segments."""
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


class WatchedSegment(Segment):
    """A segment that runs another thread whenever a field that a sync uses is read or changed."""

    __slots__ = ("threads", "visit")

    def __init__(self, folder: Path) -> None:
        self.visit: Callable[[], None] | None = None
        self.threads: list[Thread] = []
        super().__init__(PosixStorage(), folder, Offset(0), SegmentCache())

    def __getattribute__(self, name: str) -> Any:
        value = super().__getattribute__(name)
        if name == "unsynced_files":
            self.let_in()
        return value

    def __setattr__(self, name: str, value: object) -> None:
        super().__setattr__(name, value)
        if name in {"growing", "body", "unsynced_files"}:
            self.let_in()

    def let_in(self) -> None:
        """Start the other thread if it has not run yet, and wait for a short time."""
        visit = self.visit
        if visit is None:
            return
        self.visit = None
        thread = Thread(target=visit)
        self.threads.append(thread)
        thread.start()
        thread.join(LET_IN_SECONDS)

    def see_off(self) -> None:
        """Wait until all threads have ended."""
        self.visit = None
        for thread in self.threads:
            thread.join()


@pytest.fixture
def watched(tmp_path: Path, make: BatchMaker) -> tuple[WatchedSegment, SegmentWriter]:
    """Return a growing segment with one batch, and its writer."""
    segment = WatchedSegment(tmp_path)
    writer = open_empty_writer(PosixStorage(), segment, SMALL)
    writer.append([make(0, 2)])
    return segment, writer


def test_a_sync_always_finds_the_file_of_batches(watched: tuple[WatchedSegment, SegmentWriter]) -> None:
    """A sync finds the batch file even while its segment closes or reopens, because a missed file counts as durable."""
    segment, writer = watched
    mark, body = writer.mark(), segment.load()
    seen: list[tuple[File, ...]] = []

    def look() -> None:
        seen.append(segment.files_to_sync())
        segment.visit = look

    segment.visit = look
    writer.seal()
    writer.restore(mark)
    segment.see_off()

    assert seen
    assert all(body.file in files for files in seen)
    assert segment.files_to_sync() == (body.file,)
    assert segment.growing


def test_files_of_a_segment_that_is_just_closed_are_not_forgotten(
    watched: tuple[WatchedSegment, SegmentWriter],
) -> None:
    """A sync that began before a segment was closed releases none of the segment's unsynced files."""
    segment, writer = watched
    body = segment.load()
    point = SyncPoint(0, Offset(2), 1, (segment,), (body.file,))
    segment.visit = writer.seal
    point.forget_files()
    segment.see_off()

    assert not segment.growing
    assert len(segment.files_to_sync()) == 3
    assert body.file in segment.files_to_sync()


def test_a_reader_takes_no_file_from_its_writer(box: LogBox, make: BatchMaker) -> None:
    """A reader that opens a closed segment shares the file with its writer if the segment has begun to grow again."""

    class Truncating(PosixStorage):
        """A disk that truncates the log once, when a batch file is opened."""

        __slots__ = ("log",)

        def __init__(self) -> None:
            super().__init__()
            self.log: PartitionLog | None = None

        def open(self, path: Path, *, write: bool = False, create: bool = False) -> PosixFile:
            log, file = self.log, super().open(path, write=write, create=create)
            if log is not None and path.suffix == ".log":
                self.log = None
                log.truncate_to(Offset(4))
            return file

    box.storage = storage = Truncating()
    log = box.open(SMALL)
    batches = make.fill(log, 60)
    box.opened._cache.segments_max = 1
    read_all(log)
    storage.log = log
    log.read(Offset(0), 100, Offset(4))
    more = make.fill(log, 1)

    assert (log.end_offset, log.segment_count) == (6, 1)
    assert read_all(log) == stored(*batches[:2], *more)
