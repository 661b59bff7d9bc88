"""Delays of produce requests to brokers that report the producer to be over a limit (rule Q7).

The sender reports the waiting time from each answer of a broker. During the waiting time, no request is sent to the
broker, so that the oldest batches and the sequences stay in order. For a while after the waiting time, requests are
sent one at a time: several concurrent requests would put the producer into debt, and all but the first would be
refused. This module must not depend on requests or batches.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Final

_LOG: Final = logging.getLogger("fairlead")
PACED_SECONDS: Final = 10.0
"""Time after the end of a wait during which requests are sent one at a time."""
LOG_SECONDS: Final = 60.0
"""Minimum time between two log lines about waits."""


@dataclass(frozen=True, slots=True)
class ProducerMetrics:
    """Counts of one producer since its creation."""

    waits: int
    """Number of answers with which brokers requested a wait because of a quota."""
    waited_seconds: float
    """Seconds of all requested waits. Waits for one broker that overlap count once."""


class Holding:
    """Waiting times that brokers have requested."""

    __slots__ = ("_logged_at", "_seconds", "_until", "_waits")

    def __init__(self) -> None:
        self._until: dict[str, float] = {}
        self._logged_at = -LOG_SECONDS
        self._waits = 0
        self._seconds = 0.0

    @property
    def metrics(self) -> ProducerMetrics:
        """Number and length of the waits so far."""
        return ProducerMetrics(self._waits, self._seconds)

    def hold(self, broker: str, seconds: float, now: float) -> None:
        """Record the seconds to wait from the answer of a broker; 0 if the broker did not request a wait."""
        if seconds <= 0:
            return
        before = self._until.get(broker, now)
        self._until[broker] = max(now + seconds, before)
        self._waits += 1
        self._seconds += self._until[broker] - max(now, before)
        if now - self._logged_at >= LOG_SECONDS:
            self._logged_at = now
            _LOG.warning(
                "%s limits this producer, which waits %.1f s before its next request", broker, seconds
            )

    def until(self, broker: str, now: float) -> float:
        """Return the time before which no request is sent to a broker; in the future only if a wait is in progress."""
        until = self._until.get(broker)
        if until is None:
            return now
        if now >= until + PACED_SECONDS:
            del self._until[broker]
        return until

    def in_flight_max(self, broker: str, usual: int, now: float) -> int:
        """Return the maximum number of requests in flight to a broker."""
        until = self._until.get(broker)
        return usual if until is None or now >= until + PACED_SECONDS else 1
