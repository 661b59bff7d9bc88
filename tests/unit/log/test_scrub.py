from __future__ import annotations

import os

import pytest

from fairlead_api.configuration import TopicConfig
from fairlead_api.identifiers import Offset
from fairlead_broker.log import DamagedRange, LogClosed, PartitionLog, SegmentScrub, StorageFailed
from fairlead_broker.log.scrub import STEP_BYTES
from log_kit import BatchMaker, FaultyStorage, LogBox

SMALL = TopicConfig(segment_bytes=4096, index_interval_bytes=1000)


def scrub(log: PartitionLog) -> tuple[int, list[DamagedRange]]:
    """Scrub every segment, and return the number of bytes read and the damage found."""
    nbytes, found = 0, []
    for segment in log.segments:
        walk = SegmentScrub(log, segment)
        while step := walk.step():
            nbytes += step
        found += walk.finish()
    return nbytes, found


def flip(box: LogBox, number: int, at: int) -> int:
    """Flip a bit of a segment file, and return the base offset of the segment."""
    path = box.log_files()[number]
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)
    return int(path.stem)


def test_a_good_log_is_read_to_its_last_byte(box: LogBox, make: BatchMaker) -> None:
    """A scrub of a good log reads every byte of every segment, including the last one, and finds no damage."""
    log = box.open(SMALL)
    make.fill(log, 20)

    assert scrub(log) == (log.size_bytes, [])
    assert log.damaged == ()


def test_a_large_segment_takes_several_steps(box: LogBox, make: BatchMaker) -> None:
    """A scrub reads a large segment in several bounded steps, so that no other work waits for a whole segment."""
    log = box.open()
    make.fill(log, 30, 1, 100_000)
    walk = SegmentScrub(log, log.segments[0])
    steps = []
    while step := walk.step():
        steps.append(step)

    assert len(steps) > 2
    assert max(steps) <= STEP_BYTES + 101_000


@pytest.mark.parametrize("number", [0, 1, -1])
def test_changed_bytes_are_found_noted_and_reported_once(box: LogBox, make: BatchMaker, number: int) -> None:
    """A scrub finds a flipped bit of a value, notes the damaged offsets in the log, and reports them once."""
    log = box.open(SMALL)
    batches = make.fill(log, 20)
    log.sync()
    box.stop()
    first = flip(box, number, batches[0].nbytes + 600)
    log = box.open()
    damage = DamagedRange(Offset(first + 2), Offset(first + 4))

    assert scrub(log)[1] == [damage]
    assert log.damaged == (damage,)
    assert scrub(log)[1] == []


def test_a_log_that_was_cut_meanwhile_is_left_alone(box: LogBox, make: BatchMaker) -> None:
    """A scrub of a segment that was truncated after the scrub began fails with `LogClosed` and notes no damage."""
    log = box.open()
    make.fill(log, 10)
    walk = SegmentScrub(log, log.segments[0])
    log.truncate_to(Offset(4))

    with pytest.raises(LogClosed):
        walk.step()
    assert walk.finish() == ()


def test_an_unreadable_segment_is_no_damage(box: LogBox, make: BatchMaker, faults: FaultyStorage) -> None:
    """A scrub on an unreadable disk fails with `StorageFailed`, and the log notes no damage."""
    log = box.open(SMALL)
    make.fill(log, 10)
    walk = SegmentScrub(log, log.segments[0])
    faults.read_error = os.EX_IOERR

    with pytest.raises(StorageFailed):
        walk.step()
    assert log.damaged == ()
