"""Counters of one limit on one broker: a bucket for an amount in a second, a number for requests under way (rule Q5).

A bucket refills at the broker's share of the limit and holds at most one second of it. A request is admitted while the
bucket is not below zero, and is charged in full, so that a request of any size fits any limit.
"""

from __future__ import annotations

import math
from typing import Final

from fairlead_broker.quotas.limits import UseKey

WAIT_SECONDS_MAX: Final = 30.0
"""Maximum time in `Retry-After`."""


class Bucket:
    """Amount that a broker may still admit."""

    __slots__ = ("_at", "key", "level", "limit", "share", "used", "used_at")

    def __init__(self, key: UseKey, limit: float, share: float, now: float) -> None:
        """`share`: part of the cluster's `limit` that this broker may admit in a second."""
        self.key = key
        self.limit = limit
        self.share = share
        self.level = share
        """Amount that is left at the last refill; below zero, the bucket is in debt."""
        self._at = now
        self.used = 0.0
        """Amount that was charged since the last report."""
        self.used_at = now
        """Time of the last charge."""

    def charge(self, amount: float, now: float) -> None:
        """Count an amount; a negative one corrects an earlier charge."""
        # The code of `_refill` is inlined, because every request charges every bucket of its caller.
        level, share = self.level + (now - self._at) * self.share, self.share
        self.level = (level if level < share else share) - amount  # noqa: FURB136
        self.used += amount
        self._at = self.used_at = now

    def wait_seconds(self, now: float) -> float:
        """Return the time until the bucket is not below zero."""
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
        """Return the amount since the last call."""
        used, self.used = self.used, 0.0
        return used

    def _refill(self, now: float) -> None:
        self.level = min(self.level + (now - self._at) * self.share, self.share)
        self._at = now


class UnderWay:
    """Number of requests under way."""

    __slots__ = ("count", "key", "limit", "share")

    def __init__(self, key: UseKey, limit: int, brokers: int) -> None:
        self.key = key
        self.set_limit(limit, brokers)
        self.count = 0

    def set_limit(self, limit: int, brokers: int) -> None:
        """Set the number of requests that the cluster may admit; each broker has an equal part (rule Q4)."""
        self.limit = limit
        self.share = math.ceil(limit / max(1, brokers))
