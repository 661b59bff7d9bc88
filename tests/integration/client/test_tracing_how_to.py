"""The how-to guide on traces: sends and processed records become spans, with the links that the page describes."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from fairlead import Admin
from page_kit import blocks, sections

if TYPE_CHECKING:
    import pytest

PRODUCE, CONSUME = (block.text for block in blocks(sections("how-to/observability.md")["Traces"], "python"))
# The program of the page runs forever; this copy stops after one batch.
ENDING = CONSUME.replace("            ...\n", "            break\n")


async def typed(code: str, bootstrap: str, names: dict[str, object]) -> None:
    """Run a program of the page in the namespace of the previous programs."""
    text = code.replace("http://127.0.0.1:9520", bootstrap)
    await eval(compile(text, "observability.md", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT), names)


async def test_spans_of_the_page(bootstrap: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A record's span is a child of the active span, and the spans of request and consumer link to it."""
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    # A program may set its provider only once.
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: provider)
    monkeypatch.setattr(trace, "get_tracer", provider.get_tracer)
    async with Admin(bootstrap) as admin:
        await admin.create_topic("orders", partitions=1)
    names: dict[str, object] = {}
    await typed(PRODUCE, bootstrap, names)
    await typed(ENDING, bootstrap, names)
    spans = {span.name: span for span in exporter.get_finished_spans()}
    provider.shutdown()
    checkout, create = spans["checkout"], spans["create orders"]

    assert ENDING != CONSUME
    assert create.parent is not None
    assert create.parent.span_id == checkout.context.span_id
    for linked in ("send orders", "process orders"):
        assert [link.context.span_id for link in spans[linked].links] == [create.context.span_id]
