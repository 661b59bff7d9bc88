"""Usage of limits in the whole cluster, which the controller computes from the reports of all brokers (rule Q4).

The answer to a report contains the usage of the other brokers, and whether the cluster is in debt. A new controller
begins without debts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from fairlead_broker.quotas.shares import UseByOthers

REPORT_SECONDS: Final = 1.0
"""Seconds between two reports of a broker."""
REPORT_SECONDS_MAX: Final = 3.0
"""Seconds after which the last report of a broker no longer counts."""
DEBT_SECONDS_MAX: Final = 30.0
"""Maximum debt, in seconds at the rate of the limit."""
TOLERANCE_SECONDS: Final = 0.1
"""Debt, in seconds at the rate of the limit, that is ignored because reports do not arrive at the same time."""
FORGOTTEN_SECONDS: Final = 60.0


@dataclass(slots=True)
class _Use:
    """The cluster's use of one limit."""

    counted_at: float
    """Time at which the debt was last counted."""
    debt: float = 0.0
    rates: dict[int, tuple[float, float]] = field(default_factory=dict)
    """Amount per second in the last report of each broker, and the time of the report."""


class ClusterUsage:
    """Usage of limits, from the reports of all brokers."""

    __slots__ = ("_reported", "_uses")

    def __init__(self) -> None:
        self._uses: dict[str, _Use] = {}
        self._reported: dict[int, float] = {}
        """Time of the last report from each broker."""

    def report(
        self, broker: int, uses: Iterable[tuple[str, float, float]], now: float
    ) -> Mapping[str, UseByOthers]:
        """Count a broker's report, and return the other brokers' usage of each limit.

        `uses`: name, limit and amount since the broker's last report.
        """
        before = self._reported.get(broker, now - REPORT_SECONDS)
        seconds = min(max(now - before, REPORT_SECONDS / 2), REPORT_SECONDS_MAX)
        self._reported[broker] = now
        return {name: self._count(broker, name, limit, amount, seconds, now) for name, limit, amount in uses}

    def forget_idle(self, now: float) -> None:
        """Remove limits without a recent report; such limits have no debt."""
        self._uses = {
            name: use
            for name, use in self._uses.items()
            if any(now - at < FORGOTTEN_SECONDS for _, at in use.rates.values())
        }

    def _count(
        self, broker: int, name: str, limit: float, amount: float, seconds: float, now: float
    ) -> UseByOthers:
        use = self._uses.get(name)
        if use is None:
            use = self._uses[name] = _Use(counted_at=now)
        # Brokers report at different times, so the debt is counted from rates: amounts that arrive together would look
        # like a debt.
        rates = {other: rate for other, (rate, at) in use.rates.items() if now - at <= REPORT_SECONDS_MAX}
        debt = use.debt + (sum(rates.values()) - limit) * (now - use.counted_at)
        use.debt = min(max(debt, 0.0), DEBT_SECONDS_MAX * limit)
        use.counted_at = now
        use.rates[broker] = amount / seconds, now
        others = sum(rate for other, rate in rates.items() if other != broker)
        return UseByOthers(others, use.debt > TOLERANCE_SECONDS * limit, now)
