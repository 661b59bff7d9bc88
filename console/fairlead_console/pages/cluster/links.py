"""Links to other clusters: mirrors with lag, gaps and tails; pause, resume, acknowledge, promote, take back."""

from __future__ import annotations

import shlex
from typing import Annotated, Final, Literal

from fastapi import APIRouter, Form, Request
from fastapi.responses import HTMLResponse, RedirectResponse

from fairlead_api.bodies.links import LinkTopic
from fairlead_console.access import Access
from fairlead_console.changes import Change, check_typed, done
from fairlead_console.page import page

router = APIRouter()
ROWS_MAX: Final = 200
"""Number of mirrors on the page of a link."""
TROUBLED: Final = ("faulted", "blocked")
"""States of a mirror that does not copy."""
Verb = Literal["pause", "resume"]


@router.get("/links")
async def show(request: Request, access: Access) -> HTMLResponse:
    """Show the links of the cluster."""
    found = await access.admin.links()
    return await page(
        request, "links/links.html", title="Links", access=access, refresh_seconds=10, links=found
    )


@router.get("/links/{name}")
async def show_one(request: Request, access: Access, name: str) -> HTMLResponse:
    """Show a link with its mirrors, first mirrors that do not copy, then mirrors with the largest lag.

    Gaps are records that mirrors lack, and tails are files with records that were cut.
    """
    link = await access.admin.describe_link(name)
    mirrors = await access.admin.link_topics(name)
    mirrors.sort(key=_urgency)
    gaps = [
        (mirror.topic, each.partition, each.gap)
        for mirror in mirrors
        for each in mirror.partitions
        if each.gap is not None
    ]
    tails = await access.admin.link_tails(name)
    return await page(
        request,
        "links/link.html",
        title=f"Link {name}",
        access=access,
        refresh_seconds=10,
        link=link,
        mirrors=mirrors[:ROWS_MAX],
        total=len(mirrors),
        stopped=sum(mirror.state == "faulted" for mirror in mirrors),
        gaps=gaps[:ROWS_MAX],
        total_gaps=len(gaps),
        tails=tails[:ROWS_MAX],
        total_tails=len(tails),
    )


@router.post("/links/{name}/promote")
async def promote(
    request: Request,
    access: Access,
    _: Change,
    name: str,
    typed: Annotated[str, Form()],
    topic: Annotated[str, Form()],
    mode: Annotated[Literal["planned", "failover"], Form()] = "planned",
) -> RedirectResponse:
    """Begin to make a mirror accept records, after the user has typed its name."""
    check_typed(typed, topic)
    await access.admin.promote_link(name, [topic], mode)
    words = ["fairlead", "link", "promote", name, topic]
    words += ["--failover", "--yes"] if mode == "failover" else []
    sentence = f"{topic} is promoted, and accepts records once it leaves the list."
    return done(request, f"/links/{name}", sentence, shlex.join(words))


@router.post("/links/{name}/take-back")
async def take_back(
    request: Request, access: Access, _: Change, name: str, topic: Annotated[str, Form()]
) -> RedirectResponse:
    """Cancel the hand-over of a mirror, so that the source accepts its records again."""
    await access.admin.take_back_link(name, [topic])
    command = shlex.join(["fairlead", "link", "take-back", name, topic])
    return done(request, f"/links/{name}", f"The source accepts records of {topic} again.", command)


@router.post("/links/{name}/acknowledge")
async def acknowledge(request: Request, access: Access, _: Change, name: str) -> RedirectResponse:
    """Accept the gaps of a link, and let its stopped mirrors continue."""
    await access.admin.acknowledge_link(name)
    command = shlex.join(["fairlead", "link", "acknowledge", name])
    return done(request, f"/links/{name}", f"The gaps of {name} are accepted.", command)


@router.post("/links/{name}/{verb}")
async def steer(request: Request, access: Access, _: Change, name: str, verb: Verb) -> RedirectResponse:
    """Pause or resume the copying of a link."""
    calls = {"pause": access.admin.pause_link, "resume": access.admin.resume_link}
    link = await calls[verb](name)
    command = shlex.join(["fairlead", "link", verb, name])
    return done(request, f"/links/{name}", f"The link {name} is {link.state}.", command)


def _urgency(mirror: LinkTopic) -> tuple[bool, int, str]:
    return (mirror.state not in TROUBLED, -(mirror.lag_records or 0), mirror.topic)
