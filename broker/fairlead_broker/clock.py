"""The broker's only source of time.

Every package that needs the time receives a `Clock`, except the pure packages, which receive numbers. No other module
calls `time.*`, so that a simulator can control the time through one object.
"""

from __future__ import annotations

import time
from typing import Final, Protocol

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

        The monotonic time never decreases. Monotonic times are used for intervals and are never stored.
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


HOUR_US: Final = 3600 * 1_000_000


class ExpiryTime:
    """Wall clock for the permanent deletion of stored state. A forward jump puts this clock ahead by at most an hour.

    Periodic tasks use this clock to delete state that cannot be restored, such as committed offsets. A wall clock that
    is temporarily wrong must not cause a loss of state. Therefore:

    - nothing expires in the first hour of a broker, since a clock that is wrong at startup is usually corrected soon;
    - after that, a forward jump counts as at most an hour, however long the clock stays ahead. The returned time is at
      most an hour above the monotonic clock plus the smallest measured difference between the two clocks.

    A backward jump takes effect at once, since it only delays deletions. If the clock is then set forward to the
    correct time, this jump counts as at most an hour until the broker is restarted. If the machine sleeps for longer
    than an hour, one hour is counted.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._start = clock.monotonic()
        self._distance_us = clock.now_us() - _microseconds(self._start)
        """Smallest measured distance between the wall clock and the monotonic clock, in microseconds."""

    def now_us(self) -> TimestampUs:
        """Return the time for expiry checks. In the first hour the returned time is 0, so nothing expires."""
        wall_us, monotonic = self._clock.now_us(), self._clock.monotonic()
        self._distance_us = min(self._distance_us, wall_us - _microseconds(monotonic))
        if _microseconds(monotonic - self._start) < HOUR_US:
            return TimestampUs(0)
        return TimestampUs(min(wall_us, self._distance_us + _microseconds(monotonic) + HOUR_US))


def _microseconds(seconds: float) -> int:
    return round(seconds * 1e6)
