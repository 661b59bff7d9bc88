"""Lookup of the first record whose timestamp is at or after a given time."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead_api.configuration import TopicConfig
from fairlead_api.identifiers import Offset, TimestampUs
from fairlead_broker.log import LogDamaged
from log_kit import FIRST_TIME_US, BatchMaker, LogBox

SMALL = TopicConfig(segment_bytes=3000, index_interval_bytes=700)


@pytest.mark.slow
@given(batches=st.lists(st.lists(st.integers(0, 40), min_size=1, max_size=4), min_size=1, max_size=25))
def test_the_first_record_of_a_time_is_found(
    tmp_path_factory: pytest.TempPathFactory, batches: list[list[int]]
) -> None:
    """A time lookup returns the first record at or after the time, for record times in any order."""
    box, make = LogBox(tmp_path_factory.mktemp("time") / "data"), BatchMaker()
    log = box.open(SMALL)
    for times in batches:
        log.append([make.at_times(log.end_offset, times)])
    all_times = [time_us for times in batches for time_us in times]
    for wanted in range(42):
        expected = next(((at, time_us) for at, time_us in enumerate(all_times) if time_us >= wanted), None)

        assert log.offset_for_time(TimestampUs(wanted)) == expected
    box.stop()
    log = box.open()
    for wanted in range(42):
        expected = next(((at, time_us) for at, time_us in enumerate(all_times) if time_us >= wanted), None)

        assert log.offset_for_time(TimestampUs(wanted)) == expected
    box.kill()


def test_append_times_count_where_the_stamp_says_so(box: LogBox, make: BatchMaker) -> None:
    """With stamp flag 0, a record has the append time of its batch, regardless of the producer's timestamp."""
    log = box.open(SMALL)
    make.stamp_flags = 1
    for number in range(30):
        make.append_time_us = FIRST_TIME_US + 10 * number
        log.append([make.at_times(log.end_offset, [5, 3, 4])])

    assert log.offset_for_time(TimestampUs(0)) == (0, FIRST_TIME_US)
    assert log.offset_for_time(TimestampUs(FIRST_TIME_US + 1)) == (3, FIRST_TIME_US + 10)
    assert log.offset_for_time(TimestampUs(FIRST_TIME_US + 290)) == (87, FIRST_TIME_US + 290)
    assert log.offset_for_time(TimestampUs(FIRST_TIME_US + 291)) is None


def test_records_below_the_log_start_are_not_found(box: LogBox, make: BatchMaker) -> None:
    """A time lookup never returns a record before a log start inside a batch."""
    log = box.open()
    for _ in range(3):
        log.append([make.at_times(log.end_offset, [9, 5, 7])])
    log.checkpoint_high_watermark = log.end_offset
    log.advance_log_start(Offset(4))

    assert log.offset_for_time(TimestampUs(6)) == (5, 7)
    assert log.offset_for_time(TimestampUs(8)) == (6, 9)


def test_damage_on_the_way_is_reported(box: LogBox, make: BatchMaker) -> None:
    """A time lookup fails with `LogDamaged` at a batch that cannot be decoded, instead of skipping the batch."""
    log = box.open()
    make.fill(log, 3)
    path = box.log_files()[0]
    data = bytearray(path.read_bytes())
    data[-20] ^= 1
    path.write_bytes(data)

    assert log.offset_for_time(TimestampUs(FIRST_TIME_US)) == (0, FIRST_TIME_US)
    with pytest.raises(LogDamaged):
        log.offset_for_time(TimestampUs(FIRST_TIME_US + 5))
