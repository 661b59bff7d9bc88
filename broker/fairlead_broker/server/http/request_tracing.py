"""OpenTelemetry spans for appends and fetches requested by traced callers.

A request with a `traceparent` header gets a child span. Tracing adds no overhead to other requests, or to a broker that
exports no traces. The application wraps each endpoint once.
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
"""Name of the span for each traced route."""


def set_up_export(log: Log) -> bool:
    """Start exporting traces if an endpoint variable of OpenTelemetry is set; return whether the export was started.

    The export requires the extra `tracing`.
    """
    if not any(map(os.environ.get, EXPORT_VARIABLES)):
        return False
    try:
        # OpenTelemetry is imported only when needed, because its import takes a large part of a broker's start-up time.
        from opentelemetry import trace  # noqa: PLC0415 - imported only when tracing is on
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter  # noqa: PLC0415
        from opentelemetry.sdk.resources import Resource  # noqa: PLC0415
        from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415
        from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415
    except ModuleNotFoundError as missing:
        # The variables of OpenTelemetry are often set for all pods of a namespace, so a missing extra must not stop the
        # broker.
        log.warning(
            "traces are not exported, because the extra tracing is not installed", missing=missing.name
        )
        return False

    named = Resource.create({"service.name": os.environ.get("OTEL_SERVICE_NAME", "fairlead-broker")})
    provider = TracerProvider(resource=named)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    trace.set_tracer_provider(provider)
    return True


def traced(name: str, endpoint: Endpoint) -> Endpoint:
    """Return the endpoint wrapped in a span.

    The endpoint is returned unchanged if no traces are exported or its route has no span.
    """
    trace = sys.modules.get("opentelemetry.trace")
    operation = TRACED_ROUTES.get(name)
    if operation is None or trace is None:
        return endpoint
    if isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
        return endpoint
    return _with_span(operation, endpoint, trace.get_tracer("fairlead.broker"))


def _with_span(operation: str, endpoint: Endpoint, tracer: Tracer) -> Endpoint:
    from opentelemetry.context import Context  # noqa: PLC0415 - imported only when tracing is on
    from opentelemetry.trace import SpanKind, StatusCode  # noqa: PLC0415 - imported only when tracing is on
    from opentelemetry.trace.propagation.tracecontext import (  # noqa: PLC0415 - imported only when tracing is on
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
            # A refusal is sent after the endpoint has returned, and a client that disconnected gets no answer, so the
            # status may still be 0 here.
            if status := call.status or refused_with:
                span.set_attribute("http.response.status_code", status)
            span.end()

    return run
