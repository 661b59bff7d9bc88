"""Limits of the bytes per second that this broker copies for links (rule L17).

The limit of a link applies to all brokers together and is divided like a quota: a broker may use the part that the
other brokers leave unused, so brokers whose mirrors are behind get most of the limit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from fairlead_api.quota_limits import Limit
from fairlead_broker.quotas.bucket import Bucket, taken_reports
from fairlead_broker.quotas.limits import UseKey
from fairlead_broker.quotas.shares import UseByOthers, share_of

ANSWERS_PER_SECOND: Final = 4
"""Divisor of the rate: an answer has at most the bytes that the rate allows in a quarter of a second. With small
answers, a mirror that is close to the end of its source waits only briefly for mirrors that are far behind."""
ANSWER_BYTES_MIN: Final = 64 << 10
"""Minimum size of a limited answer; smaller answers would cause more overhead than progress."""


class LinkRates:
    """Limit of each link, charged with the bytes of every answer from its source."""

    def __init__(self, brokers: Callable[[], int], now: Callable[[], float]) -> None:
        """`brokers` returns the number of brokers of the cluster, and `now` the monotonic time in seconds."""
        self._brokers = brokers
        self._now = now
        self._buckets: dict[str, Bucket] = {}
        self._by_others: dict[str, UseByOthers] = {}

    def follow(self, link: str, limit: int | None) -> None:
        """Apply the limit in the record of a link, which may change at any time; None means no limit."""
        bucket = self._buckets.get(link)
        if limit is None:
            self._buckets.pop(link, None)
            self._by_others.pop(link, None)
        elif bucket is None:
            share, now = self._share(link, limit), self._now()
            self._buckets[link] = Bucket(UseKey(f"link/{link}", Limit.FETCH_BYTES), limit, share, now)
        elif bucket.limit != limit:
            bucket.set_share(limit, self._share(link, limit), self._now())

    def wait_seconds(self, link: str) -> float:
        """Return the seconds until a link may fetch; 0 without a limit."""
        bucket = self._buckets.get(link)
        return 0.0 if bucket is None else bucket.wait_seconds(self._now())

    def bytes_max(self, link: str, otherwise: int) -> int:
        """Return the maximum size of the next answer, at most `otherwise`."""
        bucket = self._buckets.get(link)
        if bucket is None:
            return otherwise
        return min(otherwise, max(ANSWER_BYTES_MIN, int(bucket.share / ANSWERS_PER_SECOND)))

    def fetched(self, link: str, nbytes: int) -> None:
        """Charge an answer."""
        bucket = self._buckets.get(link)
        if bucket is not None and nbytes:
            bucket.charge(nbytes, self._now())

    def reports(self) -> list[tuple[UseKey, float, float]]:
        """Return the limits that are in use, each with the bytes since the last report."""
        return taken_reports(self._buckets.values(), self._now())

    def set_shares(
        self, reports: list[tuple[UseKey, float, float]], by_others: Mapping[UseKey, UseByOthers]
    ) -> None:
        """Set the shares of this broker from the controller's answer to its reports."""
        now = self._now()
        for link, bucket in self._buckets.items():
            if bucket.key in by_others:
                self._by_others[link] = by_others[bucket.key]
            bucket.set_share(bucket.limit, self._share(link, bucket.limit), now)

    def _share(self, link: str, limit: float) -> float:
        return share_of(limit, self._brokers(), self._by_others.get(link), self._now())
