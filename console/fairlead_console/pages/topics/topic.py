"""One topic: its partitions, its settings with their sources, and the groups that read it."""

from __future__ import annotations

from collections.abc import Iterable

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse

from fairlead_api.bodies.group_answers import LagAnswer
from fairlead_api.configuration import KEYS
from fairlead_console.access import Access
from fairlead_console.observation.picture import LogEnds, Topic
from fairlead_console.page import page

router = APIRouter()


@router.get("/topics/{name}")
async def show(request: Request, access: Access, name: str) -> HTMLResponse:
    """Show a topic."""
    description = await access.admin.describe_topic(name)
    picture = await access.observer.picture()
    topic = picture.topics.get(name)
    if topic is None or topic.description.topic_id != description.topic_id:
        await access.observer.refresh()
        picture = await access.observer.picture()
        topic = picture.topics.get(name, Topic(description, [], {}))
    return await page(
        request,
        "topic/topic.html",
        title=name,
        access=access,
        refresh_seconds=10,
        topic=topic,
        description=description,
        config=sorted(description.config.items()),
        keys=KEYS,
        largest=max(topic.log_sizes.values(), default=0),
        no_ends=LogEnds(0, 0),
        readers=_readers(name, picture.lags.values()),
        times=list(access.observer.rates.times),
        rates=list(access.observer.rates.values(name)),
        byte_rates=list(access.observer.byte_rates.values(name)),
    )


def _readers(name: str, lags: Iterable[LagAnswer]) -> list[tuple[str, int, float]]:
    """Return the groups that have offsets in a topic: name, lag in records and in seconds, the largest lag first."""
    found = []
    for lag in lags:
        mine = [each for each in lag.lag if each.topic == name]
        if mine:
            records = sum(each.lag_records or 0 for each in mine)
            found.append((lag.group, records, max(each.lag_seconds or 0.0 for each in mine)))
    return sorted(found, key=lambda each: (-each[1], each[0]))
