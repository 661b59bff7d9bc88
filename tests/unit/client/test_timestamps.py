"""Timestamps given by programs."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest

from fairlead.errors import SettingError
from fairlead.timestamps import datetime_of, timestamp_us_of
from refusals import raises


def test_aware_datetimes_keep_their_microseconds() -> None:
    """A datetime of any time zone is converted to microseconds and back without loss."""
    moment = datetime(2013, 1, 1, 5, 15, 0, 250_001, tzinfo=timezone(timedelta(hours=-5)))

    assert datetime_of(timestamp_us_of(moment, "start")) == moment
    assert timestamp_us_of(datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC), "start") == -1


def test_numbers_are_milliseconds() -> None:
    """An integer timestamp is in milliseconds, as in Kafka."""
    assert timestamp_us_of(1_500, "timestamp") == 1_500_000


@pytest.mark.parametrize("value", [datetime(2013, 1, 1), "2013-01-01", 1.5, True, None])  # noqa: DTZ001
def test_times_that_could_be_meant_otherwise_are_refused(value: object) -> None:
    """An ambiguous timestamp, such as a naive datetime, is refused, and the error names the argument."""
    with raises(SettingError, "timestamp"):
        timestamp_us_of(value, "timestamp")  # type: ignore[arg-type]
