"""Logs and metrics of the operator.

`wiring` builds one `Telemetry` and passes it to every package that logs or counts. This module defines all metrics of
the operator. The names of metrics follow the rules for the metrics of brokers (`fairlead_api.metrics`): prefix, base
unit, `_total`. Only the series of conditions have a label with the name of a resource. Logs are written to stderr; in a
pod, each log line is one JSON object.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple, Protocol, cast

import structlog
from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
)
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

_RECONCILE_BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


class Log(Protocol):
    """The part of structlog's bound logger that the operator uses: an event and its fields."""

    def bind(self, **facts: Any) -> Log:
        """Return a logger that adds these fields to every event."""
        ...

    def debug(self, event: str, **facts: Any) -> Any:
        """Log a detail that helps to analyse a problem."""
        ...

    def info(self, event: str, **facts: Any) -> Any:
        """Log an event for the administrator of the operator."""
        ...

    def warning(self, event: str, **facts: Any) -> Any:
        """Log an unexpected state."""
        ...

    def error(self, event: str, **facts: Any) -> Any:
        """Log a failure."""
        ...

    def exception(self, event: str, **facts: Any) -> Any:
        """Log a failure with the exception that is being handled."""
        ...


class Telemetry:
    """Registry with the operator's metrics, and the root logger of the operator."""

    def __init__(self, log: Log | None = None) -> None:
        # A gauge with the creation time of each series would double the number of series, and no query uses this time.
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.log: Log = log if log is not None else cast("Log", structlog.get_logger("fairlead-operator"))
        self.registry = CollectorRegistry(auto_describe=False)
        ProcessCollector(registry=self.registry)
        self.reconcile_total = self._counter(
            "reconcile_total", "Reconcile passes, by kind and result (ok, failed).", "kind", "result"
        )
        self.reconcile_seconds = Histogram(
            "fairlead_operator_reconcile_seconds",
            "Duration of a reconcile pass.",
            ("kind",),
            buckets=_RECONCILE_BUCKETS,
            registry=self.registry,
        )
        self.requests_total = self._counter(
            "api_requests_total", "Requests to the API server, by verb and status.", "verb", "status"
        )
        self.queue_depth = self._gauge("queue_depth", "Due keys that wait for a worker.")
        self.queue_failing = self._gauge("queue_failing", "Keys whose last pass failed, by kind.", "kind")
        self.leader = self._gauge("leader", "1 while this process is the leader of the operators.")
        self.resources = self._gauge("resources", "Watched resources, by kind.", "kind")
        self.resources_paused = self._gauge(
            "resources_paused", "Resources whose reconciliation is paused by annotation, by kind.", "kind"
        )
        self.resources_not_ready = self._gauge(
            "resources_not_ready", "Resources whose condition Ready is not True, by kind.", "kind"
        )
        self.watch_age_seconds = self._gauge(
            "watch_age_seconds", "Time since the last heartbeat of the watch thread."
        )
        self._conditions = _Conditions()
        self.registry.register(self._conditions)

    def show_conditions(self, read: Callable[[], Iterable[ConditionRow]]) -> None:
        """Export the conditions that `read` returns at each scrape."""
        self._conditions.read = read

    def show_rebalances(self, read: Callable[[], Iterable[RebalanceRow]]) -> None:
        """Export the rows of Rebalances in progress that `read` returns at each scrape."""
        self._conditions.read_rebalances = read

    def on_scrape(self, gauge: Gauge, value: Callable[[], float], *labels: str) -> None:
        """Bind a gauge to a function that returns the value of the gauge at each scrape."""
        (gauge.labels(*labels) if labels else gauge).set_function(value)

    def _counter(self, name: str, help_: str, *labels: str) -> Counter:
        return Counter(f"fairlead_operator_{name}", help_, labels, registry=self.registry)

    def _gauge(self, name: str, help_: str, *labels: str) -> Gauge:
        return Gauge(f"fairlead_operator_{name}", help_, labels, registry=self.registry)


class ConditionRow(NamedTuple):
    """Condition of a resource; the fields have the order of the metric's labels."""

    kind: str
    resource_namespace: str
    resource: str
    condition: str
    status: str
    reason: str


class RebalanceRow(NamedTuple):
    """Rebalance in progress."""

    resource_namespace: str
    resource: str
    partitions_left: int
    """Number of partitions that are not moved yet."""


class _Conditions(Collector):
    """Series of resources, which are computed at each scrape, since resources and reasons appear and disappear."""

    def __init__(self) -> None:
        self.read: Callable[[], Iterable[ConditionRow]] = tuple
        self.read_rebalances: Callable[[], Iterable[RebalanceRow]] = tuple

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Yield both metrics."""
        family = GaugeMetricFamily(
            "fairlead_operator_condition",
            "1 for each condition of a Cluster, and for each condition of another resource that needs attention.",
            labels=ConditionRow._fields,
        )
        for row in self.read():
            family.add_metric(row, 1.0)
        yield family
        family = GaugeMetricFamily(
            "fairlead_operator_rebalance_partitions_left",
            "Partitions that a Rebalance in progress has not moved yet.",
            labels=RebalanceRow._fields[:-1],
        )
        for namespace, name, left in self.read_rebalances():
            family.add_metric((namespace, name), float(left))
        yield family


def set_up_logging(log_format: str, level: str) -> None:
    """Write the logs of structlog and the standard library to stderr, with one JSON object or one line for each event.

    `log_format` is `json`, `console`, or `auto` (console on a terminal). The program must call this function only once.
    """
    if log_format == "auto":
        log_format = "console" if sys.stderr.isatty() else "json"
    renderer: Any = structlog.processors.JSONRenderer()
    if log_format == "console":
        renderer = structlog.dev.ConsoleRenderer(
            colors=sys.stderr.isatty(), exception_formatter=structlog.dev.plain_traceback
        )
    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.StackInfoRenderer(),
    ]
    if log_format == "json":
        shared.append(structlog.processors.format_exc_info)
    structlog.configure(
        processors=[*shared, renderer],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[level.upper()]),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=False,
    )
    # kopf and aiohttp log through the standard library; their logs get the same format as the operator's.
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*shared, structlog.stdlib.add_logger_name],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
