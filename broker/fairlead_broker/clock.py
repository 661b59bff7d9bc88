"""The broker's only source of time.

Every room that needs the time receives a `Clock`; the pure rooms receive numbers. No other module calls `time.*`: a
simulator controls time through one object.
"""

from __future__ import annotations

import time
from typing import Protocol

from fairlead_api.identifiers import TimestampUs


class Clock(Protocol):
    """Source of wall clock time and monotonic time."""

    def now_us(self) -> TimestampUs:
        """Return the wall clock time in microseconds since 1970, UTC.

        The time may jump; it is used for timestamps, never for waiting.
        """
        ...

    def monotonic(self) -> float:
        """Return the seconds since an arbitrary start, which never decrease; used for intervals, never stored."""
        ...


class SystemClock:
    """Clocks of the machine."""

    __slots__ = ()

    def now_us(self) -> TimestampUs:
        """Return the microseconds since 1970, UTC."""
        return TimestampUs(time.time_ns() // 1000)

    def monotonic(self) -> float:
        """Return monotonic seconds."""
        return time.monotonic()
