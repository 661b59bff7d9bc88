"""The broker's only source of time.

Every package that needs the time receives a `Clock`; the pure packages receive numbers. No other module calls `time.*`,
so that a simulator can control the time through one object.
"""

from __future__ import annotations

import time
from typing import Protocol

from fairlead_api.identifiers import TimestampUs


class Clock(Protocol):
    """Source of wall clock time and monotonic time."""

    def now_us(self) -> TimestampUs:
        """Return the wall clock time in microseconds since 1970, UTC.

        The wall clock may jump. Callers use the wall clock for timestamps, never for waiting.
        """
        ...

    def monotonic(self) -> float:
        """Return the number of seconds since an arbitrary start.

        The number never decreases. Use the number for intervals, and never store it.
        """
        ...


class SystemClock:
    """`Clock` that reads the clocks of the operating system."""

    __slots__ = ()

    def now_us(self) -> TimestampUs:
        """Return the microseconds since 1970, UTC."""
        return TimestampUs(time.time_ns() // 1000)

    def monotonic(self) -> float:
        """Return the monotonic time in seconds."""
        return time.monotonic()
