"""The list of topics: search, order and pages, for clusters with many thousands of topics."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Final, Literal

from fastapi import APIRouter, Query, Request
from fastapi.responses import HTMLResponse

from fairlead_console.access import Access
from fairlead_console.lists import listing
from fairlead_console.observation.picture import Topic
from fairlead_console.page import page

router = APIRouter()

Order = Literal["name", "partitions", "records", "size", "rate", "bytes", "state"]
_KEYS: Final[dict[str, Callable[[Topic], Any]]] = {
    "name": lambda topic: topic.name,
    "partitions": lambda topic: -len(topic.partitions),
    "records": lambda topic: -topic.records,
    "size": lambda topic: -topic.size,
    "rate": lambda topic: -topic.rate,
    "bytes": lambda topic: -topic.byte_rate,
    "state": lambda topic: (-topic.without_leader, -topic.under_min_isr, -topic.under_replicated),
}


@router.get("/topics")
async def show(
    request: Request,
    access: Access,
    q: Annotated[str, Query(max_length=249)] = "",
    sort: Order = "name",
    reverse: bool = False,
    at: Annotated[int, Query(ge=1)] = 1,
) -> HTMLResponse:
    """Show the topics whose names contain every word of `q`, in pages of 100."""
    picture = await access.observer.picture()
    topics = listing(
        "/topics", picture.topics.values(), lambda topic: topic.name, _KEYS,
        q=q, sort=sort, reverse=reverse, at=at,
    )  # fmt: skip
    return await page(
        request, "topics/topics.html", title="Topics", access=access, refresh_seconds=10, list=topics
    )
