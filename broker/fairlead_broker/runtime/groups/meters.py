"""Metrics of coordinated groups. Counters are updated at each change, gauges are computed at each scrape."""

from __future__ import annotations

from collections.abc import Callable

from fairlead_broker.telemetry import Telemetry


class GroupMeters:
    """Metrics of all groups of one broker."""

    __slots__ = ("_commit_seconds", "_rebalances", "_telemetry", "_transactions")

    def __init__(self, telemetry: Telemetry) -> None:
        self._telemetry = telemetry
        self._commit_seconds = telemetry.metric("fairlead_group_commit_seconds")
        self._rebalances = telemetry.metric("fairlead_group_rebalances_total")
        self._transactions = telemetry.metric("fairlead_group_offset_transactions_total")

    def watch(self, groups: Callable[[], int], members: Callable[[], int]) -> None:
        """Export the number of groups and the number of members, computed at each scrape."""
        self._telemetry.metric("fairlead_coordinated_groups").set_function(groups)
        self._telemetry.metric("fairlead_group_members").set_function(members)

    def committed(self, seconds: float) -> None:
        """Record the duration of a stored commit."""
        self._commit_seconds.observe(seconds)

    def transactions(self, count: int) -> None:
        """Count transactions that wrote offsets."""
        self._transactions.inc(count)

    def rebalanced(self) -> None:
        """Count a rebalance, which computes a new target assignment for a group."""
        self._rebalances.inc()
