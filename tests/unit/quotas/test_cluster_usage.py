"""Brokers that report once a second keep the cluster at its limits (rule Q4, proof V14)."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterable

import pytest

from fairlead_api.quota_limits import Limit
from fairlead_broker.quotas.bucket import Bucket
from fairlead_broker.quotas.cluster_usage import ClusterUsage
from fairlead_broker.quotas.limits import UseKey
from fairlead_broker.quotas.shares import ANSWER_SECONDS_MAX, UseByOthers, share_of

LIMIT = 1000.0
STEP = 0.02
KEY = UseKey("*", Limit.PRODUCE_BYTES, "user:a")
Load = Callable[[float, random.Random], Iterable[int]]


class Brokers:
    """Brokers with one limit, whose reports take up to a second and are sometimes lost."""

    def __init__(self, count: int, seed: int) -> None:
        self._random = random.Random(seed)
        self._buckets = [Bucket(KEY, LIMIT, LIMIT / count, 0.0) for _ in range(count)]
        self._by_others: list[UseByOthers | None] = [None] * count
        self._due = [self._random.random() for _ in range(count)]
        self._answers: list[tuple[float, int, UseByOthers]] = []
        self._usage = ClusterUsage()
        self.lets_in: list[tuple[float, float]] = []

    def run(self, seconds: int, load: Load, *, ends_at: float = float("inf")) -> None:
        """Run callers that request ten times the limit, with a controller that answers until `ends_at`."""
        for step in range(int(seconds / STEP)):
            now = step * STEP
            for broker, bucket in enumerate(self._buckets):
                if now >= self._due[broker]:
                    self._due[broker] += 1 + self._random.uniform(-0.05, 0.05)
                    if now < ends_at and self._random.random() > 0.02:
                        self._report(broker, bucket, now)
            for at, broker, by_others in [answer for answer in self._answers if answer[0] <= now]:
                self._answers.remove((at, broker, by_others))
                self._by_others[broker] = UseByOthers(by_others.others, by_others.owes, now)
            for broker, bucket in enumerate(self._buckets):
                bucket.set_share(
                    LIMIT, share_of(LIMIT, len(self._buckets), self._by_others[broker], now), now
                )
            for broker in load(now, self._random):
                while self._buckets[broker].wait_seconds(now) == 0:
                    amount = LIMIT / 50 * self._random.uniform(0.5, 1.5)
                    self._buckets[broker].charge(amount, now)
                    self.lets_in.append((now, amount))

    def _report(self, broker: int, bucket: Bucket, now: float) -> None:
        by_others = self._usage.report(broker, [("limit", LIMIT, bucket.take_used())], now)["limit"]
        if self._random.random() > 0.02:
            self._answers.append((now + self._random.uniform(0, 1), broker, by_others))

    def ratio(self, begin: float, end: float) -> float:
        """Return the admitted amount between two times, relative to the limit."""
        return sum(amount for at, amount in self.lets_in if begin <= at < end) / (end - begin) / LIMIT


def one(_: float, __: random.Random) -> Iterable[int]:
    """Return the only busy broker."""
    return (0,)


@pytest.mark.parametrize("seeds", [1, pytest.param(50, marks=pytest.mark.scenario)])
@pytest.mark.parametrize("count", [1, 3, 12])
def test_the_cluster_keeps_its_limit(count: int, seeds: int) -> None:
    """Whether one broker or all are busy, the cluster's admissions over 30 s are within a tenth of its limit."""
    for seed, load in itertools.product(range(7, 7 + seeds), (one, lambda *_: range(count))):
        brokers = Brokers(count, seed)
        brokers.run(75, load)

        assert brokers.ratio(45, 75) == pytest.approx(1.0, abs=0.1), seed
        assert brokers.ratio(0, 30) <= 1.2, seed


def test_a_lost_controller_leaves_equal_parts() -> None:
    """From ten seconds after the loss of the controller, busy brokers together admit at most the limit."""
    brokers = Brokers(3, seed=3)
    brokers.run(60, lambda *_: range(3), ends_at=20)

    assert brokers.ratio(30, 60) <= 1.01


def test_a_broker_that_becomes_idle_leaves_its_part() -> None:
    """Only a recent report from a broker reduces the shares of other brokers, and unreported limits are forgotten."""
    usage = ClusterUsage()
    usage.report(1, [("limit", LIMIT, 900.0)], 0.0)
    soon = usage.report(2, [("limit", LIMIT, 0.0)], 1.0)["limit"]
    late = usage.report(2, [("limit", LIMIT, 0.0)], 9.0)["limit"]
    usage.forget_idle(60.0)
    kept = usage.report(2, [("limit", LIMIT, 5000.0)], 61.0)["limit"]
    usage.forget_idle(200.0)
    forgotten = usage.report(2, [("limit", LIMIT, 0.0)], 201.0)["limit"]

    assert (soon.others, late.others) == (900.0, 0.0)
    assert (kept.owes, forgotten.owes) == (False, False)


def test_shares_are_equal_without_news_and_in_debt() -> None:
    """A broker's share is the part of the limit that other brokers do not use, but at least an equal part.

    A broker without a recent report, or in debt, gets an equal part.
    """
    assert share_of(90, 3, UseByOthers(20, owes=False, at=0), 1) == 70
    assert share_of(90, 3, UseByOthers(89, owes=False, at=0), 1) == 30
    assert share_of(90, 3, UseByOthers(20, owes=True, at=0), 1) == 30
    assert share_of(90, 3, UseByOthers(20, owes=False, at=0), ANSWER_SECONDS_MAX + 1) == 30
    assert share_of(90, 0, None, 0) == 90
