"""Rate limit for this broker's transactions of committed offsets: its share of the load on coordination.

Used by the coordinated groups, which are served in the order of their requests. While a group waits, its commits
accumulate, and one transaction writes all of them: a lower rate leads to larger transactions, not to fewer commits
(protocol section 5, rule 4).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

from fairlead_broker.clock import Clock
from fairlead_broker.registry.metadata import ClusterMetadata
from fairlead_broker.registry.records import BrokerState

CLUSTER_TRANSACTIONS_PER_SECOND: Final = 480.0
"""Maximum number of transactions per second for all brokers together. Together, all writes of groups must stay below
500 per second."""
BURST_SECONDS: Final = 0.1
"""Number of seconds for which unused transactions may accumulate. All accumulated transactions may be used at once."""
TIMER_SECONDS_MIN: Final = 0.001


class OffsetBudget:
    """Grants transactions at a limited rate, in the order of the requests."""

    __slots__ = ("_asked", "_at", "_clock", "_rate", "_timer", "_tokens", "granted")

    def __init__(self, clock: Clock, rate: Callable[[], float]) -> None:
        """`rate` returns this broker's current number of transactions per second, above 0."""
        self._clock = clock
        self._rate = rate
        self._asked: deque[Callable[[], None]] = deque()
        self._tokens = 1.0
        self._at = clock.monotonic()
        self._timer: asyncio.TimerHandle | None = None
        self.granted = 0
        """Number of transactions granted so far."""

    @property
    def waiting(self) -> int:
        """Number of requests that wait for a transaction."""
        return len(self._asked)

    def ask(self, granted: Callable[[], None]) -> None:
        """Call a function when a transaction may begin: at once if a transaction is available and no other group waits.

        The function must not raise, and may call `ask` again.
        """
        self._asked.append(granted)
        if self._timer is None:
            self._grant()

    def spend(self, transactions: int) -> None:
        """Count transactions that a group used in addition to the granted transaction.

        Later requests wait longer because of the additional transactions.
        """
        self._tokens -= transactions
        self.granted += transactions

    def close(self) -> None:
        """Drop all waiting requests and grant no further transactions."""
        self._asked.clear()
        if self._timer is not None:
            self._timer.cancel()

    def _grant(self) -> None:
        self._timer = None
        rate, now = self._rate(), self._clock.monotonic()
        self._tokens = min(max(1.0, rate * BURST_SECONDS), self._tokens + (now - self._at) * rate)
        self._at = now
        while self._asked and self._tokens >= 1:
            self._tokens -= 1
            self.granted += 1
            self._asked.popleft()()
        # A function called above may have called `ask` again, and `ask` may have set the timer.
        if self._asked and self._timer is None:
            # Because of rounding, a shorter timer could end just before a whole token is available.
            seconds = max((1 - self._tokens) / rate, TIMER_SECONDS_MIN)
            self._timer = asyncio.get_running_loop().call_later(seconds, self._grant)


def own_rate(metadata: ClusterMetadata) -> float:
    """Return this broker's share of the cluster's transactions per second.

    Brokers that are not stopping have equal shares.
    """
    taking_part = sum(each.value.state is not BrokerState.STOPPING for each in metadata.brokers.values())
    return CLUSTER_TRANSACTIONS_PER_SECOND / max(1, taking_part)
