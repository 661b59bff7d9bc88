"""Batch files under the name of another segment: every batch is intact, but none belongs to that segment."""

from __future__ import annotations

from pathlib import Path

import pytest

from fairlead_api.batch.batches import decode_records
from fairlead_api.configuration import TopicConfig
from fairlead_api.identifiers import Offset
from fairlead_broker.log import LogDamaged, PartitionLog, SegmentScrub
from log_kit import BatchMaker, LogBox, begin

SMALL = TopicConfig(segment_bytes=4096, index_interval_bytes=1500)


def damaged_offsets(log: PartitionLog) -> set[int]:
    """Return the offsets whose reads report damage, and check that every other read serves its offset."""
    damaged = set()
    for offset in range(log.log_start_offset, log.end_offset):
        try:
            read = log.read(Offset(offset), 1, log.end_offset)
        except LogDamaged:
            damaged.add(offset)
        else:
            assert offset in {record.offset for record in decode_records(read.data)}
    return damaged


def swap(first: Path, second: Path) -> None:
    """Swap the contents of two files."""
    content = first.read_bytes()
    first.write_bytes(second.read_bytes())
    second.write_bytes(content)


@pytest.mark.parametrize("unknown", [False, True], ids=["stopped", "checkpoint lost"])
@pytest.mark.parametrize("numbers", [(0, 1), (1, 0), (1, 3)])
def test_batches_of_another_segment_are_not_served(
    box: LogBox, make: BatchMaker, numbers: tuple[int, int], unknown: bool
) -> None:
    """Batches in the file of another segment are reported as damage, with or without a checkpoint."""
    log = box.open(SMALL)
    begin(log)
    make.fill(log, 40, 3)
    ranges = [range(segment.base_offset, segment.next_offset) for segment in log.segments]
    end = log.end_offset
    box.stop()
    files = box.log_files()
    swap(files[numbers[0]], files[numbers[1]])
    if unknown:
        (box.path / ".fairlead" / "checkpoint").unlink()
    log = box.open()

    assert log.end_offset == end
    assert damaged_offsets(log) == {offset for number in numbers for offset in ranges[number]}


def test_the_scrub_reports_batches_of_another_segment(box: LogBox, make: BatchMaker) -> None:
    """A scrub reports batches in the file of another segment as damage, before any reader does."""
    log = box.open(SMALL)
    begin(log)
    make.fill(log, 40, 3)
    box.stop()
    files = box.log_files()
    files[0].write_bytes(files[1].read_bytes())
    log = box.open()
    scrub = SegmentScrub(log, log.segments[0])
    while scrub.step():
        pass

    assert [(each.first_offset, each.next_good_offset) for each in scrub.finish()] == [
        (0, log.segments[1].base_offset)
    ]
