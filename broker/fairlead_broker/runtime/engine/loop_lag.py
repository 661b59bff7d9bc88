"""Measurement of how late the event loop runs its timers. A long delay reveals work that blocks the loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

INTERVAL_SECONDS = 0.25


class LoopLag:
    """Recurring timer whose delay is measured."""

    __slots__ = ("_interval_seconds", "_loop", "_observe", "_timer")

    def __init__(self, observe: Callable[[float], None], interval_seconds: float = INTERVAL_SECONDS) -> None:
        self._observe = observe
        self._interval_seconds = interval_seconds
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Start measuring the delay of the event loop."""
        self._set(self._loop.time() + self._interval_seconds)

    def stop(self) -> None:
        """Stop measuring the delay of the event loop."""
        if self._timer is not None:
            self._timer.cancel()

    def _set(self, due: float) -> None:
        self._timer = self._loop.call_at(due, self._woken, due)

    def _woken(self, due: float) -> None:
        now = self._loop.time()
        self._observe(max(0.0, now - due))
        self._set(now + self._interval_seconds)
