"""Spans of OpenTelemetry around appends and fetches whose callers are traced.

A request that bears a `traceparent` gets a span below it; all others, and every request of a broker that exports no
traces, run as if this room did not exist. The application wraps each endpoint once.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Final

from fairlead_api.problems import ProblemError
from fairlead_broker.server.http.call import Call, Endpoint
from fairlead_broker.telemetry import Log

if TYPE_CHECKING:
    from opentelemetry.trace import Tracer

EXPORT_VARIABLES: Final = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
TRACED_ROUTES: Final = {
    "produce": "append",
    "produce_topic": "append",
    "produce_partition": "append",
    "fetch": "fetch",
    "fetch_partition": "fetch",
}
"""Routes with a span, and its name."""


def set_up_export(log: Log) -> bool:
    """Export traces if OpenTelemetry's variables say where to; the extra `tracing` is needed then."""
    if not any(map(os.environ.get, EXPORT_VARIABLES)):
        return False
    try:
        # Loaded only here: it takes a good part of a broker's start.
        from opentelemetry import trace  # noqa: PLC0415 - see above
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter  # noqa: PLC0415
        from opentelemetry.sdk.resources import Resource  # noqa: PLC0415
        from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415
        from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415
    except ModuleNotFoundError as missing:
        # Such variables are often set for all pods of a namespace: no reason not to serve.
        log.warning("traces are not exported; that needs the extra tracing", missing=missing.name)
        return False

    named = Resource.create({"service.name": os.environ.get("OTEL_SERVICE_NAME", "fairlead-broker")})
    provider = TracerProvider(resource=named)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    trace.set_tracer_provider(provider)
    return True


def traced(name: str, endpoint: Endpoint) -> Endpoint:
    """Return an endpoint with its span, or itself where no traces are collected or its route has none."""
    trace = sys.modules.get("opentelemetry.trace")
    operation = TRACED_ROUTES.get(name)
    if operation is None or trace is None:
        return endpoint
    if isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
        return endpoint
    return _with_span(operation, endpoint, trace.get_tracer("fairlead.broker"))


def _with_span(operation: str, endpoint: Endpoint, tracer: Tracer) -> Endpoint:
    from opentelemetry.context import Context  # noqa: PLC0415 - only where it is set up
    from opentelemetry.trace import SpanKind, StatusCode  # noqa: PLC0415 - the same
    from opentelemetry.trace.propagation.tracecontext import (  # noqa: PLC0415 - the same
        TraceContextTextMapPropagator,
    )

    async def run(call: Call) -> None:
        parent = call.headers.get(b"traceparent")
        if parent is None:
            await endpoint(call)
            return
        context = TraceContextTextMapPropagator().extract(
            {"traceparent": parent.decode("latin-1")}, Context()
        )
        span = tracer.start_span(
            operation,
            context=context,
            kind=SpanKind.SERVER,
            attributes={"messaging.system": "fairlead", "http.route": call.matched_route.path},
        )
        if topic := call.parameters.get("topic"):
            span.set_attribute("messaging.destination.name", topic)
        refused_with = 0
        try:
            await endpoint(call)
        except ProblemError as problem:
            refused_with = problem.status
            span.set_attribute("error.type", problem.code)
            span.set_status(StatusCode.ERROR, str(problem))
            raise
        finally:
            # A refusal is answered when the endpoint is over; a client that went away is not answered at all.
            if status := call.status or refused_with:
                span.set_attribute("http.response.status_code", status)
            span.end()

    return run
