"""The cleanable range of a log, and when a round is due."""

from __future__ import annotations

import pytest

from fairlead_broker.compaction.cleanable import (
    CleanableRange,
    CleanableSegment,
    CleaningRules,
    CleaningState,
    Due,
    cleanable_range,
    due_round,
)

NOW = 1_000_000
RULES = CleaningRules(dirty_ratio_min=0.5, min_lag_us=0, max_lag_us=10**9, delete_retention_us=1000)


def segments(*newest_us: int | None) -> list[CleanableSegment]:
    """Return closed segments of ten offsets and 100 bytes, and an active segment."""
    closed = [
        CleanableSegment(10 * number, 10 * number + 10, 100, time) for number, time in enumerate(newest_us)
    ]
    end = 10 * len(closed)
    return [*closed, CleanableSegment(end, end + 10, 100, NOW, is_last=True)]


@pytest.mark.parametrize(
    ("cleaned", "limit", "min_lag", "expected"),
    [
        (0, 40, 0, CleanableRange(30, 300, 300)),
        (10, 40, 0, CleanableRange(30, 200, 300)),
        (30, 40, 0, CleanableRange(30, 0, 300)),
        (0, 29, 0, CleanableRange(20, 200, 200)),
        (0, 9, 0, CleanableRange(0, 0, 0)),
        (0, 40, 500, CleanableRange(10, 100, 100)),
        (20, 40, 500, CleanableRange(30, 100, 300)),
    ],
)
def test_the_range_ends_before_the_first_segment_that_must_wait(
    cleaned: int, limit: int, min_lag: int, expected: CleanableRange
) -> None:
    """The active segment is not cleanable, nor is one that is unstable, unsynced, damaged, or dirty and too young."""
    found = cleanable_range(segments(NOW - 900, NOW - 100, None), cleaned, limit, min_lag, NOW)

    assert found == expected


def test_every_segment_is_cleanable_if_none_grows() -> None:
    """A range without an active segment ends with the last segment."""
    assert cleanable_range(segments(NOW)[:-1], 0, 10, 0, NOW) == CleanableRange(10, 100, 100)


@pytest.mark.parametrize(
    ("found", "state", "oldest", "expected"),
    [
        (CleanableRange(0, 0, 0), CleaningState(), None, None),
        (CleanableRange(30, 0, 0), CleaningState(), None, None),
        (CleanableRange(30, 100, 200), CleaningState(), NOW, None),
        (CleanableRange(30, 101, 200), CleaningState(), NOW, Due(101 / 200, is_overdue=False)),
        (CleanableRange(30, 1, 200), CleaningState(), NOW - 2 * 10**9, Due(1 / 200, is_overdue=True)),
        (CleanableRange(30, 1, 200), CleaningState(oldest_horizon_us=NOW, horizon_bytes=200), NOW, None),
        (
            CleanableRange(30, 1, 200),
            CleaningState(oldest_horizon_us=NOW - 1, horizon_bytes=3),
            NOW,
            Due(1 / 200, is_overdue=False, is_removal=True),
        ),
        (CleanableRange(30, 1, 200), CleaningState(oldest_horizon_us=NOW - 1, horizon_bytes=2), NOW, None),
        (
            CleanableRange(30, 1, 200),
            CleaningState(oldest_horizon_us=NOW - 1001, horizon_bytes=2),
            NOW,
            Due(1 / 200, is_overdue=False, is_removal=True),
        ),
    ],
)
def test_a_round_is_due_by_ratio_by_age_or_by_expired_tombstones(
    found: CleanableRange, state: CleaningState, oldest: int | None, expected: Due | None
) -> None:
    """A round is due above the dirty ratio, for a record that is too old, and when enough tombstones have expired."""
    assert due_round(found, state, RULES, oldest, NOW) == expected
    assert found.dirty_ratio == (found.dirty_bytes / found.total_bytes if found.total_bytes else 0)
