"""Reports of each broker to the controller, once a second, about the use of cluster-wide limits (rule Q4).

The limits are those of quotas, and the maximum rates of links.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Final, Protocol

from fairlead_api.identifiers import BrokerId
from fairlead_api.problems import ProblemError
from fairlead_broker.clock import Clock
from fairlead_broker.coordination.mirror import Mirror
from fairlead_broker.peers.peers import Peers, PeerUnavailable
from fairlead_broker.peers.usage import UsageAnswer, UsageRequest, UseAnswer, UseReport
from fairlead_broker.quotas.cluster_usage import REPORT_SECONDS, ClusterUsage
from fairlead_broker.quotas.limits import UseKey
from fairlead_broker.quotas.shares import UseByOthers

EXCHANGE_SECONDS_MAX: Final = 2.0
"""Time limit of a report in seconds. Without an answer, a broker admits at most an equal share of each limit."""
REPORTS_MAX: Final = 10_000
"""Maximum number of limits in a report."""


class SharedLimits(Protocol):
    """Limits of the cluster of which this broker uses a share."""

    def reports(self) -> list[tuple[UseKey, float, float]]:
        """Return the limits that are in use, each with the amount since the last report."""
        ...

    def set_shares(
        self, reports: list[tuple[UseKey, float, float]], by_others: Mapping[UseKey, UseByOthers]
    ) -> None:
        """Set the shares of this broker from its reports and the controller's answer to them."""
        ...


class QuotaExchange:
    """Sends this broker's usage reports and, while it is the controller, answers all brokers' reports."""

    def __init__(self, quotas: SharedLimits, peers: Peers, mirror: Mirror, clock: Clock) -> None:
        self._limits = [quotas]
        self._peers = peers
        self._mirror = mirror
        self._clock = clock
        self._usage = ClusterUsage()

    def include(self, limits: SharedLimits) -> None:
        """Include further limits in the reports."""
        self._limits.append(limits)

    async def run(self) -> None:
        """Report every second, until cancelled."""
        while True:
            # The use of a limit is a rate, so the broker reports at a fixed interval.
            await asyncio.sleep(REPORT_SECONDS)  # noqa: TID251
            await self.exchange()

    async def exchange(self) -> None:
        """Report this broker's use of the limits, and set its shares according to the answer."""
        reported = [(limits, limits.reports()) for limits in self._limits]
        reports = [each for _, own in reported for each in own][:REPORTS_MAX]
        keys = {name_of(key): key for key, _, _ in reports}
        uses = [UseReport(name_of(key), limit, amount) for key, limit, amount in reports]
        now = self._clock.monotonic()
        answers = await self._report(uses) if uses else ()
        others = {
            keys[use.name]: UseByOthers(use.others, use.owes, now) for use in answers if use.name in keys
        }
        for limits, own in reported:
            limits.set_shares(own, {key: others[key] for key, _, _ in own if key in others})

    def answer(self, broker: BrokerId, uses: Sequence[UseReport]) -> UsageAnswer:
        """Return the answer to a broker's report. Reports are sent to the controller only."""
        now = self._clock.monotonic()
        self._usage.forget_idle(now)
        by_others = self._usage.report(broker, [(use.name, use.limit, use.amount) for use in uses], now)
        return UsageAnswer(uses=[UseAnswer(name, each.others, each.owes) for name, each in by_others.items()])

    async def _report(self, uses: list[UseReport]) -> Sequence[UseAnswer]:
        controller = self._mirror.metadata.controller
        if controller is None:
            return ()
        broker, own = controller.value.broker, self._peers.own.broker
        if broker == own:
            return self.answer(own, uses).uses
        with suppress(TimeoutError, PeerUnavailable, ProblemError):
            async with asyncio.timeout(EXCHANGE_SECONDS_MAX):
                return (await self._peers.usage(broker, UsageRequest(uses=uses))).uses
        return ()


def name_of(key: UseKey) -> str:
    """Return the name of a limit in reports.

    A space separates the parts of the name, because subjects and principals contain no space.
    """
    return f"{key.limit} {key.subject} {key.principal or ''}"
