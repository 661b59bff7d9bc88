"""The brokers of a cluster share the rate of a link as their mirrors need it."""

from __future__ import annotations

from typing import Final

import pytest

from coordination_kit import ManualClock
from fairlead_broker.quotas.cluster_usage import ClusterUsage
from fairlead_broker.runtime.linking.link_rates import ANSWER_BYTES_MIN, LinkRates
from fairlead_broker.runtime.quota_exchange import name_of

LIMIT: Final = 4_000_000
BROKERS: Final = 3
STEP_SECONDS: Final = 0.05


class Copying:
    """Brokers that copy as much as their rates admit, and exchange their usage once a second."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.rates = [LinkRates(lambda: BROKERS, self.clock.monotonic) for _ in range(BROKERS)]
        self.usage = ClusterUsage()
        self.copied = [0] * BROKERS

    def run(self, seconds: int, *behind: int) -> None:
        """Let the brokers whose mirrors are behind copy for some seconds."""
        for step in range(round(seconds / STEP_SECONDS)):
            self.clock.seconds += STEP_SECONDS
            for broker in behind:
                rates = self.rates[broker]
                rates.follow("east", LIMIT)
                if rates.wait_seconds("east") == 0:
                    nbytes = rates.bytes_max("east", 16 << 20)
                    rates.fetched("east", nbytes)
                    self.copied[broker] += nbytes
            if step % round(1 / STEP_SECONDS) == 0:
                self.exchange()

    def exchange(self) -> None:
        """Report the usage of each broker, and set its shares."""
        for broker, rates in enumerate(self.rates):
            reports = rates.reports()
            uses = [(name_of(key), limit, amount) for key, limit, amount in reports]
            answers = self.usage.report(broker, uses, self.clock.seconds)
            rates.set_shares(reports, {key: answers[name_of(key)] for key, _, _ in reports})


@pytest.mark.parametrize("behind", [(0,), (0, 1), (0, 1, 2)])
def test_brokers_whose_mirrors_are_behind_share_the_whole_rate(behind: tuple[int, ...]) -> None:
    """However many brokers have mirrors that are behind, together they copy about as much as the limit allows."""
    copying = Copying()
    copying.run(10, *behind)
    first = sum(copying.copied)
    copying.run(20, *behind)

    assert first < 1.5 * LIMIT * 10
    assert 0.9 * LIMIT < (sum(copying.copied) - first) / 20 < 1.1 * LIMIT


def test_a_broker_gets_the_rate_of_brokers_that_have_caught_up() -> None:
    """A broker copies at the whole rate within seconds after the mirrors of the other brokers have caught up."""
    copying = Copying()
    copying.run(10, 0, 1, 2)
    copying.run(15, 0)
    before = copying.copied[0]
    copying.run(10, 0)

    assert copying.copied[0] - before > 0.9 * LIMIT * 10


def test_the_limit_of_a_link_changes_at_once() -> None:
    """A changed limit applies to the next answer; without a limit, every answer is admitted with its full size."""
    clock = ManualClock()
    rates = LinkRates(lambda: BROKERS, clock.monotonic)
    rates.follow("east", 1_000)
    rates.fetched("east", 2_000)

    assert rates.bytes_max("east", 16 << 20) == ANSWER_BYTES_MIN
    assert rates.wait_seconds("east") > 0
    rates.follow("east", LIMIT)
    assert rates.bytes_max("east", 16 << 20) == LIMIT // BROKERS // 4
    rates.follow("east", None)
    rates.fetched("east", 16 << 20)
    assert (rates.wait_seconds("east"), rates.bytes_max("east", 16 << 20)) == (0, 16 << 20)
    assert rates.reports() == []
