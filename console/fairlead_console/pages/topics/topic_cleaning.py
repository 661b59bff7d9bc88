"""Cleaning of a compacted topic: how much of each replica is dirty, the last rounds; clean a partition now."""

from __future__ import annotations

import asyncio
import shlex
from typing import Annotated, Final

from fastapi import APIRouter, Form, Query, Request
from fastapi.responses import HTMLResponse, RedirectResponse

from fairlead_console.access import Access
from fairlead_console.changes import Change, done
from fairlead_console.page import page

router = APIRouter()
ROWS_MAX: Final = 20
"""Number of partitions on one page; small, because the leader of each partition asks all replicas."""


@router.get("/topics/{name}/cleaning")
async def show(
    request: Request, access: Access, name: str, at: Annotated[int, Query(ge=0)] = 0
) -> HTMLResponse:
    """Show the cleaning of some partitions."""
    topic = await access.admin.describe_topic(name)
    on_page = range(at, min(at + ROWS_MAX, topic.partitions))
    left_out = access.observer.unanswered(name).intersection(on_page)
    numbers = [each for each in on_page if each not in left_out]
    partitions = await asyncio.gather(*(access.admin.describe_cleaning(name, each) for each in numbers))
    return await page(
        request,
        "topic_cleaning/cleaning.html",
        title=f"{name}: cleaning",
        access=access,
        topic=topic,
        left_out=sorted(left_out),
        partitions=partitions,
        following=at + ROWS_MAX if at + ROWS_MAX < topic.partitions else None,
        previous=max(0, at - ROWS_MAX) if at else None,
    )


@router.post("/topics/{name}/clean")
async def clean(
    request: Request, access: Access, _: Change, name: str, partition: Annotated[int, Form(ge=0)]
) -> RedirectResponse:
    """Clean the replicas of a partition as soon as possible."""
    await access.admin.clean_partition(name, partition)
    command = shlex.join(["fairlead", "partition", "clean", name, str(partition)])
    return done(
        request, f"/topics/{name}/cleaning", f"The replicas of {name}-{partition} are cleaned soon.", command
    )
