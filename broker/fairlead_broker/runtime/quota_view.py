"""Limits of each caller on this broker, compiled from the quotas in the mirror (rules Q3 to Q6, Q8, Q10).

The access gate calls this view once for each request on the data listener, unless the mode is `open`. When quotas
change, the buckets are kept, so that callers stay in debt. In `observe` mode, requests are counted and never refused.
In `open` mode, no request is counted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from fairlead_api.problems import ProblemError
from fairlead_api.quota_limits import Limit
from fairlead_api.routes.definitions import Traffic
from fairlead_broker.access.caller_access import CallerAccess
from fairlead_broker.credentials.failure_budget import network_of
from fairlead_broker.quotas.bucket import Bucket, UnderWay, taken_reports
from fairlead_broker.quotas.limits import AppliedLimit, QuotaTable, UseKey, quota_of
from fairlead_broker.quotas.shares import UseByOthers, share_of
from fairlead_broker.registry.metadata import ClusterMetadata

CALLERS_MAX: Final = 10_000
"""Maximum number of callers whose limits are remembered."""
IDLE_SECONDS: Final = 60.0
"""Seconds after which an unused counter is dropped; no bucket is in debt for that long."""
USE_SECONDS: Final = 10.0
"""Seconds over which the displayed use of a limit is averaged."""
CONCURRENT_RETRY_SECONDS: Final = 1.0
"""Estimated number of seconds after which a caller with too many requests in progress should retry."""


@dataclass(frozen=True, slots=True)
class QuotaMetrics:
    """Functions that count refusals and export the used fraction of each limit, by subject and limit."""

    refused: Callable[[str, str], None]
    used: Callable[[Mapping[tuple[str, str], float]], None]


class CallerQuota:
    """Limits of one caller, which are charged when a request from the caller begins and ends."""

    __slots__ = (
        "_fetch",
        "_gates",
        "_holds",
        "_now",
        "_produce",
        "_refused",
        "_requests",
        "_under_way",
        "counts_bodies",
        "has_rates",
        "is_limited",
    )

    def __init__(
        self,
        rates: Mapping[Limit, list[Bucket]],
        under_way: list[UnderWay],
        now: Callable[[], float],
        refused: Callable[[str, str], None],
        *,
        holds: bool,
    ) -> None:
        """`holds`: whether requests beyond a limit are refused instead of only counted."""
        self._produce = tuple(rates.get(Limit.PRODUCE_BYTES, ()))
        self._fetch = tuple(rates.get(Limit.FETCH_BYTES, ()))
        self._requests = tuple(rates.get(Limit.REQUESTS, ()))
        self._under_way = under_way
        self._gates: dict[Traffic, tuple[Bucket, ...]] = {
            Traffic.CALL: self._requests,
            Traffic.ROUTINE: self._requests,
            Traffic.PRODUCE: (*self._produce, *self._requests),
            Traffic.FETCH: (*self._fetch, *self._requests),
        }
        self.is_limited = bool(rates or under_way)
        """Whether the caller has any limit."""
        self.has_rates = bool(rates)
        """Whether the bytes or the number of requests of the caller in a second are limited."""
        self.counts_bodies = bool(self._produce)
        """Whether the size of produce bodies is limited."""
        self._now = now
        self._refused = refused
        self._holds = holds

    def begin(self, traffic: Traffic, body_bytes: int) -> None:
        """Admit a request and charge it. Raises `throttled`, in which case nothing is charged.

        A fetch from a caller in debt is admitted but must wait (`wait_seconds`). `body_bytes`: declared size of a
        produce body.
        """
        for counter in self._under_way:
            if counter.count >= counter.share:
                self._refuse(counter.key, counter.limit, CONCURRENT_RETRY_SECONDS)
        gate = self._gates[traffic]
        if gate:
            now = self._now()
            if traffic is not Traffic.FETCH:
                for bucket in gate:
                    if bucket.level < 0 and (seconds := bucket.wait_seconds(now)) > 0:
                        self._refuse(bucket.key, bucket.limit, max(seconds, self.wait_seconds(traffic)))
            for bucket in self._requests:
                bucket.charge(1, now)
            if traffic is Traffic.PRODUCE:
                for bucket in self._produce:
                    bucket.charge(body_bytes, now)
        for counter in self._under_way:
            counter.count += 1

    def end(self, traffic: Traffic, uncharged_bytes: int) -> None:
        """End an admitted request.

        `uncharged_bytes`: number of bytes of the request's body that were received beyond the declared size.
        """
        for counter in self._under_way:
            counter.count -= 1
        if uncharged_bytes and traffic is Traffic.PRODUCE:
            now = self._now()
            for bucket in self._produce:
                bucket.charge(uncharged_bytes, now)

    def fetched(self, sent_bytes: int) -> None:
        """Charge the bytes of an answer with records."""
        if self._fetch:
            now = self._now()
            for bucket in self._fetch:
                bucket.charge(sent_bytes, now)

    def wait_seconds(self, traffic: Traffic) -> float:
        """Return the time until the rates would admit a request of this kind."""
        gate = self._gates[traffic]
        if not gate or not self._holds:
            return 0.0
        now = self._now()
        return max([bucket.wait_seconds(now) for bucket in gate if bucket.level < 0], default=0.0)

    def _refuse(self, key: UseKey, limit: float, seconds: float) -> None:
        """Raise `throttled`, or only count the refusal in `observe` mode."""
        self._refused(key.subject, key.limit)
        if not self._holds:
            return
        raise ProblemError(
            "throttled",
            f"{key.principal or key.subject} is at the limit {key.limit} of the quota of {key.subject}",
            retry_after_seconds=seconds,
            data={"quota": str(key.limit), "subject": key.subject, "limit": limit},
        )


class QuotaView:
    """Limits of all callers, and their use on this broker."""

    def __init__(self, metadata: ClusterMetadata, now: Callable[[], float], metrics: QuotaMetrics) -> None:
        """`now`: monotonic time in seconds."""
        self._metadata = metadata
        self._now = now
        self._metrics = metrics
        self._buckets: dict[UseKey, Bucket] = {}
        self._under_way: dict[UseKey, UnderWay] = {}
        self._by_others: dict[UseKey, UseByOthers] = {}
        self._use: dict[UseKey, float] = {}
        """Average amount per second that this broker has admitted."""
        self._ticked_at = now()
        self._compile()

    def of(self, access: CallerAccess, address: str) -> CallerQuota:
        """Return the limits of a caller, unless the mode is `open`; `address` identifies an anonymous caller."""
        if self._revision != self._metadata.security_revision:
            self._compile()
        known = self._callers.get(access)
        if known is not None:
            return known
        if access.caller.is_anonymous:
            return self._of_address(access, network_of(address))
        found = self._callers[access] = self._made(access, self.table.of(access.caller.principal))
        _bound(self._callers)
        return found

    def reports(self) -> list[tuple[UseKey, float, float]]:
        """Return the limits that are in use, each with the amount since the last report."""
        return taken_reports(self._buckets.values(), self._now())

    def set_shares(
        self, reports: list[tuple[UseKey, float, float]], by_others: Mapping[UseKey, UseByOthers]
    ) -> None:
        """Set the shares of this broker from its reports and the controller's answer to them."""
        now = self._now()
        seconds = max(now - self._ticked_at, 0.001)
        self._ticked_at = now
        amounts = {key: amount for key, _, amount in reports}
        part = min(seconds / USE_SECONDS, 1.0)
        self._use = {
            key: self._use.get(key, 0.0) * (1 - part) + amounts.get(key, 0.0) / seconds * part
            for key in self._use.keys() | amounts.keys()
            if key in self._buckets
        }
        self._by_others.update(by_others)
        brokers = len(self._metadata.brokers)
        for key, bucket in self._buckets.items():
            share = share_of(bucket.limit, brokers, self._by_others.get(key), now)
            bucket.set_share(bucket.limit, share, now)
        for counter in self._under_way.values():
            counter.set_limit(counter.limit, brokers)
        self._forget_idle(now)
        self._show()

    def applied_to(self, access: CallerAccess, address: str) -> list[tuple[AppliedLimit, float]]:
        """Return the limits of a caller, each with its last known use in the cluster."""
        if access.is_open:
            return []
        if self._revision != self._metadata.security_revision:
            self._compile()
        name = network_of(address) if access.caller.is_anonymous else None
        limits = self.table.of(access.caller.principal, name)
        return [(each, self._use_of_limit(each.key)) for each in _applying(access, limits)]

    def use_of(self, subject: str) -> list[tuple[UseKey, float]]:
        """Return the last known use of a subject's limits in the cluster."""
        found = [
            (key, self._use_of_limit(key))
            for key in (*self._buckets, *self._under_way)
            if key.subject == subject
        ]
        return sorted(found, key=lambda each: (each[0].limit, each[0].principal or ""))

    def _use_of_limit(self, key: UseKey) -> float:
        counter = self._under_way.get(key)
        return self._use.get(key, 0.0) + self._others(key) if counter is None else float(counter.count)

    def _compile(self) -> None:
        self._revision = self._metadata.security_revision
        self.table = QuotaTable(
            quota_of(subject, record.value) for subject, record in self._metadata.quotas.items()
        )
        self._forget_callers()

    def _forget_callers(self) -> None:
        self._callers: dict[CallerAccess, CallerQuota] = {}
        self._addresses: dict[str, tuple[CallerAccess, CallerQuota]] = {}

    def _of_address(self, access: CallerAccess, network: str) -> CallerQuota:
        known = self._addresses.get(network)
        if known is not None and known[0] is access:
            return known[1]
        found = self._made(access, self.table.of(access.caller.principal, network))
        self._addresses[network] = access, found
        _bound(self._addresses)
        return found

    def _made(self, access: CallerAccess, limits: tuple[AppliedLimit, ...]) -> CallerQuota:
        rates: dict[Limit, list[Bucket]] = {}
        under_way: list[UnderWay] = []
        for applied in _applying(access, limits):
            limit = applied.key.limit
            if limit is Limit.CONCURRENT_REQUESTS:
                under_way.append(self._counter(applied))
            else:
                rates.setdefault(limit, []).append(self._bucket(applied))
        return CallerQuota(rates, under_way, self._now, self._metrics.refused, holds=access.holds)

    def _bucket(self, applied: AppliedLimit) -> Bucket:
        now, key = self._now(), applied.key
        share = share_of(applied.value, len(self._metadata.brokers), self._by_others.get(key), now)
        bucket = self._buckets.get(key)
        if bucket is None:
            bucket = self._buckets[key] = Bucket(key, applied.value, share, now)
        else:
            bucket.set_share(applied.value, share, now)
        return bucket

    def _counter(self, applied: AppliedLimit) -> UnderWay:
        key, brokers = applied.key, len(self._metadata.brokers)
        counter = self._under_way.get(key)
        if counter is None:
            counter = self._under_way[key] = UnderWay(key, applied.value, brokers)
        counter.set_limit(applied.value, brokers)
        return counter

    def _forget_idle(self, now: float) -> None:
        idle = [key for key, bucket in self._buckets.items() if now - bucket.used_at > IDLE_SECONDS]
        unused: list[UseKey] = []
        if len(self._under_way) > CALLERS_MAX:
            unused = [key for key, counter in self._under_way.items() if not counter.count]
        for key in idle:
            del self._buckets[key]
            self._by_others.pop(key, None)
        for key in unused:
            del self._under_way[key]
        if idle or unused:
            self._forget_callers()

    def _others(self, key: UseKey) -> float:
        by_others = self._by_others.get(key)
        return 0.0 if by_others is None else by_others.others

    def _show(self) -> None:
        ratios: dict[tuple[str, str], float] = {}
        for key, bucket in self._buckets.items():
            if key.subject in self._metadata.quotas:
                name = (key.subject, str(key.limit))
                ratio = (self._use.get(key, 0.0) + self._others(key)) / bucket.limit
                ratios[name] = max(ratio, ratios.get(name, 0.0))
        self._metrics.used(ratios)


def _applying(access: CallerAccess, limits: Iterable[AppliedLimit]) -> Iterator[AppliedLimit]:
    """Yield the limits to which a caller's requests are charged."""
    for applied in limits:
        # Superusers are charged for bytes but not for requests, so that they can always act.
        if not access.rules.is_superuser or applied.key.limit not in (
            Limit.REQUESTS,
            Limit.CONCURRENT_REQUESTS,
        ):
            yield applied


def _bound(table: dict[CallerAccess, CallerQuota] | dict[str, tuple[CallerAccess, CallerQuota]]) -> None:
    if len(table) > CALLERS_MAX:
        del table[next(iter(table))]  # type: ignore[arg-type]
