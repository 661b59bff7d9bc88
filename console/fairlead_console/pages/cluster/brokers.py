"""The brokers, and the moves of partitions between them."""

from __future__ import annotations

import shlex
from typing import Annotated

from fastapi import APIRouter, Form, Request
from fastapi.responses import HTMLResponse, RedirectResponse

from fairlead_console.access import Access
from fairlead_console.changes import Change, done
from fairlead_console.page import page

router = APIRouter()


@router.get("/brokers")
async def show(request: Request, access: Access) -> HTMLResponse:
    """Show every broker, and every move in progress."""
    picture = await access.observer.picture()
    if not picture.brokers:
        await access.admin.brokers()  # raises the error
    return await page(
        request,
        "brokers/brokers.html",
        title="Brokers",
        access=access,
        refresh_seconds=10,
        picture=picture,
        moves=await access.admin.reassignments(),
        most_leaders=max(picture.leaders.values(), default=0),
        most_stored=max(picture.stored.values(), default=0),
    )


@router.post("/brokers/cancel-move")
async def cancel(
    request: Request,
    access: Access,
    _: Change,
    topic: Annotated[str, Form()],
    partition: Annotated[int, Form(ge=0)],
) -> RedirectResponse:
    """Cancel the move of a partition."""
    await access.admin.cancel_reassignment(topic, partition)
    await access.observer.refresh()
    command = shlex.join(["fairlead", "partition", "reassign", topic, str(partition), "--cancel"])
    return done(request, "/brokers", f"Cancelled the move of {topic}-{partition}.", command)
