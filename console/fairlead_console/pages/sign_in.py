"""Sign-in with an API token or through an OIDC issuer, and sign-out."""

from __future__ import annotations

import hmac
from typing import Annotated

from fastapi import APIRouter, Form, HTTPException, Query, Request, Response
from fastapi.responses import HTMLResponse, RedirectResponse

from fairlead import Admin
from fairlead.errors import FairleadError, SettingError, UnreachableError
from fairlead_api.bodies.security import WhoAmI
from fairlead_console.access import REQUEST_TIMEOUT, RETRY_TIMEOUT, AccessPool
from fairlead_console.changes import ChangeGuard, OwnForm
from fairlead_console.identity.local_paths import local_path
from fairlead_console.identity.oidc import OidcError, OidcIssuer
from fairlead_console.identity.sessions import Sessions, SessionTooLarge
from fairlead_console.identity.signed_in import is_private, session_of
from fairlead_console.page import page

router = APIRouter()
Next = Annotated[str, Query(alias="next", max_length=4000)]
INSECURE = (
    "This connection is not encrypted, so a token could be read on its way. Use https, or the console on your own "
    "machine."
)


@router.get("/sign-in")
async def show(
    request: Request, next_path: Next = "/", ended: Annotated[bool, Query()] = False
) -> HTMLResponse:
    """Show the ways to sign in."""
    return await _form(request, next_path, ended=ended)


@router.post("/sign-in")
async def sign_in(
    request: Request,
    _: OwnForm,
    token: Annotated[str, Form(max_length=16_384)],
    next_path: Annotated[str, Form(alias="next", max_length=4000)] = "/",
) -> Response:
    """Sign in with an API token or a signed token."""
    if not is_private(request):
        return await _form(request, next_path, 403)
    try:
        caller = await _caller_of(request, token.strip())
        response = RedirectResponse(local_path(next_path), status_code=303)
        _begin_session(request, response, token.strip(), caller, "token")
    except UnreachableError:
        raise
    except (FairleadError, SessionTooLarge) as error:
        return await _form(request, next_path, 401, str(error))
    return response


@router.get("/sign-in/oidc")
async def begin(request: Request, next_path: Next = "/") -> Response:
    """Send the browser to the issuer."""
    issuer = _issuer(request)
    if not is_private(request):
        return await _form(request, next_path, 403)
    try:
        uri, flow = await issuer.begin(_redirect_uri(request), local_path(next_path))
    except OidcError as error:
        return await _form(request, next_path, 502, str(error))
    response = RedirectResponse(uri, status_code=303)
    sessions: Sessions = request.app.state.sessions
    sessions.begin_flow(request, response, flow)
    return response


@router.get("/sign-in/callback")
async def finish(
    request: Request,
    state: Annotated[str, Query(max_length=200)] = "",
    code: Annotated[str, Query(max_length=4000)] = "",
    error: Annotated[str, Query(max_length=200)] = "",
    error_description: Annotated[str, Query(max_length=2000)] = "",
) -> Response:
    """Complete the sign-in with the code that the issuer has sent through the browser."""
    issuer = _issuer(request)
    sessions: Sessions = request.app.state.sessions
    response = HTMLResponse()
    flow = sessions.end_flow(request, response)
    if flow is None or not hmac.compare_digest(flow.state.encode(), state.encode()):
        return await _form(
            request, "/", 403, "this browser did not begin this sign-in, or began it too long ago"
        )
    if error or not code:
        return await _form(
            request, flow.next, 403, f"{issuer.host}: {error_description or error or 'no code'}"
        )
    try:
        token = await issuer.token_of(code, flow.verifier, _redirect_uri(request))
        caller = await _caller_of(request, token)
        # The page uses a refresh, not a redirect: browsers treat a redirect as a navigation from the issuer's site, in
        # which they do not send the session cookie.
        shown = await page(request, "sign_in/continue.html", title="Signed in", next_path=flow.next)
        response.body = shown.body
        response.headers["Content-Length"] = str(len(shown.body))
        _begin_session(request, response, token, caller, "oidc")
    except UnreachableError:
        raise
    except (FairleadError, OidcError, SessionTooLarge) as refused:
        return await _form(request, flow.next, 401, str(refused))
    return response


@router.post("/sign-out")
async def sign_out(request: Request, _: OwnForm) -> RedirectResponse:
    """End the session in the browser and in the console; the token itself stays valid."""
    sessions: Sessions = request.app.state.sessions
    pool: AccessPool = request.app.state.access_pool
    session = session_of(request)
    if session is not None:
        pool.forget(session)
    response = RedirectResponse("/sign-in", status_code=303)
    sessions.end(request, response)
    return response


def _issuer(request: Request) -> OidcIssuer:
    issuer: OidcIssuer | None = request.app.state.oidc
    if issuer is None:
        raise HTTPException(404)
    return issuer


def _redirect_uri(request: Request) -> str:
    base = request.app.state.settings.public_url or f"{request.url.scheme}://{request.url.netloc}"
    return f"{base}/sign-in/callback"


async def _caller_of(request: Request, token: str) -> WhoAmI:
    """Return the identity that the cluster knows for a token. Raises the errors of the SDK."""
    if not token:
        raise SettingError("token", "", "an API token or a signed token")
    bootstrap = request.app.state.settings.bootstrap
    async with Admin(
        bootstrap, token=token, request_timeout=REQUEST_TIMEOUT, retry_timeout=RETRY_TIMEOUT
    ) as admin:
        return await admin.whoami()


def _begin_session(request: Request, response: Response, token: str, caller: WhoAmI, via: str) -> None:
    sessions: Sessions = request.app.state.sessions
    guard: ChangeGuard = request.app.state.change_guard
    session = sessions.begin(token, caller.principal, "oidc" if via == "oidc" else "token", caller.expires_at)
    sessions.set(request, response, session)
    # After the sign-in, a value that another person may have set in this browser earlier is no longer valid.
    guard.set_cookie(request, response, guard.new_value())


async def _form(
    request: Request, next_path: str, status: int = 200, reason: str = "", *, ended: bool = False
) -> HTMLResponse:
    issuer: OidcIssuer | None = request.app.state.oidc
    return await page(
        request,
        "sign_in/sign_in.html",
        title="Sign in",
        status=status,
        next_path=local_path(next_path),
        issuer=None if issuer is None else issuer.host,
        reason=reason,
        ended=ended,
        insecure="" if is_private(request) else INSECURE,
    )
