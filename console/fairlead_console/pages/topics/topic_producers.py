"""Producers of a topic: the idempotent producers that each partition remembers, with their last record."""

from __future__ import annotations

import asyncio
from typing import Annotated, Final

from fastapi import APIRouter, Query, Request
from fastapi.responses import HTMLResponse

from fairlead import TopicPartition
from fairlead_console.access import Access
from fairlead_console.page import page

router = APIRouter()
PARTITIONS_MAX: Final = 20
"""Number of partitions on one page; small, because the leader of each partition is asked."""
ROWS_MAX: Final = 100
"""Number of producers of one partition: the producers that have written last."""


@router.get("/topics/{name}/producers")
async def show(
    request: Request, access: Access, name: str, at: Annotated[int, Query(ge=0)] = 0
) -> HTMLResponse:
    """Show the producers of some partitions."""
    topic = await access.admin.describe_topic(name)
    on_page = range(at, min(at + PARTITIONS_MAX, topic.partitions))
    left_out = access.observer.unanswered(name).intersection(on_page)
    numbers = [each for each in on_page if each not in left_out]
    answers = await asyncio.gather(
        *(access.admin.partition_producers(TopicPartition(name, each)) for each in numbers)
    )
    for found in answers:
        found.sort(key=lambda each: each.last_written_at, reverse=True)
    return await page(
        request,
        "topic_producers/producers.html",
        title=f"{name}: producers",
        access=access,
        refresh_seconds=10,
        topic=topic,
        left_out=sorted(left_out),
        partitions=[
            (number, found[:ROWS_MAX], len(found))
            for number, found in zip(numbers, answers, strict=True)
            if found
        ],
        following=at + PARTITIONS_MAX if at + PARTITIONS_MAX < topic.partitions else None,
        previous=max(0, at - PARTITIONS_MAX) if at else None,
    )
