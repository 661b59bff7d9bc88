"""Traces from a producer through the broker to a consumer, collected by OpenTelemetry's SDK."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from fairlead import Admin, Consumer, Producer, tracing
from fairlead import blocking as facade
from fairlead.testing import running_cluster

if TYPE_CHECKING:
    from collections.abc import Iterator

TOPIC = "orders"
WITHOUT = """
import sys
import fairlead
from fairlead import Producer, tracing
Producer()
with tracing.process(None):
    pass
print([name for name in sys.modules if name.startswith("opentelemetry")])
"""


@pytest.fixture
def collected(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemorySpanExporter]:
    """Yield the collected spans; the fixture must run before the broker, which looks for a provider when it starts."""
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    # A program may set its provider only once; every test here has its own provider.
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: provider)
    yield exporter
    provider.shutdown()


@pytest.fixture
async def traced(collected: InMemorySpanExporter, bootstrap: str) -> str:
    """Return the address of a broker that exports spans, with a topic of one partition."""
    del collected
    async with Admin(bootstrap) as admin:
        await admin.create_topic(TOPIC, partitions=1)
    return bootstrap


def one(collected: InMemorySpanExporter, name: str) -> ReadableSpan:
    """Return the only span with the given name."""
    [span] = [span for span in collected.get_finished_spans() if span.name == name]
    return span


async def test_a_traced_record_is_followed_to_its_consumer(
    collected: InMemorySpanExporter, traced: str
) -> None:
    """A record's span is a child of the active span, and the spans of request, append and processing link to it."""
    tracer = trace.get_tracer("test")
    async with Producer(traced) as producer:
        with tracer.start_as_current_span("checkout") as active:
            await producer.send_and_wait(TOPIC, b"order 1", headers=[("kind", b"new")], partition=0)
    async with Consumer(traced, group="billing", topics=[TOPIC]) as consumer:
        async for batch in consumer:
            with tracing.process(batch, group="billing"):
                inside = trace.get_current_span().get_span_context()
            break
    created, sent, appended, processed = (
        one(collected, name) for name in (f"create {TOPIC}", f"send {TOPIC}", "append", f"process {TOPIC}")
    )
    headers = dict(batch.headers[0])

    assert created.parent is not None
    assert created.parent.span_id == active.get_span_context().span_id
    assert headers["kind"] == b"new"
    assert headers["traceparent"] is not None
    assert f"{created.context.span_id:016x}".encode() in headers["traceparent"]
    assert [link.context.span_id for link in sent.links] == [created.context.span_id]
    assert appended.parent is not None
    assert appended.parent.span_id == sent.context.span_id
    assert [link.context.span_id for link in processed.links] == [created.context.span_id]
    assert processed.context.span_id == inside.span_id
    assert dict(processed.attributes or {}) == {
        "messaging.system": "fairlead",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.destination.name": TOPIC,
        "messaging.destination.partition.id": "0",
        "messaging.batch.message_count": 1,
        "messaging.consumer.group.name": "billing",
    }


async def test_without_an_active_span_no_header_is_added(
    collected: InMemorySpanExporter, traced: str
) -> None:
    """Records without an active span get no header and no span from configured tracing."""
    async with Producer(traced) as producer:
        await producer.send_and_wait(TOPIC, b"order 1", partition=0)
    async with Consumer(traced, group="billing", topics=[TOPIC]) as consumer:
        batch = await anext(aiter(consumer))

    assert batch.headers == [()]
    assert collected.get_finished_spans() == ()


async def test_headers_of_the_caller_are_kept(collected: InMemorySpanExporter, traced: str) -> None:
    """Headers with a trace context, for example from a bridge, are kept."""
    given = ("traceparent", b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
    async with Producer(traced) as producer:
        with trace.get_tracer("test").start_as_current_span("bridge"):
            await producer.send_and_wait(TOPIC, b"order 1", headers=[given], partition=0)
    [link] = one(collected, f"send {TOPIC}").links

    assert f"{link.context.span_id:016x}" == "b7ad6b7169203331"
    assert not [span for span in collected.get_finished_spans() if span.name.startswith("create")]


async def test_a_refused_request_has_a_span(collected: InMemorySpanExporter, bootstrap: str) -> None:
    """The span of a refused HTTP fetch by a traced caller has the code and the status of the problem."""
    command = ["curl", "-s", f"{bootstrap}/v1/topics/no-such-topic/partitions/0/records", "-H"]
    parent = "traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    process = await asyncio.create_subprocess_exec(*command, parent, stdout=subprocess.PIPE)
    answer, _ = await process.communicate()
    span = one(collected, "fetch")

    assert b"topic_not_found" in answer
    assert span.parent is not None
    assert f"{span.parent.span_id:016x}" == "b7ad6b7169203331"
    assert (span.attributes or {})["error.type"] == "topic_not_found"
    assert (span.attributes or {})["http.response.status_code"] == 404


@pytest.mark.slow
def test_programs_without_tracing_do_not_load_it() -> None:
    """The producer and `process` do not import OpenTelemetry, even though it is installed."""
    done = subprocess.run([sys.executable, "-c", WITHOUT], capture_output=True, text=True, check=False)

    assert (done.stdout, done.returncode) == ("[]\n", 0), done.stderr


def test_the_producer_without_a_loop_takes_the_callers_span(
    collected: InMemorySpanExporter,
) -> None:
    """A blocking producer uses the span that is active where `send` is called, not a span of the loop's thread."""
    tracer = trace.get_tracer("test")
    with running_cluster() as bootstrap, facade.Producer(bootstrap) as producer:
        producer.send(TOPIC, b"first").result()
        with tracer.start_as_current_span("checkout") as active:
            producer.send(TOPIC, b"second").result()
    created = one(collected, f"create {TOPIC}")

    assert created.parent is not None
    assert created.parent.span_id == active.get_span_context().span_id
