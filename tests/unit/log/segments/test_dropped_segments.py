"""Dropped segments, whose files are removed later, and full disks, on which index files are removed first."""

from __future__ import annotations

from pathlib import Path

import pytest

from fairlead_api.configuration import TopicConfig
from fairlead_api.identifiers import Offset, TimestampUs
from fairlead_broker.log import (
    DiskFull,
    OffsetOutOfRange,
    PartitionLog,
    StampedBatch,
    StorageFailed,
    make_starts_durable,
)
from fairlead_broker.log.segments.storage import PosixStorage
from log_kit import PARTITION, TOPIC, BatchMaker, LogBox, TightStorage, read_all, stored
from refusals import raises

SMALL = TopicConfig(segment_bytes=4096)
NOW_US, LATER_US = TimestampUs(1000), TimestampUs(2000)


@pytest.fixture
def log(box: LogBox, make: BatchMaker) -> PartitionLog:
    """Return a log with sixty batches of two records in several segments, all committed and synced."""
    log = box.open(SMALL)
    make.fill(log, 60)
    log.sync()
    log.checkpoint_high_watermark = log.end_offset
    return log


def first_file(box: LogBox) -> int:
    """Return the base offset of the oldest batch file."""
    return int(box.log_files()[0].stem)


def test_files_go_when_they_are_due_and_not_before(box: LogBox, log: PartitionLog) -> None:
    """Files of a dropped segment stay readable for readers of that segment until the files' removal is due."""
    inside = log.segments[1]
    size = log.size_bytes
    log.advance_log_start(Offset(61), remove_us=LATER_US)
    kept = first_file(box)
    with pytest.raises(OffsetOutOfRange):
        log.read(Offset(60), 1, log.end_offset)
    found = inside.read(inside.base_offset, 1 << 20, inside.next_offset)
    log.remove_dropped(TimestampUs(LATER_US - 1))
    still = first_file(box)
    log.remove_dropped(LATER_US)

    assert log.size_bytes < size
    assert found is not None
    assert found.next_offset == inside.next_offset
    assert (kept, still) == (0, 0)
    assert first_file(box) == log.segments[0].base_offset > 30


def test_a_full_disk_waits_for_no_removal(
    box: LogBox, log: PartitionLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a full disk, a deletion immediately removes the files of all dropped segments, before their removal is due."""
    log.advance_log_start(Offset(61), remove_us=LATER_US)
    kept = first_file(box)
    monkeypatch.setattr(PosixStorage, "free_bytes", lambda *_: 0)
    log.advance_log_start(Offset(101), remove_us=LATER_US)

    assert kept == 0
    assert first_file(box) == log.segments[0].base_offset > 61


def test_a_log_start_moves_in_memory_before_it_is_durable(
    box: LogBox, log: PartitionLog, make: BatchMaker
) -> None:
    """A moved log start is lost if the process is killed before the next checkpoint, and survives a later kill."""
    assert log.move_log_start(Offset(61))
    assert not log.move_log_start(Offset(61))
    assert log.log_start_offset == 61
    box.kill()
    log = box.open()
    assert log.log_start_offset == 0
    log.checkpoint_high_watermark = log.end_offset
    log.move_log_start(Offset(61))
    box.opened.write_checkpoint()
    log.drop_below_start(LATER_US)
    box.kill()
    log = box.open()

    assert log.log_start_offset == 61
    assert first_file(box) == log.segments[0].base_offset > 0


def test_nothing_moves_beyond_the_high_watermark(log: PartitionLog) -> None:
    """A log start does not move beyond the high watermark, because uncommitted records must not be deleted."""
    log.checkpoint_high_watermark = Offset(50)

    with pytest.raises(OffsetOutOfRange):
        log.move_log_start(Offset(51))
    assert log.log_start_offset == 0


def test_dropping_twice_is_dropping_once(box: LogBox, log: PartitionLog) -> None:
    """When the log start moves twice, the second move drops only later segments, with their own removal time."""
    log.advance_log_start(Offset(41), remove_us=NOW_US)
    log.advance_log_start(Offset(81), remove_us=LATER_US)
    log.remove_dropped(NOW_US)
    between = first_file(box)
    log.remove_dropped(LATER_US)

    assert 0 < between < first_file(box) == log.segments[0].base_offset


def test_a_disk_that_does_not_delete_has_failed(box: LogBox, log: PartitionLog) -> None:
    """A segment file that cannot be removed raises `StorageFailed`, and the data directory accepts no more writes."""
    log.advance_log_start(Offset(61), remove_us=NOW_US)
    _in_the_way(box.log_files()[0])

    with pytest.raises(StorageFailed):
        log.remove_dropped(NOW_US)
    assert box.opened.failure is not None


def _on_a_tight_disk(box: LogBox, make: BatchMaker) -> tuple[TightStorage, PartitionLog, list[StampedBatch]]:
    """Return a disk that can be filled, a log on the disk, and the committed batches of the log."""
    box.storage = disk = TightStorage()
    log = box.open(SMALL)
    batches = make.fill(log, 60)
    log.checkpoint_high_watermark = log.end_offset
    return disk, log, batches


def test_a_full_disk_gets_room_from_the_indexes_of_what_goes(box: LogBox, make: BatchMaker) -> None:
    """On a full disk, index files below the log start are removed to free space for the checkpoint.

    The removal of index files keeps all records above the log start.
    """
    disk, log, batches = _on_a_tight_disk(box, make)
    disk.fill()
    log.move_log_start(Offset(60))
    with pytest.raises(DiskFull):
        make_starts_durable(box.opened.write_checkpoint, [])
    make_starts_durable(box.opened.write_checkpoint, [log])
    indexes = {int(path.stem) for path in box.folder.glob("*.index")}
    kept = [segment.base_offset for segment in log.segments if segment.next_offset > 60]
    log.drop_below_start(NOW_US)

    assert min(indexes) == min(kept)
    assert read_all(log, offset=60) == stored(*batches[30:])
    box.kill()
    assert read_all(box.open(), offset=60) == stored(*batches[30:])


def test_an_index_that_cannot_be_removed_is_reported(box: LogBox, make: BatchMaker) -> None:
    """An index file that cannot be removed from a full disk raises `StorageFailed`."""
    disk, log, _ = _on_a_tight_disk(box, make)
    log.move_log_start(Offset(61))
    _in_the_way(box.log_files()[0].with_suffix(".index"))

    disk.fill()
    with raises(StorageFailed, "indexes"):
        make_starts_durable(box.opened.write_checkpoint, [log])


def test_deleting_records_frees_a_full_disk_too(box: LogBox, make: BatchMaker) -> None:
    """A deletion of records frees a full disk by removing index files, and fails if there are none to remove."""
    disk, log, batches = _on_a_tight_disk(box, make)
    disk.fill()
    with pytest.raises(DiskFull):
        log.advance_log_start(Offset(1))
    start = log.log_start_offset
    gone = log.advance_log_start(Offset(60))
    box.kill()
    again = box.open()

    assert (start, log.log_start_offset, again.log_start_offset) == (0, 60, 60)
    assert gone
    assert read_all(again) == stored(*batches[30:])


def test_a_log_that_is_closed_removes_nothing_any_more(
    box: LogBox, log: PartitionLog, make: BatchMaker
) -> None:
    """A closed log removes no files, because its partition may have returned with files of the same names."""
    log.advance_log_start(Offset(41), remove_us=LATER_US)
    log.move_log_start(Offset(81))
    gone = box.opened.give_up_partition(TOPIC, PARTITION)
    assert gone is not None
    box.opened.remove_given_up(gone)
    again = box.opened.open_partition(TOPIC, PARTITION, SMALL)
    batches = make.fill(again, 60)
    log.drop_below_start(NOW_US)
    log.remove_dropped(LATER_US)

    assert all(segment.path.exists() for segment in again.segments)
    assert read_all(again) == stored(*batches)


def _in_the_way(path: Path) -> None:
    """Replace a file by a folder, so that unlink fails."""
    path.unlink()
    path.mkdir()
