"""ASGI middleware before all pages: the session of each request, and the host names under which the console answers.

If the name of another site resolved to the console's address, that site's pages could read the console (DNS rebinding).
A console with a public address therefore answers only under this address, and any other console on a
loopback address only under loopback names.
"""

from __future__ import annotations

import ipaddress
from typing import Final
from urllib.parse import urlsplit

from fastapi import Request
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from fairlead_console.identity.sessions import Session, Sessions
from fairlead_console.settings import ConsoleSettings

HEALTH: Final = "/healthz"


class SignedIn:
    """Sets `request.state.session`, and refuses foreign hosts."""

    def __init__(self, app: ASGIApp, settings: ConsoleSettings, sessions: Sessions) -> None:
        self._app = app
        self._sessions = sessions
        self._is_loopback = is_loopback(settings.host)
        self._public = None if settings.public_url is None else urlsplit(settings.public_url)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on with its session."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        if scope["path"] == HEALTH:
            await PlainTextResponse("ok")(scope, receive, send)
            return
        if self._public is not None:
            scope["scheme"] = self._public.scheme
        request = Request(scope)
        host = request.url.hostname or ""
        if not self._allows(host):
            text = (
                f"This console does not answer under the name {host!r}; use its address or set --public-url\n"
            )
            await PlainTextResponse(text, 421)(scope, receive, send)
            return
        request.state.session = self._sessions.of(request)
        await self._app(scope, receive, send)

    def _allows(self, host: str) -> bool:
        if self._public is not None:
            return host == self._public.hostname
        return is_loopback(host) or not self._is_loopback


def is_loopback(host: str) -> bool:
    """Return whether a host name or an IP address refers to this machine."""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def is_private(request: Request) -> bool:
    """Return whether a token may be sent in a form, which requires https or a browser on this machine."""
    return request.url.scheme == "https" or is_loopback(request.url.hostname or "")


def session_of(request: Request) -> Session | None:
    """Return the session of a request."""
    session: Session | None = getattr(request.state, "session", None)
    return session
