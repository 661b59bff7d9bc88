"""The choice of the segments to delete, rule by rule, and its invariants; deletions on request."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead_api.configuration import TopicConfig
from fairlead_api.identifiers import Offset, TimestampUs
from fairlead_broker.log import OffsetOutOfRange
from fairlead_broker.log.retention import Expiry, Reason, SegmentFacts, expire
from log_kit import BatchMaker, LogBox

NOW_US = TimestampUs(1_000_000_000)
SECOND_US = 1_000_000
KEEP = TopicConfig(retention_ms=-1, retention_bytes=-1)


def log_of(*ages_seconds: float | None, size: int = 100) -> list[SegmentFacts]:
    """Return segments of ten records each; their newest records have the given ages, and the last segment is active."""
    return [
        SegmentFacts(
            base_offset=Offset(10 * number),
            next_offset=Offset(10 * number + 10),
            size_bytes=size,
            newest_time_us=None if age is None else TimestampUs(int(NOW_US - age * SECOND_US)),
            active=number == len(ages_seconds) - 1,
        )
        for number, age in enumerate(ages_seconds)
    ]


def decide(
    segments: list[SegmentFacts],
    config: TopicConfig = KEEP,
    *,
    log_start: int = 0,
    high_watermark: int | None = None,
) -> Expiry:
    """Return the decision at the fixed test time, by default with all records committed."""
    committed = segments[-1].next_offset if high_watermark is None else Offset(high_watermark)
    return expire(segments, config, log_start=Offset(log_start), high_watermark=committed, now_us=NOW_US)


def gone(expiry: Expiry) -> list[int]:
    """Return the base offsets of the expired segments."""
    return [segment.base_offset for segment, _ in expiry.segments]


@pytest.mark.parametrize(
    ("ages", "retention_ms", "expected"),
    [
        ((30, 20, 10, 0), 15_000, [0, 10]),
        ((30, 20, 10, 0), 20_000, [0]),
        ((30, 20, 10, 0), 19_999, [0, 10]),
        ((30, 20, 10, 0), -1, []),
        ((30, 20, 10, 0), 0, [0, 10, 20]),
        ((30, 20, 10, 9), 1, [0, 10, 20]),
        ((1, 20, 30, 0), 15_000, []),
        ((30, 1, 20, 0), 15_000, [0]),
        ((-3600, 20, 30, 0), 15_000, []),
        ((99,), 1, []),
        ((30, None, 20, 1), 15_000, [0, 10, 20]),
        ((30, None, 1, 0), 15_000, [0]),
        ((None, None, 20), 15_000, [0, 10]),
        ((None, None), 1, []),
    ],
    ids=[
        "the old ones go",
        "exactly as old as the limit is young",
        "a millisecond older is old",
        "no limit",
        "nothing is kept but the active one",
        "the active one stays however old",
        "a young one in front holds up all",
        "the first young one ends it",
        "a time in the future pins",
        "a lone segment is active",
        "one without a known record goes with the next",
        "one without a known record stays with the next",
        "the active one tells the age too",
        "no known record anywhere",
    ],
)
def test_time(ages: tuple[float | None, ...], retention_ms: int, expected: list[int]) -> None:
    """Whole segments expire from the front of the log while their newest record is older than `retention.ms`."""
    config = TopicConfig(retention_ms=retention_ms)
    expiry = decide(log_of(*ages), config)

    assert gone(expiry) == expected
    assert {reason for _, reason in expiry.segments} <= {Reason.TIME}
    assert expiry.log_start == (expected[-1] + 10 if expected else 0)


@pytest.mark.parametrize(
    ("retention_bytes", "expected"),
    [
        (400, []),
        (301, []),
        (300, [0]),
        (299, [0]),
        (200, [0, 10]),
        (100, [0, 10, 20]),
        (0, [0, 10, 20]),
        (-1, []),
    ],
)
def test_size(retention_bytes: int, expected: list[int]) -> None:
    """Segments are deleted by size while the rest of the log has at least `retention.bytes`."""
    config = TopicConfig(retention_ms=-1, retention_bytes=retention_bytes)
    expiry = decide(log_of(3, 2, 1, 0), config)

    assert gone(expiry) == expected
    assert {reason for _, reason in expiry.segments} <= {Reason.SIZE}
    assert expiry.size_bytes == 100 * len(expected)


def test_an_empty_active_segment_counts_nothing() -> None:
    """An empty active segment counts as zero bytes and stays, so an idle log may lose all its records after a roll."""
    *closed, active = log_of(30, 20, 0)
    empty = SegmentFacts(active.base_offset, active.base_offset, 0, None, active=True)
    by_time = decide([*closed, empty], TopicConfig(retention_ms=1000))
    by_size = decide([*closed, empty], TopicConfig(retention_ms=-1, retention_bytes=0))

    assert gone(by_time) == gone(by_size) == [0, 10]
    assert by_time.log_start == by_size.log_start == 20


@pytest.mark.parametrize(
    ("high_watermark", "expected"), [(0, []), (9, []), (10, [0]), (29, [0, 10]), (40, [0, 10, 20])]
)
def test_nothing_goes_above_the_high_watermark(high_watermark: int, expected: list[int]) -> None:
    """A segment with an uncommitted record stays, and so do all later segments, by time and by size."""
    config = TopicConfig(retention_ms=1, retention_bytes=0)

    assert gone(decide(log_of(9, 9, 9, 9), config, high_watermark=high_watermark)) == expected


def test_what_lies_below_the_log_start_goes_first() -> None:
    """A log start inside the third segment expires the first two segments and does not move."""
    expiry = decide(log_of(3, 2, 1, 0), log_start=25)

    assert [(segment.base_offset, reason) for segment, reason in expiry.segments] == [
        (0, Reason.LOG_START),
        (10, Reason.LOG_START),
    ]
    assert expiry.log_start == 25


def test_each_rule_begins_where_the_one_before_ended() -> None:
    """Retention first deletes segments below the log start, then applies the size limit, then the time limit."""
    config = TopicConfig(retention_ms=15_000, retention_bytes=300)
    expiry = decide(log_of(1, 1, 30, 30, 0), config, log_start=10)

    assert [reason for _, reason in expiry.segments] == [
        Reason.LOG_START,
        Reason.SIZE,
        Reason.TIME,
        Reason.TIME,
    ]
    assert expiry.log_start == 40


@st.composite
def logs(draw: st.DrawFn) -> list[SegmentFacts]:
    """Draw a log of consecutive segments of any size and age, some of them empty, the last one active."""
    count = draw(st.integers(1, 8))
    offset, segments = draw(st.integers(0, 50)), []
    for number in range(count):
        records = draw(st.integers(0, 20))
        time_us = draw(st.none() | st.integers(0, 2 * NOW_US)) if records else None
        size = draw(st.integers(1, 1000)) if records else 0
        segments.append(
            SegmentFacts(
                Offset(offset),
                Offset(offset + records),
                size,
                None if time_us is None else TimestampUs(time_us),
                active=number == count - 1,
            )
        )
        offset += records
    return segments


@given(
    segments=logs(),
    retention_ms=st.sampled_from([-1, 0, 1, 500_000, 1_000_000]) | st.integers(0, 2_000_000),
    retention_bytes=st.sampled_from([-1, 0]) | st.integers(0, 5000),
    data=st.data(),
)
def test_what_always_holds(
    segments: list[SegmentFacts], retention_ms: int, retention_bytes: int, data: st.DataObject
) -> None:
    """Expired segments are a closed, committed prefix, the log start never moves back, and no second expiry follows."""
    config = TopicConfig(retention_ms=retention_ms, retention_bytes=retention_bytes)
    first, end = segments[0].base_offset, segments[-1].next_offset
    high_watermark = data.draw(st.integers(first, end), label="high watermark")
    log_start = data.draw(st.integers(first, high_watermark), label="log start")
    expiry = decide(segments, config, log_start=log_start, high_watermark=high_watermark)
    count = len(expiry.segments)
    rest = segments[count:]

    assert [segment for segment, _ in expiry.segments] == segments[:count]
    assert rest
    assert rest[-1].active
    assert log_start <= expiry.log_start <= max(high_watermark, log_start)
    assert all(later.base_offset == before.next_offset for before, later in pairwise(segments))
    assert all(segment.next_offset <= expiry.log_start for segment in segments[:count])
    by_size = [segment for segment, reason in expiry.segments if reason is Reason.SIZE]
    if by_size:
        remaining = sum(each.size_bytes for each in segments if each.base_offset >= by_size[-1].next_offset)
        assert remaining >= retention_bytes
    for segment, reason in expiry.segments:
        if reason is Reason.TIME and segment.newest_time_us is not None:
            assert NOW_US - segment.newest_time_us > retention_ms * 1000
    again = decide(rest, config, log_start=expiry.log_start, high_watermark=high_watermark)
    assert not again.segments


def test_deletions_on_request_are_remembered_apart_from_the_log_start(box: LogBox, make: BatchMaker) -> None:
    """The offset of a deletion survives a restart, even below the log start, and never exceeds the end of the log."""
    log = box.open()
    make.fill(log, 10)
    log.sync()
    log.checkpoint_high_watermark = log.end_offset
    log.advance_log_start(Offset(8))
    assert log.deleted_to == 0
    log.delete_to(Offset(4))
    log.delete_to(Offset(2))
    with pytest.raises(OffsetOutOfRange):
        log.delete_to(Offset(21))
    box.kill()
    log = box.open()
    assert (log.deleted_to, log.log_start_offset) == (4, 8)
    log.checkpoint_high_watermark = log.end_offset
    log.delete_to(Offset(12))
    box.kill()
    log = box.open()
    assert (log.deleted_to, log.log_start_offset) == (12, 12)
    log.note_deleted(Offset(30))
    assert log.deleted_to == log.end_offset
    log.truncate_to(Offset(14))
    assert log.deleted_to == 14
    log.restart_at(Offset(6))

    assert log.deleted_to == 6
