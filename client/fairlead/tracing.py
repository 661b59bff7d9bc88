"""OpenTelemetry spans for programs that have configured OpenTelemetry; in other programs the module has no cost.

A `create` span is recorded when a record is sent while a span is active; the context of the new span is sent in the
record's headers. A `send` span covers a request that contains traced records. A `process` span covers the work of a
consumer and is linked to the records' spans:

    async for batch in consumer:
        with tracing.process(batch, group="billing"):
            ...

Names and attributes follow the semantic conventions for messaging, which are still in development. A producer checks
only at its creation whether a tracer provider is configured, so configure the provider first.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, Protocol

from fairlead.errors import FairleadError

if TYPE_CHECKING:
    from opentelemetry.trace import Link, Tracer

    from fairlead.records import ConsumerBatch, Headers

SYSTEM: Final = "fairlead"
TRACEPARENT: Final = "traceparent"
LINKS_MAX: Final = 128
"""Maximum number of links of one span, the default limit of OpenTelemetry."""


def tracer_at_hand() -> Tracer | None:
    """Return a tracer, or None if the program has not configured a tracer provider."""
    # A program with a tracer has already imported OpenTelemetry; other programs do not pay for the import.
    trace = sys.modules.get("opentelemetry.trace")
    if trace is None or isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
        return None
    tracer: Tracer = trace.get_tracer("fairlead")
    return tracer


class TracedBatch(Protocol):
    """Interface through which the span of a request reads the request's batches."""

    @property
    def topic(self) -> str:
        """Name of the topic."""
        ...

    @property
    def partition(self) -> int:
        """Index of the partition."""
        ...

    @property
    def record_count(self) -> int:
        """Number of records."""
        ...


class ProducerTracing:
    """Tracing of one producer."""

    __slots__ = ("_tracer",)

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer

    @classmethod
    def at_hand(cls) -> ProducerTracing | None:
        """Return the tracing of a producer; None if no tracer provider is configured."""
        tracer = tracer_at_hand()
        return None if tracer is None else cls(tracer)

    def created(self, topic: str, headers: Headers | None) -> Headers | None:
        """Return a record's headers, with the context of a new span if a span is active and none is in the headers."""
        from opentelemetry import trace  # noqa: PLC0415 - only with tracing

        if not trace.get_current_span().get_span_context().is_valid:
            return headers
        if headers and any(name == TRACEPARENT for name, _ in headers):
            return headers
        span = self._tracer.start_span(
            f"create {topic}", kind=trace.SpanKind.PRODUCER, attributes=_attributes("create", topic)
        )
        carried = _carrier(trace.set_span_in_context(span))
        span.end()
        return (*(headers or ()), *((name, value.encode()) for name, value in carried.items()))

    @contextmanager
    def sending(self, batches: Sequence[TracedBatch]) -> Iterator[Mapping[str, str]]:
        """Trace a request and yield its trace headers, which are empty if no record of the request is traced."""
        from opentelemetry.context import Context  # noqa: PLC0415 - only with tracing
        from opentelemetry.trace import SpanKind, set_span_in_context  # noqa: PLC0415 - only with tracing

        # The headers of table pieces are in a column, which is not searched for contexts.
        known = (getattr(batch, "headers", {}).values() for batch in batches)
        links = _links(headers for of_batch in known for headers in of_batch)
        if not links:
            yield {}
            return
        topics = sorted({batch.topic for batch in batches})
        span = self._tracer.start_span(
            f"send {', '.join(topics)}",
            # The sender's task inherited the context in which the producer was started, and the span of that context
            # may have ended.
            context=Context(),
            kind=SpanKind.CLIENT,
            links=links,
            attributes={
                **_attributes("send", ", ".join(topics)),
                "messaging.batch.message_count": sum(batch.record_count for batch in batches),
            },
        )
        if len(batches) == 1:
            span.set_attribute("messaging.destination.partition.id", str(batches[0].partition))
        with _ended(span):
            yield _carrier(set_span_in_context(span, Context()))


@contextmanager
def process(batch: ConsumerBatch, *, group: str | None = None) -> Iterator[None]:
    """Trace the processing of a batch: the span is current inside the block and linked to the records' spans."""
    tracer = tracer_at_hand()
    if tracer is None:
        yield
        return
    from opentelemetry.trace import SpanKind  # noqa: PLC0415 - only with tracing

    attributes = {
        **_attributes("process", batch.topic),
        "messaging.destination.partition.id": str(batch.partition),
        "messaging.batch.message_count": batch.record_count,
    }
    if group is not None:
        attributes["messaging.consumer.group.name"] = group
    with tracer.start_as_current_span(
        f"process {batch.topic}",
        kind=SpanKind.CONSUMER,
        links=_links(batch.headers),
        attributes=attributes,
    ):
        yield


@contextmanager
def _ended(span: Any) -> Iterator[None]:
    """End a span when the `with` block ends, and record the block's error on the span."""
    from opentelemetry.trace import StatusCode  # noqa: PLC0415 - only with tracing

    try:
        yield
    except FairleadError as error:
        span.set_attribute("error.type", getattr(error, "code", None) or type(error).__name__)
        span.set_status(StatusCode.ERROR, str(error))
        raise
    finally:
        span.end()


def _attributes(operation: str, topic: str) -> dict[str, str | int]:
    return {
        "messaging.system": SYSTEM,
        "messaging.operation.name": operation,
        "messaging.operation.type": operation,
        "messaging.destination.name": topic,
    }


def _carrier(context: Any) -> dict[str, str]:
    from opentelemetry.trace.propagation.tracecontext import (  # noqa: PLC0415 - only with tracing
        TraceContextTextMapPropagator,
    )

    carried: dict[str, str] = {}
    TraceContextTextMapPropagator().inject(carried, context)
    return carried


def _links(records: Iterable[Headers]) -> list[Link]:
    """Return one link per distinct span that the records' headers name, at most `LINKS_MAX`."""
    from opentelemetry import trace  # noqa: PLC0415 - only with tracing
    from opentelemetry.context import Context  # noqa: PLC0415 - only with tracing
    from opentelemetry.trace.propagation.tracecontext import (  # noqa: PLC0415 - only with tracing
        TraceContextTextMapPropagator,
    )

    named: dict[bytes, None] = {}
    for headers in records:
        for name, value in headers:
            if name == TRACEPARENT and value is not None and len(named) < LINKS_MAX:
                named[value] = None
    links = []
    for value in named:
        carried = {TRACEPARENT: value.decode("latin-1")}
        context = TraceContextTextMapPropagator().extract(carried, Context())
        linked = trace.get_current_span(context).get_span_context()
        if linked.is_valid:
            links.append(trace.Link(linked))
    return links
