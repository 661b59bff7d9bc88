"""Messages of a topic: browse from the newest, the oldest, an offset or a time, and search within a budget of bytes.

A request searches for about a second, and its answer contains the records found so far and the address at which the
search continues. `static/messages.js` follows this address until the search ends or the reader stops it; without a
script, the address is a link.
"""

from __future__ import annotations

import json
from shlex import quote
from typing import Any, Final

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse

from fairlead_console.access import Access, ClusterAccess, ShownRecords
from fairlead_console.figures import short_size
from fairlead_console.page import page
from fairlead_console.records.found import FoundPage, found_page
from fairlead_console.records.query import (
    BUDGETS_MIB,
    COUNTS,
    MessageQuery,
    QueryError,
    check_partition,
    message_query,
    positions_text,
)
from fairlead_console.records.scan import MIB, Scan, ScanLimits
from fairlead_console.records.views import VIEWS, shown_record

router = APIRouter()
PART_HEADER: Final = "x-part"
"""Header with which the script requests the next part of a search instead of a page."""
SECONDS_MAX: Final = 30


@router.get("/topics/{name}/messages")
async def show(request: Request, access: Access, _: ShownRecords, name: str) -> HTMLResponse:
    """Show the messages that the parameters in the address select."""
    query = message_query(name, request.query_params)
    partitions = (await access.admin.describe_topic(name)).partitions
    left_out = frozenset() if query["partition"] else access.observer.unanswered(name)
    found, error = None, ""
    try:
        found = await _search(access, query, partitions, left_out)
    except QueryError as refused:
        error = str(refused)
    return await page(
        request,
        "messages/results.html" if PART_HEADER in request.headers else "messages/messages.html",
        title=f"{name}: messages",
        access=access,
        status=422 if error else 200,
        query=query,
        error=error,
        partitions=partitions,
        count_options=[(each, each) for each in COUNTS],
        budget_options=[(each, short_size(each * MIB)) for each in BUDGETS_MIB],
        views=VIEWS,
        command_line=_command(query),
        left_out=sorted(left_out),
        **(_no_results(query) if found is None else _results(query, found)),
    )


async def _search(
    access: ClusterAccess, query: MessageQuery, partitions: int, left_out: frozenset[int]
) -> FoundPage:
    scan_range, _ = query.scan_range.without(left_out, partitions), query.view
    check_partition(scan_range, partitions)
    try:
        seconds = min(SECONDS_MAX, max(1, int(query["patience"])))
    except ValueError:
        seconds = 1
    limits = ScanLimits(records=query.count, nbytes=query.nbytes_left, seconds=seconds)
    scan = Scan(access.connection, scan_range, query.record_filter, limits)
    return await found_page(scan, scan_range, query.count)


def _no_results(query: MessageQuery) -> dict[str, Any]:
    return {"records": [], "progress": None, "form": query}


def _results(query: MessageQuery, found: FoundPage) -> dict[str, Any]:
    """Return the values for the template: records, sums over all parts of the search, and addresses to continue at."""
    progress = found.progress
    nbytes = query.nbytes + progress.nbytes
    seen = int(query["seen"] or 0) + progress.records
    total = int(query["found"] or 0) + progress.found
    positions = positions_text(progress.positions)
    part = {"positions": positions, "nbytes": nbytes, "seen": seen, "found": total}
    return {
        "records": [shown_record(each, query.view) for each in found.records],
        "progress": progress,
        "nbytes": nbytes,
        "seen": seen,
        "found": total,
        "share": seen / (seen + progress.left) if seen + progress.left else 1.0,
        "next_part": query.address(**part),
        "next_long_part": query.address(**part, patience=SECONDS_MAX),
        "next_page": query.fresh(positions=positions),
        "raised": None
        if query.next_budget_mib is None
        else query.address(**part, budget=query.next_budget_mib),
    }


def _command(query: MessageQuery) -> str:
    """Return the command that prints the same records; a filter needs another program."""
    is_filtered = bool(query["key"] or query["q"])
    start = {
        "newest": "start" if is_filtered else f"-{query['count']}",
        "offset": query["at"] or "0",
        "time": quote(f"@{query['at']}"),
    }.get(query["start"], "start")
    line = f"fairlead consume {query.topic} -o {start} -e --output json"
    if query["partition"]:
        line += f" --partition {query['partition']}"
    if query["key"]:
        line += " | jq -c " + quote(f"select(.key == {json.dumps(query['key'])})")
    if query["q"] and query["match"] != "path":
        line += f" | grep -{'E' if query['match'] == 'regex' else 'F'} {quote(query['q'])}"
    return line
