"""Changes that a person makes in a browser: POST requests with a CSRF token, and redirects that show the result.

The token of a browser is a random value in a cookie that scripts cannot read. A form repeats an HMAC of this value,
which no other site can compute. A form on a page of another site contains no such HMAC. The result of a change is in a
signed cookie until the next page shows it, so that a link cannot make the console show an arbitrary sentence.
"""

from __future__ import annotations

import base64
import hmac
import json
import secrets  # noqa: TID251 - tokens of forms are drawn here
from dataclasses import dataclass
from hashlib import sha256
from typing import Annotated, Final

from fastapi import Depends, Form, Request
from fastapi.responses import RedirectResponse
from starlette.responses import Response

COOKIE: Final = "fairlead_csrf"
DONE_COOKIE: Final = "fairlead_done"
DONE_SECONDS: Final = 60
"""Seconds within which a browser must follow the redirect and show the result."""
FIELD: Final = "csrf_token"
_VALUE_BYTES: Final = 32


class ChangeRefused(Exception):
    """A change was not made: the console is read-only, or the form does not come from a page of this console."""


@dataclass(frozen=True, slots=True)
class Done:
    """Result of a change: a sentence, and the command line that makes the same change."""

    sentence: str
    command: str


class ChangeGuard:
    """Creates and checks the tokens of forms, and signs the results of changes."""

    def __init__(self) -> None:
        self._key = secrets.token_bytes(_VALUE_BYTES)

    def value_of(self, request: Request) -> tuple[str, bool]:
        """Return the random value of a browser, and whether it is new and must be set as a cookie."""
        found = request.cookies.get(COOKIE, "")
        if len(found) == 2 * _VALUE_BYTES and found.isalnum():
            return found, False
        return self.new_value(), True

    @staticmethod
    def new_value() -> str:
        """Return a random value for a browser."""
        return secrets.token_hex(_VALUE_BYTES)

    def token_of(self, request: Request, value: str) -> str:
        """Return the token that forms of a browser repeat; after a sign-in, earlier tokens are not valid."""
        session = getattr(request.state, "session", None)
        return self._signature("form", f"{value}:{'' if session is None else session.id}")

    def set_cookie(self, request: Request, response: Response, value: str) -> None:
        """Set the cookie with the random value."""
        secure = request.url.scheme == "https"
        response.set_cookie(COOKIE, value, httponly=True, samesite="strict", secure=secure, path="/")

    def check(self, request: Request, token: str) -> None:
        """Raise `ChangeRefused` unless the form comes from a page that this process sent to this browser."""
        value = request.cookies.get(COOKIE, "")
        if not value or not hmac.compare_digest(self.token_of(request, value).encode(), token.encode()):
            message = (
                "the form is too old or comes from another page; go back, load the page again and repeat"
            )
            raise ChangeRefused(message)

    def set_done(self, request: Request, response: Response, done: Done) -> None:
        """Store the result of a change in the browser until the next page is shown."""
        text = base64.urlsafe_b64encode(json.dumps([done.sentence, done.command]).encode()).decode()
        response.set_cookie(
            DONE_COOKIE,
            f"{text}.{self._signature('done', text)}",
            max_age=DONE_SECONDS,
            httponly=True,
            samesite="strict",
            secure=request.url.scheme == "https",
            path="/",
        )

    def done_of(self, request: Request) -> Done | None:
        """Return the result of the change that led to this page; None if there was no change."""
        text, _, signature = request.cookies.get(DONE_COOKIE, "").partition(".")
        if not text or not hmac.compare_digest(self._signature("done", text).encode(), signature.encode()):
            return None
        sentence, command = json.loads(base64.urlsafe_b64decode(text))
        return Done(sentence, command)

    def _signature(self, purpose: str, text: str) -> str:
        return hmac.new(self._key, f"{purpose}:{text}".encode(), sha256).hexdigest()


def _own_form(request: Request, csrf_token: Annotated[str, Form()] = "") -> None:
    guard: ChangeGuard = request.app.state.change_guard
    guard.check(request, csrf_token)


def _guarded(request: Request, csrf_token: Annotated[str, Form()] = "") -> None:
    if request.app.state.settings.read_only:
        message = "this console is read-only; use the command line"
        raise ChangeRefused(message)
    _own_form(request, csrf_token)


OwnForm = Annotated[None, Depends(_own_form)]
"""Dependency of handlers of forms that do not change the cluster."""
Change = Annotated[None, Depends(_guarded)]
"""Dependency of every handler that changes the cluster."""


def done(request: Request, path: str, sentence: str, command: str) -> RedirectResponse:
    """Return the answer to a change: a redirect to a page that shows the sentence and the command."""
    response = RedirectResponse(path, status_code=303)
    guard: ChangeGuard = request.app.state.change_guard
    guard.set_done(request, response, Done(sentence, command))
    return response


def check_typed(typed: str, name: str) -> None:
    """Raise `ChangeRefused` unless the user has typed the name of the object."""
    if typed.strip() != name:
        message = f"to confirm, type {name}; you typed {typed!r}"
        raise ChangeRefused(message)
