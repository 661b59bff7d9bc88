"""Facts about stored segments, which retention uses to select segments."""

from __future__ import annotations

import pytest

from fairlead_api.configuration import TopicConfig
from fairlead_api.identifiers import Offset, TimestampUs
from fairlead_broker.log import SegmentFacts, StorageFailed, retention_facts
from log_kit import FIRST_TIME_US, BatchMaker, FaultyStorage, LogBox

SMALL = TopicConfig(segment_bytes=4096, segment_ms=1)
HOUR_US = 3_600_000_000


def test_closed_segments_and_the_active_one(box: LogBox, make: BatchMaker) -> None:
    """Segment facts contain offsets, size and latest time, and a restart reads the same facts from the index ends."""
    log = box.open(SMALL)
    make.fill(log, 60)
    log.sync()
    facts = retention_facts(log)
    box.stop()
    again = retention_facts(box.open())

    assert [(each.base_offset, each.next_offset) for each in facts] == [
        (segment.base_offset, segment.next_offset) for segment in log.segments
    ]
    assert [each.size_bytes for each in facts] == [path.stat().st_size for path in box.log_files()]
    assert [each.newest_time_us for each in facts] == [FIRST_TIME_US + each.next_offset - 1 for each in facts]
    assert [each.active for each in facts] == [False] * (len(facts) - 1) + [True]
    assert again == facts


def test_the_newest_record_counts_and_not_the_last(box: LogBox, make: BatchMaker) -> None:
    """A late record with an old timestamp does not make its segment older."""
    log = box.open()
    log.append([make.at_times(0, [FIRST_TIME_US + HOUR_US, FIRST_TIME_US])])
    log.append([make.at_times(2, [FIRST_TIME_US - HOUR_US])])

    assert [each.newest_time_us for each in retention_facts(log)] == [FIRST_TIME_US + HOUR_US]


def test_the_append_time_counts_where_it_replaces_the_producers(box: LogBox, make: BatchMaker) -> None:
    """With LogAppendTime, a segment's latest time is the append time, regardless of the producer's timestamp."""
    make.stamp_flags, make.append_time_us = 1, FIRST_TIME_US + HOUR_US
    log = box.open()
    log.append([make.at_times(0, [FIRST_TIME_US])])

    assert [each.newest_time_us for each in retention_facts(log)] == [FIRST_TIME_US + HOUR_US]


def test_an_idle_log_after_its_roll(box: LogBox, make: BatchMaker) -> None:
    """An active segment that is empty after a roll has no latest time, and the log end does not move."""
    log = box.open(SMALL)
    make.fill(log, 1)
    log.roll_if_due(TimestampUs(FIRST_TIME_US + HOUR_US))
    closed, active = retention_facts(log)

    assert closed.newest_time_us == FIRST_TIME_US + 1
    assert active == SegmentFacts(Offset(2), Offset(2), 0, None, active=True)
    assert log.end_offset == 2


def test_later_looks_ask_no_disk(box: LogBox, make: BatchMaker, faults: FaultyStorage) -> None:
    """The latest time of a closed segment is read from the disk once, because it never changes."""
    log = box.open(SMALL)
    make.fill(log, 60)
    box.stop()
    log = box.open()
    first = retention_facts(log)
    faults.opened.clear()

    assert retention_facts(log) == first
    assert faults.opened == []


def test_a_disk_that_does_not_read_is_reported(box: LogBox, make: BatchMaker) -> None:
    """Segment facts that need an unreadable file fail with `StorageFailed`."""
    log = box.open(SMALL)
    make.fill(log, 60)
    box.stop()
    log = box.open()
    oldest = box.log_files()[0]
    for path in (oldest, oldest.with_suffix(".timeindex")):
        path.unlink()
    log.segments[0].body = None  # closes the segment as the segment cache does

    with pytest.raises(StorageFailed):
        retention_facts(log)
