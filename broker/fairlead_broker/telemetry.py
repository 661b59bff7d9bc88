"""Logs and metrics of a broker.

`wiring` builds one `Telemetry` and passes it to every package that logs or counts. The catalogue
(`fairlead_api.metrics`) defines the metrics, and the packages update them. Logs are written to stderr, because stdout
is reserved for the ready line.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, Final, Protocol, cast

import structlog
from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.metrics import MetricWrapperBase  # noqa: TC002 - a top-level import makes the dependency visible
from prometheus_client.registry import Collector

from fairlead_api.audit_events import AUDIT_LOGGER
from fairlead_api.metrics import METRICS, MetricDefinition

_METRIC_TYPES: Mapping[str, type[MetricWrapperBase]] = {
    "counter": Counter,
    "gauge": Gauge,
    "histogram": Histogram,
}


class Log(Protocol):
    """Subset of the interface of structlog's bound logger that the broker uses.

    Each call logs an event with its values.
    """

    def bind(self, **facts: Any) -> Log:
        """Return a logger that adds the given values to every event."""
        ...

    def debug(self, event: str, **facts: Any) -> Any:
        """Log a detail for the analysis of a problem."""
        ...

    def info(self, event: str, **facts: Any) -> Any:
        """Log an event that an operator may want to know about."""
        ...

    def warning(self, event: str, **facts: Any) -> Any:
        """Log an unexpected condition."""
        ...

    def error(self, event: str, **facts: Any) -> Any:
        """Log a failure."""
        ...

    def exception(self, event: str, **facts: Any) -> Any:
        """Log a failure together with the exception that is being handled."""
        ...


class TopicMetric(Collector):
    """Counter or gauge with a series for each topic or partition, whose values are read at each scrape.

    Adding a series only adds an entry to a dictionary: a broker that starts with thousands of partitions adds a dozen
    series for each, and objects of prometheus_client would take half of the startup time.
    """

    __slots__ = ("_family", "_reads", "definition")

    def __init__(self, definition: MetricDefinition, registry: CollectorRegistry) -> None:
        self.definition = definition
        self._family = CounterMetricFamily if definition.kind == "counter" else GaugeMetricFamily
        self._reads: dict[tuple[str, ...], Callable[[], float]] = {}
        registry.register(self)

    def watch(self, labels: tuple[str, ...], read: Callable[[], float]) -> None:
        """Add or replace a series; `read` returns its value, and may be called in another thread."""
        self._reads[labels] = read

    def forget(self, labels: tuple[str, ...]) -> None:
        """Remove a series, if it exists."""
        self._reads.pop(labels, None)

    def collect(self) -> Iterator[Metric]:
        """Yield the metric with the current values of all series."""
        definition = self.definition
        family = self._family(definition.name, definition.help, labels=definition.labels)
        for labels, read in list(self._reads.items()):
            family.add_metric(labels, read())
        yield family


class Telemetry:
    """Metrics registry with every metric of the catalogue, and the root logger."""

    __slots__ = ("_metrics", "log", "registry")

    def __init__(self, log: Log | None = None) -> None:
        # A gauge with the creation time of every series would double the number of series, and no query needs creation
        # times.
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = CollectorRegistry(auto_describe=False)
        ProcessCollector(registry=self.registry)
        self.log: Log = log if log is not None else cast("Log", structlog.get_logger("fairlead"))
        self._metrics = {definition.name: self._register(definition) for definition in METRICS}

    def metric(self, name: str) -> Any:
        """Return the metric with the given name. Callers on a hot path keep the metric or its labelled child.

        Raises KeyError if the catalogue lacks the metric.
        """
        return self._metrics[name]

    def _register(self, definition: MetricDefinition) -> MetricWrapperBase | TopicMetric:
        if definition.labels[:1] == ("topic",):
            return TopicMetric(definition, self.registry)
        keywords: dict[str, Any] = {"registry": self.registry}
        if definition.kind == "histogram" and definition.buckets:
            keywords["buckets"] = tuple(definition.buckets)
        metric_type = _METRIC_TYPES[str(definition.kind)]
        return metric_type(definition.name, definition.help, tuple(definition.labels), **keywords)


class _Lines:
    """Standard error for the lines of structlog.

    Lines that cannot be written, for example because the log is a file on a full disk, are dropped: no call and no stop
    of the broker may fail because of its log.
    """

    def write(self, line: str) -> None:
        """Write a line with its end."""
        with suppress(OSError):
            sys.stderr.write(line)

    def flush(self) -> None:
        """Write lines that are still in memory."""
        with suppress(OSError):
            sys.stderr.flush()


_LINES: Final[Any] = _Lines()


@contextmanager
def quiet_by_default() -> Iterator[None]:
    """Let structlog log only failures, on stderr, unless the program has configured a destination for its logs.

    The logger factory shows whether the program has configured structlog. `is_configured` is not sufficient:
    `structlog.testing.capture_logs` configures structlog with the previous defaults, and `is_configured` remains true
    afterwards.
    """
    before, configured = structlog.get_config(), structlog.is_configured()
    structlog.reset_defaults()
    default = structlog.get_config()
    if before["logger_factory"] is not default["logger_factory"]:
        structlog.configure(**before)
        yield
        return
    quiet = {
        "wrapper_class": structlog.make_filtering_bound_logger(logging.ERROR),
        "logger_factory": structlog.WriteLoggerFactory(_LINES),
    }
    structlog.configure(**{**before, **quiet})
    try:
        yield
    finally:
        structlog.reset_defaults()
        if configured:
            structlog.configure(**before)


def set_up_logging(log_format: str, level: str) -> None:
    """Send structlog and the standard library's logs to stderr, one line or JSON object per event.

    `log_format`: `json`, `console`, or `auto` (console on a terminal). The program calls this function once.
    """
    if log_format == "auto":
        log_format = "console" if sys.stderr.isatty() else "json"
    renderer: Any = structlog.processors.JSONRenderer()
    if log_format == "console":
        # Plain tracebacks are used, because pretty tracebacks import rich, which takes a fifth of the startup time.
        renderer = structlog.dev.ConsoleRenderer(
            colors=sys.stderr.isatty(), exception_formatter=structlog.dev.plain_traceback
        )
    prepared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.StackInfoRenderer(),
    ]
    if log_format == "json":
        prepared.append(structlog.processors.format_exc_info)
    structlog.configure(
        processors=[*prepared, renderer],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[level.upper()]),
        logger_factory=structlog.WriteLoggerFactory(_LINES),
        cache_logger_on_first_use=False,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_of_libraries(prepared, renderer))
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
    _set_up_audit()


def _set_up_audit() -> None:
    """Write the audit log to stderr unchanged: its lines are complete, and independent of the log level and format."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(message)s"))
    audit = logging.getLogger(AUDIT_LOGGER)
    audit.handlers = [handler]
    audit.propagate = False


def _of_libraries(prepared: list[Any], renderer: Any) -> logging.Formatter:
    """Return a formatter that writes each log record of a library as one line, with the name of its logger."""
    return structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=[structlog.stdlib.add_logger_name, *prepared],
        processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer],
    )
