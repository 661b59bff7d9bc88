"""Timestamps in requests and answers."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead_api.timestamps import YEAR_1_US, YEAR_10000_US, format_timestamp, parse_timestamp_us
from refusals import refuses

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("value", "expected_us"),
    [
        (0, 0),
        (1_357_017_300_250, 1_357_017_300_250_000),
        ("1357017300250", 1_357_017_300_250_000),
        ("-1", -1000),
        ("1970-01-01T00:00:00Z", 0),
        ("2013-01-01T05:15:00.25Z", 1_357_017_300_250_000),
        ("2013-01-01t05:15:00.250z", 1_357_017_300_250_000),
        ("2013-01-01 05:15:00.250000Z", 1_357_017_300_250_000),
        ("2013-01-01T00:15:00.250-05:00", 1_357_017_300_250_000),
        ("2013-01-01T10:45:00.250+05:30", 1_357_017_300_250_000),
        ("1970-01-01T00:00:00.123456789Z", 123_456),
        ("0001-01-01T00:00:00Z", YEAR_1_US),
        ("9999-12-31T23:59:59.999999Z", YEAR_10000_US - 1),
    ],
)
def test_milliseconds_and_rfc_3339_are_read(value: int | str, expected_us: int) -> None:
    """A timestamp is in milliseconds (an integer or digits), or RFC 3339 in any zone, truncated to microseconds."""
    assert parse_timestamp_us(value, "timestamp") == expected_us


@pytest.mark.parametrize(
    "value",
    [
        "",
        "yesterday",
        "2013-01-01",
        "2013-01-01T05:15:00",
        "2013-13-01T05:15:00Z",
        "2013-02-29T05:15:00Z",
        "2013-01-01T24:00:00Z",
        "2013-01-01T05:15:60Z",
        "2013-01-01T05:15:00+24:00",
        "2013-01-01T05:15:00+05:60",
        "2013-01-01T05:15:00Z\n",
        "0001-01-01T00:00:00+01:00",
        "9999-12-31T23:59:59-01:00",
        "\u0661",
        "1.5",
        253_402_300_800_000,
        -62_135_596_800_001,
        10**40,
        "9" * 17,
    ],
)
def test_anything_else_is_refused_by_name_and_value(value: int | str) -> None:
    """A timestamp in an unknown form is refused, and the problem names parameter, value and allowed forms."""
    with refuses("malformed_request", "from_time") as refused:
        parse_timestamp_us(value, "from_time")

    assert refused.value.data["parameter"] == "from_time"


@given(st.integers(YEAR_1_US, YEAR_10000_US - 1))
def test_what_is_written_is_read_back(timestamp_us: int) -> None:
    """A timestamp in the years 1 to 9999 is formatted and parsed without loss, and agrees with Python's calendar."""
    text = format_timestamp(timestamp_us)

    assert parse_timestamp_us(text, "timestamp") == timestamp_us
    assert datetime.fromisoformat(text) == EPOCH + timedelta(microseconds=timestamp_us)


@pytest.mark.parametrize(
    ("timestamp_us", "expected"),
    [
        (0, "1970-01-01T00:00:00.000000Z"),
        (-1, "1969-12-31T23:59:59.999999Z"),
        (YEAR_10000_US, "+010000-01-01T00:00:00.000000Z"),
        (YEAR_1_US - 1, "+000000-12-31T23:59:59.999999Z"),
        (2**63 - 1, "+294247-01-10T04:00:54.775807Z"),
        (-(2**63), "-290308-12-21T19:59:05.224192Z"),
    ],
)
def test_every_64_bit_number_has_a_text(timestamp_us: int, expected: str) -> None:
    """A timestamp beyond RFC 3339's years is formatted with a sign and a six-digit year, as in ISO 8601."""
    assert format_timestamp(timestamp_us) == expected
