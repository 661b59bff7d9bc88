"""One consumer group: its state, its members, its lag in records and seconds, and its deletion."""

from __future__ import annotations

import shlex
from typing import Annotated

from fastapi import APIRouter, Form, Request
from fastapi.responses import HTMLResponse, RedirectResponse
from msgspec import UNSET

from fairlead_console.access import Access
from fairlead_console.changes import Change, check_typed, done
from fairlead_console.names import NameInPath
from fairlead_console.page import page

router = APIRouter()


@router.get("/groups/{name}")
async def show(request: Request, access: Access, name: NameInPath) -> HTMLResponse:
    """Show a group."""
    group = await access.admin.describe_group(name)
    observer = access.observer
    # The coordinator would wait for silent leaders.
    known = (await observer.picture()).lags.get(name) if observer.silent else None
    lag = known or await access.admin.group_lag(name)
    return await page(
        request,
        "group/group.html",
        title=name,
        access=access,
        refresh_seconds=10,
        group=group,
        lag=lag,
        problems=[each for each in lag.lag if each.problem is not UNSET],
        times=list(observer.lags.times),
        records=list(observer.lags.values(name)),
        seconds=list(observer.lag_seconds.values(name)),
    )


@router.post("/groups/{name}/delete")
async def delete(
    request: Request, access: Access, _: Change, name: NameInPath, typed: Annotated[str, Form()]
) -> RedirectResponse:
    """Delete a group after the user has typed its name."""
    check_typed(typed, name)
    await access.admin.delete_group(name)
    await access.observer.refresh()
    command = shlex.join(["fairlead", "group", "delete", name, "--yes"])
    return done(request, "/groups", f"Deleted group {name} and its offsets.", command)
