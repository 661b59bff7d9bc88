"""The broker's only source of time.

Every room that needs the time gets a `Clock`; the pure rooms get numbers. No other module calls `time.*`, so a
simulator controls time by one object.
"""

from __future__ import annotations

import time
from typing import Protocol

from fairlead_api.identifiers import TimestampUs


class Clock(Protocol):
    """Source of the wall clock time and of elapsed time."""

    def now_us(self) -> TimestampUs:
        """Wall clock time in microseconds since 1970, UTC. May jump; used for stamps, never for waiting."""
        ...

    def monotonic(self) -> float:
        """Seconds from an arbitrary start that never go back. Used for intervals, never stored."""
        ...


class SystemClock:
    """The machine's own clocks."""

    __slots__ = ()

    def now_us(self) -> TimestampUs:
        """Microseconds since 1970, UTC."""
        return TimestampUs(time.time_ns() // 1000)

    def monotonic(self) -> float:
        """Seconds that never go back."""
        return time.monotonic()
