"""Write quorums of a topic: the standing of each replica as known to its leader, and partitions without a leader."""

from __future__ import annotations

import asyncio
from typing import Annotated, Final

from fastapi import APIRouter, Query, Request
from fastapi.responses import HTMLResponse

from fairlead_console.access import Access
from fairlead_console.page import page

router = APIRouter()
ROWS_MAX: Final = 20
"""Number of partitions on one page; small, because the leader of each partition is asked."""


@router.get("/topics/{name}/voters")
async def show(
    request: Request, access: Access, name: str, at: Annotated[int, Query(ge=0)] = 0
) -> HTMLResponse:
    """Show the replicas of some partitions."""
    topic = await access.admin.describe_topic(name)
    numbers = range(at, min(at + ROWS_MAX, topic.partitions))
    partitions = await asyncio.gather(*(access.admin.describe_partition(name, each) for each in numbers))
    return await page(
        request,
        "topic_voters/voters.html",
        title=f"{name}: write quorums",
        access=access,
        refresh_seconds=10,
        topic=topic,
        partitions=partitions,
        following=at + ROWS_MAX if at + ROWS_MAX < topic.partitions else None,
        previous=max(0, at - ROWS_MAX) if at else None,
    )
