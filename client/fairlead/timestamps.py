"""Conversion of times in the formats that users write: aware datetimes, milliseconds, RFC 3339.

The producer, the consumer and the admin client use this module for record timestamps and seeks.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

from fairlead.errors import SettingError

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
_MILLISECONDS_MAX: Final = (2**63 - 1) // 1000
"""Maximum number of milliseconds, since timestamps are microseconds in 64 bits."""


def timestamp_us_of(value: datetime | int, name: str) -> int:
    """Return an aware datetime, or milliseconds since 1970, as microseconds; `SettingError` names the argument."""
    if isinstance(value, datetime):
        if value.tzinfo is None:
            raise SettingError(name, value, "an aware datetime: add a time zone, such as datetime.UTC")
        return (value - _EPOCH) // _MICROSECOND
    if isinstance(value, int) and not isinstance(value, bool):
        if abs(value) > _MILLISECONDS_MAX:
            raise SettingError(name, value, f"at most {_MILLISECONDS_MAX} milliseconds before or after 1970")
        return value * 1000
    raise SettingError(name, value, "an aware datetime or milliseconds since 1970")


def datetime_of(timestamp_us: int) -> datetime:
    """Return microseconds since 1970 as an aware datetime in UTC."""
    return _EPOCH + timedelta(microseconds=timestamp_us)
