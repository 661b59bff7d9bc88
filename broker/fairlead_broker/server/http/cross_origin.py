"""Cross-origin requests (CORS): the allowed origins, and the headers for browsers.

Callers: ``listeners``, which wraps the application of the data listener if any origins are allowed. If no origins are
allowed, no CORS header is sent, and browsers block pages of other origins. This module must not depend on any
particular call. The module grants no access rights: these never depend on an origin.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from fairlead_api.bodies.media_types import Header
from fairlead_broker.server.http.asgi import AsgiApplication, HeaderList, Message, Receive, Scope, Send

ANY_ORIGIN: Final = "*"
PREFLIGHT_SECONDS: Final = b"7200"
"""Number of seconds for which a browser may cache the answer to a preflight request; Chrome caches an answer for at
most two hours."""
METHODS: Final = b"GET, POST, PUT, PATCH, DELETE"
_ORIGIN: Final = b"origin"
_ASKS_FOR: Final = b"access-control-request-headers"
_EXPOSED: Final = ", ".join(
    value for name, value in vars(Header).items() if name.isupper() and value.startswith("Fairlead-")
).encode()


class CrossOrigin:
    """ASGI middleware that answers preflight requests and adds CORS headers to an application's answers."""

    def __init__(self, application: AsgiApplication, origins: Iterable[str]) -> None:
        """`origins`: origins in the form that browsers send (`https://shop.example`), or `*` for all."""
        self._application = application
        allowed = frozenset(origins)
        self._any = ANY_ORIGIN in allowed
        self._allowed = frozenset(origin.encode() for origin in allowed)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        headers = dict(scope["headers"])
        origin = headers.get(_ORIGIN)
        if origin is None:
            await self._application(scope, receive, send)
            return
        allowing = self._allowing_headers(origin)
        if scope["method"] == "OPTIONS" and b"access-control-request-method" in headers:
            await _answer_preflight(allowing, headers.get(_ASKS_FOR, b""), send)
            return

        async def send_with_origin(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], *allowing]
            await send(message)

        await self._application(scope, receive, send_with_origin)

    def _allowing_headers(self, origin: bytes) -> HeaderList:
        # With `vary: origin`, a cache does not return the answer for one origin to another origin.
        allowing: HeaderList = [] if self._any else [(b"vary", b"origin")]
        if self._any or origin in self._allowed:
            allowing.append((b"access-control-allow-origin", b"*" if self._any else origin))
            allowing.append((b"access-control-expose-headers", _EXPOSED + b", Retry-After, ETag, Location"))
        return allowing


async def _answer_preflight(allowing: HeaderList, asked_headers: bytes, send: Send) -> None:
    headers = [
        *allowing,
        (b"access-control-allow-methods", METHODS),
        # An allowed origin may send any header, because headers grant no access rights.
        (b"access-control-allow-headers", asked_headers),
        (b"access-control-max-age", PREFLIGHT_SECONDS),
        (b"vary", _ASKS_FOR),
    ]
    await send({"type": "http.response.start", "status": 204, "headers": headers})
    await send({"type": "http.response.body", "body": b""})
