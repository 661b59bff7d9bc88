"""Limits the rate at which this broker copies replicas that moves add to this broker.

All fetchers of a broker share one throttle. A replica is throttled from the start of its move until it is in sync, so
that the throttle never delays an acknowledgement for long (decision 0141). The throttle costs one call for each answer
with records of a throttled replica.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from fairlead_broker.clock import Clock

SHARE_OF_A_SECOND: Final = 8
"""Divisor of the rate: for one partition, an answer has at most the bytes that the rate allows in an eighth of a
second. With small answers, a replica that has almost caught up waits only briefly for other partitions, and can join
the isr under load."""
FETCH_BYTES_MIN: Final = 64 << 10
"""Minimum number of bytes for one partition in an answer; smaller answers would cause more overhead than progress."""


class MoveThrottle:
    """Computes when the next bytes may be fetched."""

    def __init__(self, bytes_per_second: Callable[[], int | None], clock: Clock) -> None:
        """`bytes_per_second` returns the configured rate, which may change at any time; None means no limit."""
        self._configured = bytes_per_second
        self._clock = clock
        self._rate: int | None = None
        self._free_at = 0.0

    def bytes_max(self, otherwise: int) -> int:
        """Return the maximum number of bytes to fetch for one partition, at most `otherwise`."""
        if self._rate is None:
            return otherwise
        return min(otherwise, max(FETCH_BYTES_MIN, self._rate // SHARE_OF_A_SECOND))

    def copied(self, nbytes: int) -> float | None:
        """Count copied bytes; return the time of the partition's next allowed fetch, or None if it need not wait."""
        if self._rate is None:
            return None
        self._free_at = max(self._free_at, self._clock.monotonic()) + nbytes / self._rate
        return self._free_at

    def follow_configuration(self) -> bool:
        """Apply the configured rate; return whether the rate has changed. A changed rate ends all waits."""
        before, self._rate = self._rate, self._configured()
        if before == self._rate:
            return False
        self._free_at = 0.0
        return True
