"""Disks that cannot read a file: indexes and snapshots are rebuilt, and unreadable batches are storage failures."""

from __future__ import annotations

import errno

import pytest

from fairlead_api.configuration import TopicConfig
from fairlead_api.identifiers import Offset, TimestampUs
from fairlead_broker.log import SegmentScrub, StorageFailed, retention_facts
from log_kit import FIRST_TIME_US, BatchMaker, FaultyStorage, LogBox, begin, read_all, stored

SMALL = TopicConfig(segment_bytes=4096, index_interval_bytes=512)
MADE_AGAIN = {".index", ".timeindex", ".producers"}


@pytest.mark.parametrize("killed", [False, True], ids=["stopped", "killed"])
@pytest.mark.parametrize("suffix", sorted(MADE_AGAIN))
def test_a_start_does_without_what_can_be_made_again(
    box: LogBox, faults: FaultyStorage, make: BatchMaker, suffix: str, killed: bool
) -> None:
    """A bad sector in an index or producer snapshot loses no record and does not fail the data directory."""
    log = box.open(SMALL)
    begin(log)
    batches = make.fill(log, 30, 3)
    log.sync()
    log.save_producers_if_due()
    if killed:
        box.kill()
    else:
        box.stop()
    faults.read_error, faults.read_suffixes = errno.EIO, {suffix}
    log = box.open()

    assert box.opened.failure is None
    assert read_all(log) == stored(*batches)
    assert log.offset_for_time(TimestampUs(FIRST_TIME_US)) == (0, FIRST_TIME_US)
    assert [facts.newest_time_us for facts in retention_facts(log)][-1] == FIRST_TIME_US + 3 * 30 - 1


def test_batches_that_cannot_be_read_are_a_failure_of_the_disk(
    box: LogBox, faults: FaultyStorage, make: BatchMaker
) -> None:
    """The first read, time lookup or scrub of a segment on an unreadable disk fails with `StorageFailed`."""
    log = box.open(SMALL)
    begin(log)
    make.fill(log, 30, 3)
    box.stop()
    for path in box.folder.glob("*.index"):
        path.unlink()
    log = box.open()
    faults.read_error = errno.EIO

    with pytest.raises(StorageFailed):
        log.read(Offset(0), 1, log.end_offset)
    with pytest.raises(StorageFailed):
        log.offset_for_time(TimestampUs(0))
    with pytest.raises(StorageFailed):
        SegmentScrub(log, log.segments[0])


def test_a_time_that_cannot_be_looked_for_is_a_failure_of_the_disk(
    box: LogBox, faults: FaultyStorage, make: BatchMaker
) -> None:
    """A time lookup in an already open segment fails with `StorageFailed` when the disk cannot be read."""
    log = box.open(SMALL)
    make.fill(log, 3, 3)
    faults.read_error = errno.EIO

    with pytest.raises(StorageFailed):
        log.offset_for_time(TimestampUs(0))
