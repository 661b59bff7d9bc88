"""Metrics of links: the amounts that this broker has copied, and the lag of the mirrors that it leads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from fairlead_broker.controlling.linking.link_keeper import LinkReport
from fairlead_broker.runtime.leading.leader_replica import LeaderReplica
from fairlead_broker.telemetry import Telemetry

GAUGES: Final = ("fairlead_link_lag_records", "fairlead_link_lag_seconds", "fairlead_link_faulted_partitions")

NOTHING: Final = LinkReport(None, {})


class LinkMeters:
    """Counters and gauges of links."""

    def __init__(self, telemetry: Telemetry) -> None:
        metric = telemetry.metric
        self._counters = {
            what: metric(f"fairlead_link_{name}_total")
            for what, name in (
                ("fetched", "fetched_bytes"),
                ("skipped", "skipped_records"),
                ("truncated", "truncated_records"),
            )
        }
        self._groups = metric("fairlead_link_group_offsets_copied_total")
        self._failures = metric("fairlead_link_fetch_failures_total")
        self._promotions = metric("fairlead_link_promotion_seconds")
        self._reachable = metric("fairlead_link_source_reachable")
        self._topics = metric("fairlead_link_topics")
        self._gauges = [metric(name) for name in GAUGES]
        self._shown: set[tuple[str, str, str]] = set()
        self._reported: Mapping[str, LinkReport] = {}

    def copied(self, what: str, link: str, topic: str, number: int) -> None:
        """Count fetched bytes, or skipped or truncated records."""
        self._counters[what].labels(link, topic).inc(number)

    def groups_copied(self, link: str, number: int) -> None:
        """Count copied offsets of groups."""
        self._groups.labels(link).inc(number)

    def failed(self, link: str) -> None:
        """Count a fetch that failed."""
        self._failures.labels(link).inc()

    def promoted(self, link: str, seconds: float) -> None:
        """Record the time for which no cluster accepted records of a promoted topic."""
        self._promotions.labels(link).observe(seconds)

    def report(self, links: Mapping[str, LinkReport]) -> None:
        """Export what the controller knows about each link."""
        for link, before in self._reported.items():
            now = links.get(link, NOTHING)
            for state in before.topics.keys() - now.topics.keys():
                self._topics.remove(link, state)
            if before.is_reachable is not None and now.is_reachable is None:
                self._reachable.remove(link)
        for link, now in links.items():
            for state, number in now.topics.items():
                self._topics.labels(link, state).set(number)
            if now.is_reachable is not None:
                self._reachable.labels(link).set(now.is_reachable)
        self._reported = dict(links)

    def show(self, mirrors: Sequence[LeaderReplica], now: float) -> None:
        """Export the lag of mirrors, in records and in seconds since the mirror last had every record."""
        shown: set[tuple[str, str, str]] = set()
        for mirror in mirrors:
            known = mirror.copying.source_high_watermark
            if mirror.mirror is None or known is None:
                continue
            labels = (mirror.mirror.link, mirror.topic, str(mirror.index))
            shown.add(labels)
            lag = max(0, known - mirror.readable_limit)
            values = (lag, mirror.copying.behind_seconds(now), mirror.copying.fault is not None)
            for gauge, value in zip(self._gauges, values, strict=True):
                gauge.labels(*labels).set(value)
        for labels in self._shown - shown:
            for gauge in self._gauges:
                gauge.remove(*labels)
        self._shown = shown
