"""Holding back of produce requests to brokers at which the producer is over a limit (rule Q7).

The sender reports what each broker tells. For the told time nothing is sent to that broker, so that the oldest batches
stay first and sequences in order. For a while after it, one request at a time is sent: several at once would put the
producer into debt and all but the first would be refused. This module must not depend on requests or batches.
"""

from __future__ import annotations

import logging
from typing import Final

_LOG: Final = logging.getLogger("fairlead")
PACED_SECONDS: Final = 10.0
"""Time after the end of a wait during which requests are sent one at a time."""
LOG_SECONDS: Final = 60.0
"""Minimum time between two lines of the log about waits."""


class Holding:
    """Waits that brokers have asked for."""

    __slots__ = ("_logged_at", "_until")

    def __init__(self) -> None:
        self._until: dict[str, float] = {}
        self._logged_at = -LOG_SECONDS

    def told(self, broker: str, seconds: float, now: float) -> None:
        """Record what a broker told: the seconds to wait, or 0 if it did not ask for a wait."""
        if seconds <= 0:
            return
        self._until[broker] = max(now + seconds, self._until.get(broker, 0.0))
        if now - self._logged_at >= LOG_SECONDS:
            self._logged_at = now
            _LOG.warning(
                "%s limits this producer, which waits %.1f s before its next request", broker, seconds
            )

    def until(self, broker: str, now: float) -> float:
        """Return the time before which nothing is sent to a broker; a time in the past without a wait."""
        until = self._until.get(broker)
        if until is None:
            return now
        if now >= until + PACED_SECONDS:
            del self._until[broker]
        return until

    def in_flight_max(self, broker: str, usual: int, now: float) -> int:
        """Return the number of requests that may be under way to a broker."""
        until = self._until.get(broker)
        return usual if until is None or now >= until + PACED_SECONDS else 1
