"""Timestamp formats: microseconds internally, milliseconds or RFC 3339 in requests, RFC 3339 in answers.

JSON bodies, query parameters and answers use this module, which must not read a clock.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Final

from fairlead_api.excerpts import excerpt, shown
from fairlead_api.problems import ProblemError

MICROSECONDS_PER_MILLISECOND: Final = 1000
MICROSECONDS_PER_SECOND: Final = 1_000_000
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
_MILLISECONDS: Final = re.compile(r"-?[0-9]{1,17}")
_RFC3339: Final = re.compile(
    r"([0-9]{4})-([0-9]{2})-([0-9]{2})[Tt ]([0-9]{2}):([0-9]{2}):([0-9]{2})(?:\.([0-9]{1,9}))?"
    r"(?:[Zz]|([+-])([0-9]{2}):([0-9]{2}))"
)
_ALLOWED: Final = "milliseconds since 1970 as an integer, or RFC 3339 such as 2013-01-01T05:15:00.250Z"

YEAR_1_US: Final = (datetime(1, 1, 1, tzinfo=UTC) - _EPOCH) // _MICROSECOND
YEAR_10000_US: Final = (datetime(9999, 12, 31, tzinfo=UTC) + timedelta(days=1, microseconds=-1) - _EPOCH) // (
    _MICROSECOND
) + 1


def parse_timestamp_us(value: int | str, what: str) -> int:
    """Return a timestamp of a request in microseconds since the Unix epoch.

    An integer, or text of digits, is in milliseconds. Other text is RFC 3339 with up to nine fractional digits, which
    are truncated to microseconds. Timestamps of the years 1 to 9999 are allowed. Raises `malformed_request`, which
    contains the name of the parameter or field, `what`.
    """
    if isinstance(value, str):
        if _MILLISECONDS.fullmatch(value):
            return _from_milliseconds(int(value), value, what)
        return _from_rfc3339(value, what)
    return _from_milliseconds(value, value, what)


def format_timestamp(timestamp_us: int) -> str:
    """Return a timestamp in RFC 3339 format, in UTC with microseconds, such as `2013-01-01T05:15:00.250000Z`.

    A year outside RFC 3339, which only a binary batch can contain, is written as an ISO 8601 expanded year with sign
    and six digits. The function never raises an exception for a 64-bit number.
    """
    second, microsecond = divmod(timestamp_us, MICROSECONDS_PER_SECOND)
    return f"{format_second(second)}.{microsecond:06d}Z"


@lru_cache(16)  # timestamps within one second share the cached text
def format_second(second: int) -> str:
    """Return the date and time of a whole second, without fraction and time zone."""
    if YEAR_1_US <= second * MICROSECONDS_PER_SECOND < YEAR_10000_US:
        return (_EPOCH + timedelta(seconds=second)).isoformat()[:19]
    days, in_day = divmod(second, 86_400)
    # The calendar repeats every 400 years (146,097 days), so the date is computed for an equivalent year within
    # datetime's range.
    cycles, day_in_cycle = divmod(days, 146_097)
    date = _EPOCH + timedelta(days=day_in_cycle, seconds=in_day)
    return f"{date.year + 400 * cycles:+07d}{date.isoformat()[4:19]}"


def _from_milliseconds(milliseconds: int, value: int | str, what: str) -> int:
    timestamp_us = milliseconds * MICROSECONDS_PER_MILLISECOND
    if YEAR_1_US <= timestamp_us < YEAR_10000_US:
        return timestamp_us
    raise _malformed(value, what)


def _from_rfc3339(text: str, what: str) -> int:
    match = _RFC3339.fullmatch(text)
    if match is None:
        raise _malformed(text, what)
    year, month, day, hour, minute, second = (int(part) for part in match.group(1, 2, 3, 4, 5, 6))
    microsecond = int((match[7] or "").ljust(6, "0")[:6])
    try:
        local = datetime(year, month, day, hour, minute, second, microsecond, tzinfo=UTC)
        timestamp_us = (local - _EPOCH) // _MICROSECOND - _zone_us(match)
    except ValueError as error:
        raise _malformed(text, what) from error
    if YEAR_1_US <= timestamp_us < YEAR_10000_US:
        return timestamp_us
    raise _malformed(text, what)


def _zone_us(match: re.Match[str]) -> int:
    if match[8] is None:
        return 0
    hours, minutes = int(match[9]), int(match[10])
    if hours > 23 or minutes > 59:
        raise ValueError("time zone offset beyond 24 hours")
    offset_us = (hours * 3600 + minutes * 60) * MICROSECONDS_PER_SECOND
    return -offset_us if match[8] == "-" else offset_us


def _malformed(value: int | str, what: str) -> ProblemError:
    return ProblemError(
        "malformed_request",
        f"{what} {shown(value)} is not a timestamp; allowed are {_ALLOWED}, years 1 to 9999",
        data={"parameter": what, "value": excerpt(value), "allowed": _ALLOWED},
    )
