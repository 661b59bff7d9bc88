"""Live tail of a topic: the newest records, second by second, at most as many as a person can follow.

The page opens a stream of events (`static/tail.js`), and each event contains the rows of one second. The stream ends
when the page is left, hidden or paused.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import aclosing
from shlex import quote
from typing import Final

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse
from starlette.exceptions import HTTPException
from starlette.responses import StreamingResponse

from fairlead.errors import FairleadError
from fairlead_console.access import Access, ShownRecords
from fairlead_console.page import Renderer, page
from fairlead_console.records.query import RATES, MessageQuery, QueryError, check_partition, message_query
from fairlead_console.records.samples import Tail
from fairlead_console.records.views import VIEWS, shown_record

router = APIRouter()
TAILS_MAX: Final = 64
"""Maximum number of open tails of one console."""


@router.get("/topics/{name}/tail")
async def show(request: Request, access: Access, _: ShownRecords, name: str) -> HTMLResponse:
    """Show the page whose script opens the stream."""
    query = message_query(name, request.query_params)
    partitions = (await access.admin.describe_topic(name)).partitions
    left_out = frozenset() if query["partition"] else access.observer.unanswered(name)
    error = ""
    try:
        _check(query, partitions)
    except QueryError as refused:
        error = str(refused)
    command = f"fairlead consume {quote(name)} -o end --output json"
    return await page(
        request,
        "message_tail/tail.html",
        title=f"{name}: live tail",
        access=access,
        status=422 if error else 200,
        query=query,
        error=error,
        partitions=partitions,
        left_out=sorted(left_out),
        rate_options=[(each, f"{each} a second") for each in RATES],
        views=VIEWS,
        command_line=command + (f" --partition {query['partition']}" if query["partition"] else ""),
    )


@router.get("/topics/{name}/tail/events")
async def events(request: Request, access: Access, _: ShownRecords, name: str) -> StreamingResponse:
    """Answer with the stream of a tail."""
    query = message_query(name, request.query_params)
    partitions = (await access.admin.describe_topic(name)).partitions
    try:
        _check(query, partitions)
    except QueryError as error:
        raise HTTPException(422, str(error)) from error
    open_tails: set[Tail] = request.app.state.open_tails
    if len(open_tails) >= TAILS_MAX:
        raise HTTPException(503, f"This console has {TAILS_MAX} open tails; close one of them")
    scan_range = query.scan_range.without(access.observer.unanswered(name), partitions)
    tail = Tail(access.connection, scan_range, query.record_filter, query.rate)
    renderer: Renderer = request.app.state.renderer
    return StreamingResponse(_events(tail, query, renderer, open_tails), media_type="text/event-stream")


def _check(query: MessageQuery, partitions: int) -> None:
    scan_range, _, _, _ = query.scan_range, query.view, query.rate, query.record_filter
    check_partition(scan_range, partitions)


async def _events(
    tail: Tail, query: MessageQuery, renderer: Renderer, open_tails: set[Tail]
) -> AsyncIterator[str]:
    """Yield one event per second: the rows as HTML, and the number of records that the topic received."""
    open_tails.add(tail)
    try:
        async with aclosing(tail.samples()) as samples:
            async for sample in samples:
                shown = [shown_record(each, query.view) for each in reversed(sample.records)]
                rows = renderer.render("message_tail/rows.html", {"records": shown, "topic": query.topic})
                yield _event(
                    "sample",
                    {"rows": rows, "arrived": sample.arrived, "read": sample.read, "shown": len(shown)},
                )
    except FairleadError as error:
        yield _event("trouble", {"text": str(error)})
    finally:
        open_tails.discard(tail)


def _event(name: str, data: dict[str, object]) -> str:
    return f"event: {name}\ndata: {json.dumps(data)}\n\n"
