"""How many produce calls may be under way: fewer when the event loop is late.

Callers: ``listeners`` feeds it, ``body`` asks it. The number of calls decides how long each waits, and too many cost
more than they bring; how many are right depends on the machine, the batches and the disk. What is measured is how
late the loop wakes a timer, since everything that a request waits for, its refusal too, stands in the same queue.
Additive increase and multiplicative decrease, as TCP does with its window (Jacobson 1988).

A slow disk alone leaves the loop on time: then the largest number holds, and refusing costs as little as ever.
"""

from __future__ import annotations

from typing import Final

INTERVAL_SECONDS: Final = 0.05
"""Between two looks at the loop: many requests long, and much shorter than the time in which a refusal is due."""
LATE_SECONDS: Final = 0.014
"""From here on the loop is late: a refusal takes three or four of its turns, and is to take less than 0.1 s. Lower
and goodput falls: 12 ms brought 0.82 to 0.99 of the peak at twice the load, 20 ms 0.95 to all of it with later
refusals."""
CALLS_MIN: Final = 64
"""Enough to keep loop, disk and network busy at once."""
_DECREASE: Final = 0.7
_INCREASE: Final = 16
"""From the least to 1,000 in three seconds."""


class CallLimit:
    """Counts calls under way against a limit that follows the loop's lag."""

    __slots__ = ("_calls_max", "calls", "limit")

    def __init__(self, calls_max: int) -> None:
        self._calls_max = calls_max
        self.limit = calls_max
        """How many are let in at the moment."""
        self.calls = 0
        """How many are under way."""

    def observe_lag(self, seconds: float) -> None:
        """Adjust the limit to the measured lag of the event loop."""
        if seconds > LATE_SECONDS:
            # Not what the limit was but what was under way made it late.
            lowered = round(min(self.limit, max(self.calls, CALLS_MIN)) * _DECREASE)
            self.limit = min(self._calls_max, max(CALLS_MIN, lowered))
        else:
            self.limit = min(self._calls_max, self.limit + _INCREASE)

    @property
    def full(self) -> bool:
        """Whether another call would be refused."""
        return self.calls >= self.limit

    def begin(self) -> bool:
        """Count a call, if it may be let in."""
        if self.calls >= self.limit:
            return False
        self.calls += 1
        return True

    def go_on(self) -> None:
        """Count a call that was let in before."""
        self.calls += 1

    def end(self) -> None:
        """Count a call no more."""
        self.calls -= 1
