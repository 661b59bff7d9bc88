"""The overview: the health of the cluster, the actions to take, and how much is read and written."""

from __future__ import annotations

from typing import Final

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse

from fairlead_console.access import Access
from fairlead_console.observation.advice import problems, warnings
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
        problems=problems(picture),
        warnings=warnings(picture),
        busiest=topics[:LARGEST],
        largest_lags=lags[:LARGEST],
        times=list(access.observer.rates.times),
        rates=list(access.observer.rates.values("")),
        byte_rates=list(access.observer.byte_rates.values("")),
    )
