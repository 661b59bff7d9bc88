"""Renders pages: `page()` answers with a template in the layout of the console.

The layout (`templates/base.html`) has the navigation, the result of the last change, a warning if the cluster does not
answer, and the region `<main>` that refreshes itself.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse
from jinja2 import Environment, FileSystemLoader, StrictUndefined, select_autoescape

from fairlead_console import figures, names
from fairlead_console.access import ClusterAccess
from fairlead_console.assets import Assets
from fairlead_console.changes import DONE_COOKIE, ChangeGuard
from fairlead_console.identity.signed_in import session_of

TEMPLATES: Final = Path(__file__).parent / "templates"
THEME_COOKIE: Final = "fairlead_theme"
SKETCH_SECONDS: Final = 2
"""Seconds after which a page is requested again if its picture of the cluster was incomplete."""
THEMES: Final = ("light", "dark")


@dataclass(frozen=True, slots=True)
class ConsolePage:
    """A page of the console: its addresses, and its entry in the navigation (none if `title` is empty)."""

    router: APIRouter
    title: str = ""
    path: str = ""


class Renderer:
    """The templates, with the filters and values that all pages share."""

    def __init__(self, assets: Assets, pages: Sequence[ConsolePage]) -> None:
        self._environment = Environment(
            loader=FileSystemLoader(TEMPLATES),
            autoescape=select_autoescape(default=True),
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            auto_reload=False,
        )
        self._environment.globals.update(
            asset=assets.address,
            navigation=[each for each in pages if each.title],
        )
        self._environment.filters.update(
            figures.FILTERS, pattern=names.pattern, segment=names.segment, word=shlex.quote
        )

    def render(self, template: str, values: dict[str, object]) -> str:
        """Return the text of a page."""
        return self._environment.get_template(template).render(values)


async def page(
    request: Request,
    template: str,
    *,
    title: str,
    access: ClusterAccess | None = None,
    status: int = 200,
    refresh_seconds: int | None = None,
    **values: object,
) -> HTMLResponse:
    """Return a page from `templates/<template>`.

    `values` are the variables of the template, by name. With `access`, the layout shows the name and the state of the
    cluster. With `refresh_seconds`, the browser requests the page again while the page is visible and none of its forms
    is in use.
    """
    renderer: Renderer = request.app.state.renderer
    guard: ChangeGuard = request.app.state.change_guard
    browser, is_new = guard.value_of(request)
    done = guard.done_of(request)
    theme = request.cookies.get(THEME_COOKIE, "")
    picture = None if access is None else await access.observer.picture()
    text = renderer.render(
        template,
        {
            "address": names.address(request.scope),
            "cluster": None if picture is None else picture.versions,
            "csrf_token": guard.token_of(request, browser),
            "done": done,
            "path": request.url.path,
            "read_only": request.app.state.settings.read_only,
            "refresh_seconds": refresh_seconds
            if refresh_seconds is None or picture is None or not picture.is_sketch
            else SKETCH_SECONDS,
            "is_sketch": picture is not None and picture.is_sketch,
            "session": session_of(request),
            "sign_in": picture is not None and picture.caller.mode != "open",
            "theme": theme if theme in THEMES else "",
            "title": title,
            "silent": frozenset() if access is None else access.observer.silent,
            "trouble": None if access is None else access.observer.trouble,
            **values,
        },
    )
    response = HTMLResponse(text, status_code=status)
    if is_new:
        guard.set_cookie(request, response, browser)
    if done is not None:
        response.delete_cookie(DONE_COOKIE, path="/")
    return response
