"""Sessions of signed-in callers: encrypted cookies, which scripts cannot read and other sites cannot send.

A cookie contains the caller's token, so that the console stores nothing. AES-GCM encrypts and authenticates the cookie.
The key is random for each start of the console, or comes from a file that several consoles share.
"""

from __future__ import annotations

import base64
import binascii
import secrets  # noqa: TID251 - keys and ids of sessions are drawn here
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from hashlib import sha256
from typing import TYPE_CHECKING, Final, Literal, TypeVar

import msgspec
from fastapi import Request, Response

from fairlead import clock

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

T = TypeVar("T")
SESSION_SECONDS: Final = 12 * 3600
"""Maximum duration of a session; a session ends earlier if its token expires."""
FLOW_SECONDS: Final = 600
"""Maximum duration of a sign-in at an issuer."""
PIECE_LETTERS: Final = 3800
"""Maximum size of a session's piece in one cookie, since browsers drop cookies above 4,096 bytes."""
PIECES_MAX: Final = 4
_NONCE_BYTES: Final = 12
_ID_BYTES: Final = 16


class Session(msgspec.Struct, frozen=True, kw_only=True):
    """A signed-in caller."""

    id: str
    token: str
    principal: str
    via: Literal["token", "oidc"]
    expires_at: float
    """Time at which the session expires, in seconds since 1970."""


class Flow(msgspec.Struct, frozen=True, kw_only=True):
    """A sign-in at an issuer that is in progress."""

    state: str
    verifier: str
    next: str
    expires_at: float


class SessionTooLarge(ValueError):
    """The token is too large for the cookies."""


@dataclass(frozen=True, slots=True)
class _Cookie:
    name: str
    same_site: Literal["strict", "lax"]


_SESSION: Final = _Cookie("fairlead_session", "strict")
# The issuer sends the browser back from its own site, where strict cookies are not sent.
_FLOW: Final = _Cookie("fairlead_sign_in", "lax")


class Sessions:
    """Writes and reads the cookies."""

    def __init__(self, key: bytes | None = None) -> None:
        """`key`: secret of any length from a file, else a random one."""
        self._key = sha256(b"fairlead console" + (key or secrets.token_bytes(32))).digest()

    @cached_property
    def _cipher(self) -> AESGCM:
        # Consoles of open clusters have no sessions, and do without 8 MiB of cryptography.
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # noqa: PLC0415

        return AESGCM(self._key)

    def begin(
        self, token: str, principal: str, via: Literal["token", "oidc"], token_expires_at: str | None
    ) -> Session:
        """Return a new session, whose id is in no earlier cookie of the browser."""
        expires_at = clock.now_ns() / 1e9 + SESSION_SECONDS
        if token_expires_at is not None:
            expires_at = min(expires_at, datetime.fromisoformat(token_expires_at).timestamp())
        session_id = secrets.token_hex(_ID_BYTES)
        return Session(id=session_id, token=token, principal=principal, via=via, expires_at=expires_at)

    def of(self, request: Request) -> Session | None:
        """Return the session of a request; None if there is no session or the session has ended."""
        return self._read(request, _SESSION, Session)

    def set(self, request: Request, response: Response, session: Session) -> None:
        """Set the session. Raises `SessionTooLarge`."""
        self._write(request, response, _SESSION, session, int(session.expires_at - clock.now_ns() / 1e9))

    def end(self, request: Request, response: Response) -> None:
        """Remove the session from the browser."""
        _delete(request, response, _SESSION, 0)

    def begin_flow(self, request: Request, response: Response, flow: Flow) -> None:
        """Store a sign-in at an issuer in the browser."""
        self._write(request, response, _FLOW, flow, FLOW_SECONDS)

    def end_flow(self, request: Request, response: Response) -> Flow | None:
        """Return the sign-in that the browser has stored, and remove it."""
        _delete(request, response, _FLOW, 0)
        return self._read(request, _FLOW, Flow)

    def _write(
        self, request: Request, response: Response, cookie: _Cookie, value: Session | Flow, seconds: int
    ) -> None:
        nonce = secrets.token_bytes(_NONCE_BYTES)
        sealed = nonce + self._cipher.encrypt(nonce, msgspec.json.encode(value), cookie.name.encode())
        text = base64.urlsafe_b64encode(sealed).decode()
        pieces = [text[at : at + PIECE_LETTERS] for at in range(0, len(text), PIECE_LETTERS)]
        if len(pieces) > PIECES_MAX:
            msg = f"the token is too long for a session: at most {PIECES_MAX * PIECE_LETTERS * 3 // 4} bytes"
            raise SessionTooLarge(msg)
        for number, piece in enumerate(pieces):
            response.set_cookie(
                _name(request, cookie, number),
                piece,
                max_age=max(0, seconds),
                path="/",
                httponly=True,
                secure=True,
                samesite=cookie.same_site,
            )
        _delete(request, response, cookie, len(pieces))

    def _read(self, request: Request, cookie: _Cookie, kind: type[T]) -> T | None:
        pieces = (request.cookies.get(_name(request, cookie, number), "") for number in range(PIECES_MAX))
        text = "".join(pieces)
        if not text:
            return None
        from cryptography.exceptions import InvalidTag  # noqa: PLC0415 - see `_cipher`

        try:
            sealed = base64.urlsafe_b64decode(text)
            nonce, contents = sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:]
            plain = self._cipher.decrypt(nonce, contents, cookie.name.encode())
            found = msgspec.json.decode(plain, type=kind)
        except (binascii.Error, InvalidTag, ValueError):
            return None
        expires_at: float = found.expires_at  # type: ignore[attr-defined]
        return found if clock.now_ns() / 1e9 < expires_at else None


def _name(request: Request, cookie: _Cookie, number: int) -> str:
    """Return the name of a piece; with https, a prefix prevents other hosts of the domain from setting the cookie."""
    prefix = "__Host-" if request.url.scheme == "https" else ""
    return f"{prefix}{cookie.name}{number or ''}"


def _delete(request: Request, response: Response, cookie: _Cookie, start: int) -> None:
    for number in range(start, PIECES_MAX):
        name = _name(request, cookie, number)
        if name in request.cookies:
            response.delete_cookie(name, path="/", httponly=True, secure=True, samesite=cookie.same_site)
