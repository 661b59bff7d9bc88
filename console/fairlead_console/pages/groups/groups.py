"""The list of consumer groups with their lags."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Final, Literal

from fastapi import APIRouter, Query, Request
from fastapi.responses import HTMLResponse

from fairlead_api.bodies.group_answers import LagAnswer
from fairlead_console.access import Access
from fairlead_console.lists import listing
from fairlead_console.page import page

router = APIRouter()

Order = Literal["name", "lag", "seconds", "members"]


def owners(lag: LagAnswer) -> int:
    """Return the number of members that own a partition."""
    return len({each.member_id for each in lag.lag if each.member_id is not None})


_KEYS: Final[dict[str, Callable[[LagAnswer], Any]]] = {
    "name": lambda lag: lag.group,
    "lag": lambda lag: -lag.total_records,
    "seconds": lambda lag: -lag.max_seconds,
    "members": lambda lag: -owners(lag),
}


@router.get("/groups")
async def show(
    request: Request,
    access: Access,
    q: Annotated[str, Query(max_length=249)] = "",
    sort: Order = "name",
    reverse: bool = False,
    at: Annotated[int, Query(ge=1)] = 1,
) -> HTMLResponse:
    """Show the groups whose names contain every word of `q`, in pages of 100."""
    picture = await access.observer.picture()
    groups = listing(
        "/groups", picture.lags.values(), lambda lag: lag.group, _KEYS, q=q, sort=sort, reverse=reverse, at=at
    )
    return await page(
        request,
        "groups/groups.html",
        title="Groups",
        access=access,
        refresh_seconds=10,
        list=groups,
        owners=owners,
        silent=picture.groups - len(picture.lags),
    )
