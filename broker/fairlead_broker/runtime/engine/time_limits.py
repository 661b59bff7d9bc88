"""Time limits of short waits, which share one timer of the event loop.

A timer of the event loop takes three microseconds to start and to cancel, as long as a third of the encoding of a small
batch. Nearly all waits for a body or for an acknowledgement end long before their limit. Limits of the same length
expire in the order in which they began, so a queue and one timer are enough for all of them.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

KEPT_MIN: Final = 1024
"""Number of limits from which cancelled limits are removed behind a limit that has not ended."""


class TimeLimit:
    """Limit of one wait; `expire` is called once when the limit is reached, unless the limit was cancelled."""

    __slots__ = ("deadline", "expire")

    def __init__(self, deadline: float, expire: Callable[[], object]) -> None:
        self.deadline = deadline
        self.expire: Callable[[], object] | None = expire

    def cancel(self) -> None:
        """End the limit without a call, because the wait has ended."""
        self.expire = None


class TimeLimits:
    """Limits of `seconds`, which begin and are cancelled on one event loop."""

    __slots__ = ("_kept_max", "_limits", "_timer", "seconds")

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._limits: deque[TimeLimit] = deque()
        self._kept_max = KEPT_MIN
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, expire: Callable[[], object]) -> TimeLimit:
        """Begin a limit, at whose end `expire` is called."""
        limits, loop = self._limits, asyncio.get_running_loop()
        while limits and limits[0].expire is None:
            limits.popleft()
        if len(limits) >= self._kept_max:
            limits = self._limits = deque(each for each in limits if each.expire is not None)
            self._kept_max = max(KEPT_MIN, 2 * len(limits))
        limit = TimeLimit(loop.time() + self.seconds, expire)
        limits.append(limit)
        if self._timer is None:
            self._timer = loop.call_at(limit.deadline, self._look)
        return limit

    def _look(self) -> None:
        """Call the expired limits, and start the timer again for the first of the others."""
        self._timer = None
        loop = asyncio.get_running_loop()
        now = loop.time()
        while self._limits and (self._limits[0].expire is None or self._limits[0].deadline <= now):
            limit = self._limits.popleft()
            if limit.expire is not None:
                expire, limit.expire = limit.expire, None
                expire()
        if self._limits and self._timer is None:
            self._timer = loop.call_at(self._limits[0].deadline, self._look)


def end_now(timeout: asyncio.Timeout) -> None:
    """Make a timeout expire now, unless it has already expired."""
    if not timeout.expired():
        timeout.reschedule(asyncio.get_running_loop().time())
