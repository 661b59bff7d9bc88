"""Changes of topics: create, change a setting, add partitions, delete."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Annotated

from fastapi import APIRouter, Form, Request, Response
from fastapi.responses import HTMLResponse, RedirectResponse

from fairlead.errors import ClusterError, FixError
from fairlead_api.configuration import KEYS
from fairlead_console.access import Access, ClusterAccess
from fairlead_console.changes import Change, check_typed, done
from fairlead_console.page import page

router = APIRouter()
Name = Annotated[str, Form(max_length=249)]


@router.get("/create-topic")
async def new(request: Request, access: Access) -> HTMLResponse:
    """Show the form for a new topic."""
    return await _form(
        request, access, {"name": "", "partitions": "6", "replication_factor": "", "config": ""}
    )


@router.post("/create-topic")
async def create(
    request: Request,
    access: Access,
    _: Change,
    name: Name,
    partitions: Annotated[str, Form()] = "",
    replication_factor: Annotated[str, Form()] = "",
    config: Annotated[str, Form()] = "",
) -> Response:
    """Create a topic; a refusal is shown above the form."""
    values = {
        "name": name,
        "partitions": partitions,
        "replication_factor": replication_factor,
        "config": config,
    }
    settings = dict(_setting(line) for line in config.splitlines() if line.strip())
    command = ["fairlead", "topic", "create", name]
    if partitions:
        command += ["--partitions", partitions]
    if replication_factor:
        command += ["--replication-factor", replication_factor]
    for key, value in settings.items():
        command += ["-c", f"{key}={value}"]
    try:
        await access.admin.create_topic(
            name.strip(),
            partitions=_number(partitions),
            replication_factor=_number(replication_factor),
            config=settings,
        )
    except FixError as error:
        return await _form(request, access, values, error)
    await access.observer.refresh()
    return done(request, f"/topics/{name.strip()}", f"Created topic {name}.", shlex.join(command))


@router.get("/topics/{name}/change")
async def change(request: Request, access: Access, name: str) -> HTMLResponse:
    """Show the forms that change a topic."""
    return await _change_page(request, access, name)


@router.post("/topics/{name}/settings")
async def set_config(
    request: Request,
    access: Access,
    _: Change,
    name: str,
    topic_id: Annotated[str, Form()],
    key: Annotated[str, Form()],
    value: Annotated[str, Form()] = "",
) -> Response:
    """Set one setting, or reset it to its default."""
    value = value.strip()
    try:
        await access.admin.alter_topic(name, config={key: value or None}, topic_id=topic_id)
    except FixError as error:
        return await _change_page(request, access, name, error)
    await access.observer.refresh()
    words = ["fairlead", "topic", "alter", name, *(["-c", f"{key}={value}"] if value else ["--unset", key])]
    sentence = f"Set {key} to {value}." if value else f"Reset {key} to its default."
    return done(request, f"/topics/{name}", sentence, shlex.join(words))


@router.post("/topics/{name}/partitions")
async def grow(
    request: Request,
    access: Access,
    _: Change,
    name: str,
    topic_id: Annotated[str, Form()],
    partitions: Annotated[int, Form(ge=1)],
) -> Response:
    """Add partitions."""
    try:
        await access.admin.alter_topic(name, partitions=partitions, topic_id=topic_id)
    except FixError as error:
        return await _change_page(request, access, name, error)
    await access.observer.refresh()
    command = shlex.join(["fairlead", "topic", "alter", name, "--partitions", str(partitions)])
    return done(request, f"/topics/{name}", f"Topic {name} has {partitions} partitions.", command)


@router.post("/topics/{name}/delete")
async def delete(
    request: Request,
    access: Access,
    _: Change,
    name: str,
    topic_id: Annotated[str, Form()],
    typed: Annotated[str, Form()],
) -> RedirectResponse:
    """Delete a topic after the user has typed its name."""
    check_typed(typed, name)
    await access.admin.delete_topic(name, topic_id=topic_id)
    await access.observer.refresh()
    command = shlex.join(["fairlead", "topic", "delete", name, "--yes"])
    return done(request, "/topics", f"Deleted topic {name} and its records.", command)


async def _form(
    request: Request, access: ClusterAccess, values: Mapping[str, str], error: ClusterError | None = None
) -> HTMLResponse:
    return await page(
        request,
        "topic_changes/create.html",
        title="Create a topic",
        access=access,
        status=200 if error is None else error.status,
        error=error,
        values=values,
    )


async def _change_page(
    request: Request, access: ClusterAccess, name: str, error: ClusterError | None = None
) -> HTMLResponse:
    topic = await access.admin.describe_topic(name)
    return await page(
        request,
        "topic_changes/change.html",
        title=f"Change {name}",
        access=access,
        status=200 if error is None else error.status,
        error=error,
        topic=topic,
        config=sorted(topic.config.items()),
        keys=KEYS,
    )


def _number(text: str) -> int | None:
    return int(text) if text.strip().isdecimal() else None


def _setting(line: str) -> tuple[str, str]:
    key, _, value = line.partition("=")
    return key.strip(), value.strip()
