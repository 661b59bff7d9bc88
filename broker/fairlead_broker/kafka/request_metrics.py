"""Metrics of the requests and the clients of the Kafka listener.

`dispatch` reports each finished request, and each client once it has stated its software. The labelled children of a
metric are cached, because a look-up costs more than an increment.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

from fairlead_broker.kafka.calls.call import Client
from fairlead_broker.telemetry import Telemetry

if TYPE_CHECKING:
    from prometheus_client import Counter as CounterMetric
    from prometheus_client import Histogram

SOFTWARE_MAX: Final = 100
"""Maximum number of kinds of client software with a metric of their own; the clients choose the names."""
OTHER: Final = ("other", "")
CLOSED: Final = "closed"
"""Error counted for a request whose connection was closed instead of answered."""


class RequestMetrics:
    """Counts requests by API, version and error, and clients by software."""

    def __init__(self, telemetry: Telemetry) -> None:
        self._requests = telemetry.metric("fairlead_kafka_requests_total")
        self._durations = telemetry.metric("fairlead_kafka_request_duration_seconds")
        self._clients = telemetry.metric("fairlead_kafka_clients")
        self._counters: dict[tuple[str, int, str], CounterMetric] = {}
        self._histograms: dict[str, Histogram] = {}
        self._software: Counter[tuple[str, str]] = Counter()

    def observe(self, api: str, version: int, error: str, seconds: float) -> None:
        """Count a finished request."""
        counter = self._counters.get((api, version, error))
        if counter is None:
            counter = self._requests.labels(api, str(version), error)
            self._counters[api, version, error] = counter
        counter.inc()
        histogram = self._histograms.get(api)
        if histogram is None:
            histogram = self._histograms[api] = self._durations.labels(api)
        histogram.observe(seconds)

    def arrived(self, client: Client) -> None:
        """Count a client that has stated its software, once for each connection."""
        if client.software and client.counted_as is None:
            kind = client.software if client.software in self._software or self._has_room else OTHER
            client.counted_as = kind
            self._count(kind, 1)

    def gone(self, client: Client) -> None:
        """Stop counting a client, because its connection has ended."""
        if client.counted_as is not None:
            self._count(client.counted_as, -1)
            client.counted_as = None

    @property
    def _has_room(self) -> bool:
        return len(self._software) < SOFTWARE_MAX

    def _count(self, kind: tuple[str, str], change: int) -> None:
        self._software[kind] += change
        self._clients.labels(*kind).set(self._software[kind])
