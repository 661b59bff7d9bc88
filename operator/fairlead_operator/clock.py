"""The operator's only source of time and chance, handed to the rooms that need them."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Protocol


class Clock(Protocol):
    """Two faces of time: what the calendar says, and what has passed."""

    def now(self) -> datetime:
        """Wall clock time in UTC. May jump; used for stamps, never for waiting."""
        ...

    def monotonic(self) -> float:
        """Seconds from an arbitrary start that never go back. Used for intervals, never stored."""
        ...


class SystemClock:
    """The machine's own clocks."""

    __slots__ = ()

    def now(self) -> datetime:
        """Wall clock time in UTC."""
        return datetime.now(UTC)

    def monotonic(self) -> float:
        """Seconds that never go back."""
        return time.monotonic()


Chance = Callable[[], float]
"""A number from 0 to 1, another one each time: the jitter of waits."""


def system_chance() -> Chance:
    """The program's one source of chance, for `wiring` to hand around."""
    return random.Random().random  # noqa: S311 - jitter is no secret
