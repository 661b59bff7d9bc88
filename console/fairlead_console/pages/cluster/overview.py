"""The overview: the health of the cluster, the actions to take, and how much is read and written."""

from __future__ import annotations

from typing import Final

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse

from fairlead.health import stuck
from fairlead_console.access import Access
from fairlead_console.figures import silence_text
from fairlead_console.observation.picture import Picture
from fairlead_console.page import page

router = APIRouter()
LARGEST: Final = 8
"""Number of entries in the lists of the busiest topics and groups."""


@router.get("/")
async def show(request: Request, access: Access) -> HTMLResponse:
    """Show the state of the cluster."""
    picture = await access.observer.picture()
    topics = sorted(picture.topics.values(), key=lambda each: (-each.rate, -each.records, each.name))
    lags = sorted(picture.lags.values(), key=lambda each: (-each.total_records, each.group))
    return await page(
        request,
        "overview/overview.html",
        title="Overview",
        access=access,
        refresh_seconds=10,
        picture=picture,
        advice=_advice(picture),
        busiest=topics[:LARGEST],
        largest_lags=lags[:LARGEST],
        times=list(access.observer.rates.times),
        rates=list(access.observer.rates.values("")),
        byte_rates=list(access.observer.byte_rates.values("")),
    )


def _advice(picture: Picture) -> list[tuple[str, str]]:
    """Return the problems of the cluster, the most urgent first, as pairs of a sentence and a command."""
    health = picture.health
    found = []
    if health.controller is None:
        found.append(("The cluster has no controller, so nothing can be changed.", "fairlead cluster health"))
    if health.gone:
        brokers = ", ".join(map(str, health.gone))
        found.append((f"Broker {brokers} does not run: start it again.", "fairlead broker list"))
    if picture.silent:
        text = f"{silence_text(picture.silent)}: check the process and its network."
        found.append((text, "fairlead broker reports"))
    if picture.full_disks:
        brokers = ", ".join(map(str, picture.full_disks))
        text = f"The disk of broker {brokers} is full, so records are refused: free space, or lower retention.bytes."
        found.append((text, "fairlead broker reports"))
    if health.without_leader:
        text = f"{health.without_leader} of {health.partitions} partitions have no leader and cannot be used."
        found.append((text, "fairlead cluster health"))
    if health.under_min_isr:
        text = (
            f"{health.under_min_isr} partitions refuse records with acks=all: too few replicas are in sync."
        )
        found.append((text, "fairlead cluster health"))
    elif health.under_replicated:
        text = f"{health.under_replicated} partitions have a replica that is not in sync yet."
        found.append((text, "fairlead cluster health"))
    found += [
        (stuck(each.broker, each.immovable), f"fairlead broker undrain {each.broker}")
        for each in health.drains
        if each.immovable
    ]
    return found
