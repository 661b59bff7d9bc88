"""Counters for one limit on one broker: a bucket for an amount per second, or a count of current requests (rule Q5).

A bucket refills at the rate of the broker's share of the limit, and contains at most one second's share. A request
is admitted while the bucket is not below zero, and is charged in full, so that a request of any size fits any limit.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Final

from fairlead_broker.quotas.limits import UseKey

WAIT_SECONDS_MAX: Final = 30.0
"""Maximum value of the `Retry-After` header, in seconds."""
ACTIVE_SECONDS: Final = 10.0
"""Seconds for which an unused limit is still reported, so that answers include its use on other brokers."""


class Bucket:
    """Token bucket: the amount that a broker may still admit."""

    __slots__ = ("_at", "key", "level", "limit", "share", "used", "used_at")

    def __init__(self, key: UseKey, limit: float, share: float, now: float) -> None:
        """`share`: part of the cluster's `limit` that this broker may admit per second."""
        self.key = key
        self.limit = limit
        self.share = share
        self.level = share
        """Amount that was left at the last refill. A negative amount is a debt."""
        self._at = now
        self.used = 0.0
        """Amount that was charged since the last report."""
        self.used_at = now
        """Time of the last charge."""

    def charge(self, amount: float, now: float) -> None:
        """Charge an amount. A negative amount corrects an earlier charge."""
        # The code of `_refill` is inlined, because every request charges every bucket of its caller.
        level, share = self.level + (now - self._at) * self.share, self.share
        self.level = (level if level < share else share) - amount  # noqa: FURB136
        self.used += amount
        self._at = self.used_at = now

    def wait_seconds(self, now: float) -> float:
        """Return the seconds until the bucket is no longer below zero."""
        if self.level >= 0:
            return 0.0
        self._refill(now)
        return min(-self.level / self.share, WAIT_SECONDS_MAX) if self.level < 0 else 0.0

    def set_share(self, limit: float, share: float, now: float) -> None:
        """Change the rate at which the bucket refills."""
        self._refill(now)
        self.limit = limit
        self.share = share
        self.level = min(self.level, share)

    def take_used(self) -> float:
        """Return the amount that was charged since the last call."""
        used, self.used = self.used, 0.0
        return used

    def _refill(self, now: float) -> None:
        self.level = min(self.level + (now - self._at) * self.share, self.share)
        self._at = now


def taken_reports(buckets: Iterable[Bucket], now: float) -> list[tuple[UseKey, float, float]]:
    """Return the limits of buckets that are in use, each with the amount since the last report."""
    return [
        (bucket.key, bucket.limit, bucket.take_used())
        for bucket in buckets
        if bucket.used or now - bucket.used_at < ACTIVE_SECONDS
    ]


class UnderWay:
    """Number of requests in progress."""

    __slots__ = ("count", "key", "limit", "share")

    def __init__(self, key: UseKey, limit: int, brokers: int) -> None:
        self.key = key
        self.set_limit(limit, brokers)
        self.count = 0

    def set_limit(self, limit: int, brokers: int) -> None:
        """Set the number of concurrent requests that the cluster may admit.

        Each broker gets an equal share of this number (Q4).
        """
        self.limit = limit
        self.share = math.ceil(limit / max(1, brokers))
