"""Disks with space for batches and for nothing else."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from fairlead_api.configuration import TopicConfig
from fairlead_api.identifiers import BrokerEpoch, LeaderEpoch, Offset
from fairlead_broker.log import DiskFull, StorageFailed
from fairlead_broker.log.leader_epochs import EpochStart
from fairlead_broker.log.segments.storage import PosixFile
from log_kit import BatchMaker, FaultyStorage, LogBox, begin, read_all, stored
from refusals import raises

SMALL = TopicConfig(segment_bytes=4096, index_interval_bytes=0)


@pytest.mark.parametrize("room", range(0, 400, 13))
def test_no_room_for_an_index_stops_no_append(
    box: LogBox, make: BatchMaker, faults: FaultyStorage, room: int
) -> None:
    """A log on a disk without space for index entries appends and rolls, because the entries can be rebuilt."""
    faults.full_suffixes, faults.room_bytes = {".index", ".timeindex"}, room
    log = box.open(SMALL)
    begin(log)
    batches = make.fill(log, 30)
    log.sync()

    assert log.segment_count > 3
    assert read_all(log, 1) == stored(*batches)
    box.stop()
    assert read_all(box.open(), 1) == stored(*batches)
    box.stop()
    faults.room_bytes = None
    log = box.open()
    batches += make.fill(log, 5)
    assert read_all(log, 1) == stored(*batches)


def test_a_broken_index_file_ends_writing(box: LogBox, make: BatchMaker, faults: FaultyStorage) -> None:
    """A log stops writing after a write error other than a full disk, even if the error is in an index file."""
    log = box.open(SMALL)
    begin(log)
    faults.full_suffixes, faults.room_bytes, faults.write_error = {".index"}, 0, errno.EIO

    with raises(StorageFailed, "index"):
        make.fill(log, 30)
    with pytest.raises(StorageFailed):
        make.fill(log, 1)


@pytest.mark.parametrize("room", [0, 5, 16, 20])
def test_no_room_for_an_epoch_passes(box: LogBox, make: BatchMaker, faults: FaultyStorage, room: int) -> None:
    """A leader epoch that finds no space in the list of epochs has not begun, and can begin later."""
    log = box.open()
    faults.full_suffixes, faults.room_bytes = {""}, room
    with raises(DiskFull, "leader-epochs"):
        begin(log, 5)

    assert log.leader_epochs == ()
    faults.room_bytes = None
    begin(log, 5)
    make.fill(log, 1)
    box.kill()
    assert [(entry.epoch, entry.start_offset) for entry in box.open().leader_epochs] == [(5, 0)]


def test_no_room_for_the_checkpoint_passes(box: LogBox, make: BatchMaker, faults: FaultyStorage) -> None:
    """A log operation that needs the checkpoint changes nothing on a full disk, and works once there is space."""
    log = box.open(SMALL)
    begin(log)
    batches = make.fill(log, 30)
    log.sync()
    log.checkpoint_high_watermark = log.end_offset
    faults.full_suffixes, faults.room_bytes = {".tmp"}, 0
    before = sorted(path.name for path in box.folder.iterdir())
    for refused in (
        # A log start inside the first segment keeps that segment, so its index is not removed to free space.
        lambda: log.advance_log_start(Offset(1)),
        lambda: log.truncate_to(Offset(30)),
        box.opened.write_checkpoint,
        lambda: box.opened.set_broker_epoch(BrokerEpoch(3)),
    ):
        with pytest.raises(DiskFull):
            refused()

        assert (log.log_start_offset, log.synced_offset, log.end_offset) == (0, 60, 60)
        assert sorted(path.name for path in box.folder.iterdir()) == before
    assert box.opened.identity.last_broker_epoch == 0
    faults.room_bytes = None
    log.advance_log_start(Offset(30))
    assert log.truncate_to(Offset(50)) == 50
    assert read_all(log) == stored(*batches[15:25])


class NoRoomForEpochs(FaultyStorage):
    """A disk with space for a checkpoint, but not for a list of leader epochs."""

    full = False

    def take_room(self, path: Path, nbytes: int) -> int:
        """Return how many of the bytes may be written."""
        return 0 if self.full and path.name.startswith("leader-epochs") else nbytes


class NoRoomForFiles(FaultyStorage):
    """A disk with space for a checkpoint, but not for another batch file."""

    full = False

    def open(self, path: Path, *, write: bool = False, create: bool = False) -> PosixFile:
        """Open a file, or fail with ENOSPC for a new batch file on the full disk."""
        if self.full and create and path.suffix == ".log":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return super().open(path, write=write, create=create)


def test_a_log_whose_files_are_gone_takes_nothing_more(box: LogBox, make: BatchMaker) -> None:
    """A log whose restart removed the old file and could not create the new file refuses every append."""
    box.storage = disk = NoRoomForFiles()
    log = box.open(SMALL)
    begin(log)
    make.fill(log, 10)
    log.sync()
    disk.full = True
    with raises(StorageFailed, 50):
        log.restart_at(Offset(50))
    with pytest.raises(StorageFailed):
        make.fill(log, 1)
    disk.full = False
    box.kill()
    again = box.open()
    assert (again.end_offset, again.damaged) == (0, ())
    again.restart_at(Offset(50))
    assert again.end_offset == 50


@pytest.mark.parametrize("killed", [False, True])
def test_a_log_restarted_without_room_for_epochs_keeps_its_last_epoch(
    box: LogBox, make: BatchMaker, killed: bool
) -> None:
    """A log that restarts without space for its list of epochs keeps its old last epoch, and can restart again."""
    box.storage = disk = NoRoomForEpochs()
    log = box.open(SMALL)
    begin(log, 2)
    make.fill(log, 10)
    log.sync()
    disk.full = True
    with raises(DiskFull, "leader-epochs"):
        log.restart_at(Offset(50), EpochStart(LeaderEpoch(4), Offset(20)))
    disk.full = False
    if killed:
        box.kill()
        log = box.open()
    assert (log.log_start_offset, log.end_offset, log.last_epoch) == (50, 50, 2)
    log.restart_at(Offset(50), EpochStart(LeaderEpoch(4), Offset(20)))
    assert (log.end_offset, log.last_epoch) == (50, 4)
