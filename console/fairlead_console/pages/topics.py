"""The list of topics: search, order and pages, for clusters with many thousands of topics."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any, Final, Literal
from urllib.parse import urlencode

from fastapi import APIRouter, Query, Request
from fastapi.responses import HTMLResponse

from fairlead_console.access import Access
from fairlead_console.observation.picture import Topic
from fairlead_console.page import page

router = APIRouter()
PAGE_ROWS: Final = 100

Order = Literal["name", "partitions", "records", "rate", "state"]
_KEYS: Final[Mapping[str, Callable[[Topic], Any]]] = {
    "name": lambda topic: topic.name,
    "partitions": lambda topic: -len(topic.partitions),
    "records": lambda topic: -topic.records,
    "rate": lambda topic: -topic.rate,
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
    words = q.lower().split()
    found = [topic for topic in picture.topics.values() if all(word in topic.name.lower() for word in words)]
    found.sort(key=lambda topic: topic.name)
    found.sort(key=_KEYS[sort], reverse=reverse)
    last = max(1, -(-len(found) // PAGE_ROWS))
    at = min(at, last)

    def address(**changed: str | int) -> str:
        """Return the address of this list with other parameters; parameters with their defaults are left out."""
        given: dict[str, str | int] = {"q": q, "sort": sort, "reverse": int(reverse), "at": at, **changed}
        defaults = {"q": "", "sort": "name", "reverse": 0, "at": 1}
        query = urlencode({name: value for name, value in given.items() if value != defaults[name]})
        return f"/topics?{query}" if query else "/topics"

    return await page(
        request,
        "topics/topics.html",
        title="Topics",
        access=access,
        refresh_seconds=10,
        topics=found[(at - 1) * PAGE_ROWS : at * PAGE_ROWS],
        found=len(found),
        total=len(picture.topics),
        q=q,
        sort=sort,
        reverse=reverse,
        at=at,
        last=last,
        list_address=address,
    )
