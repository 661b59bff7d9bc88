"""Answers to errors: a page with the problem, the next step, and a link to the problem's reference page."""

from __future__ import annotations

from urllib.parse import urlencode

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, RedirectResponse
from starlette.exceptions import HTTPException

from fairlead.errors import ClusterError, FairleadError, UnauthenticatedError, UnreachableError
from fairlead_console.access import RecordsHidden, access_of
from fairlead_console.changes import ChangeRefused
from fairlead_console.figures import silence_text
from fairlead_console.identity.signed_in import session_of
from fairlead_console.names import address
from fairlead_console.page import page


def add_error_pages(app: FastAPI) -> None:
    """Register the handlers of all errors that pages raise."""
    app.add_exception_handler(FairleadError, _sdk_error)
    app.add_exception_handler(UnauthenticatedError, _sign_in)
    app.add_exception_handler(RecordsHidden, _hidden)
    app.add_exception_handler(ChangeRefused, _refused)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _not_found)


async def _sdk_error(request: Request, error: Exception) -> HTMLResponse:
    if isinstance(error, ClusterError):
        return await _page(
            request,
            error.problem.definition.title,
            f"{error.subject}: {error.detail}",
            status=error.status,
            next_step=error.next_step,
            code=error.code,
        )
    if isinstance(error, UnreachableError):
        silent = (await access_of(request)).observer.silent
        if silent:
            next_step = "Other brokers take over as soon as the lease of the silent broker has expired."
            return await _page(request, silence_text(silent), str(error), status=503, next_step=next_step)
        bootstrap = request.app.state.settings.bootstrap
        next_step = (
            f"Check that a broker runs at {bootstrap}. For a first cluster on this machine: fairlead dev up"
        )
        return await _page(request, "No broker answers", str(error), status=503, next_step=next_step)
    return await _page(request, "The call failed", str(error), status=500)


async def _sign_in(request: Request, error: Exception) -> Response:
    """Redirect to the sign-in, which returns to the page; a request for a part of a page reloads the whole page."""
    if "hx-request" in request.headers or "x-part" in request.headers:
        return Response(str(error), 401, {"HX-Refresh": "true"})
    is_page = request.method == "GET"
    back = address(request.scope)
    ended = {"ended": "1"} if session_of(request) is not None else {}
    query = urlencode({"next": back if is_page else "/"} | ended)
    return RedirectResponse(f"/sign-in?{query}", status_code=303)


async def _hidden(request: Request, error: Exception) -> HTMLResponse:
    return await _page(request, "The records are hidden", str(error), status=403)


async def _refused(request: Request, error: Exception) -> HTMLResponse:
    return await _page(request, "Nothing was changed", str(error), status=403)


async def _invalid(request: Request, error: Exception) -> HTMLResponse:
    assert isinstance(error, RequestValidationError), "registered for this type"
    wrong = "; ".join(f"{each['loc'][-1]}: {each['msg']}" for each in error.errors())
    return await _page(request, "The address or the form is not valid", wrong, status=422)


async def _not_found(request: Request, error: Exception) -> HTMLResponse:
    assert isinstance(error, HTTPException), "registered for this type"
    if error.status_code == 404:
        return await _page(request, "No such page", f"The console has no page {request.url.path}", status=404)
    return await _page(request, error.detail, "", status=error.status_code)


async def _page(
    request: Request, title: str, detail: str, *, status: int, next_step: str = "", code: str = ""
) -> HTMLResponse:
    return await page(
        request,
        "problem/error.html",
        title=title,
        status=status,
        is_missing=status == 404,
        detail=detail,
        next_step=next_step,
        code=code,
    )
