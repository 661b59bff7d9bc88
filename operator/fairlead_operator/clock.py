"""The operator's only source of time and random numbers, passed to the packages that need them."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Protocol


class Clock(Protocol):
    """The wall clock and the monotonic clock."""

    def now(self) -> datetime:
        """Return the wall clock time in UTC.

        The wall clock may jump, so it is used for timestamps, never for intervals.
        """
        ...

    def monotonic(self) -> float:
        """Return the seconds since an arbitrary start.

        The returned value never decreases. Callers use the value for intervals and never store it.
        """
        ...


class SystemClock:
    """The clocks of the machine."""

    __slots__ = ()

    def now(self) -> datetime:
        """Return the wall clock time in UTC."""
        return datetime.now(UTC)

    def monotonic(self) -> float:
        """Return the seconds since an arbitrary start, which never decrease."""
        return time.monotonic()


Chance = Callable[[], float]
"""Source of random numbers from 0 to 1, for the jitter of pauses."""


def system_chance() -> Chance:
    """Return the random source of the program, which `wiring` passes to the packages that need one."""
    return random.Random().random  # noqa: S311 - jitter needs no cryptographic randomness
