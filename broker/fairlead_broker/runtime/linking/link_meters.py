"""Metrics of links: the amounts that this broker has copied, and the lag of the mirrors that it leads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from fairlead_broker.runtime.leading.leader_replica import LeaderReplica
from fairlead_broker.telemetry import Telemetry

GAUGES: Final = ("fairlead_link_lag_records", "fairlead_link_lag_seconds", "fairlead_link_faulted_partitions")


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
        self._gauges = [metric(name) for name in GAUGES]
        self._shown: set[tuple[str, str, str]] = set()

    def copied(self, what: str, link: str, topic: str, number: int) -> None:
        """Count fetched bytes, or skipped or truncated records."""
        self._counters[what].labels(link, topic).inc(number)

    def groups_copied(self, link: str, number: int) -> None:
        """Count copied offsets of groups."""
        self._groups.labels(link).inc(number)

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
