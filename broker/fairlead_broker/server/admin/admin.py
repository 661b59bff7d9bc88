"""Admin calls as a FastAPI application.

Callers: ``listeners`` builds it, ``application`` hands it the requests of its routes. FastAPI's own refusals never
reach a client: route, name and query are settled before, and what an endpoint raises passes through to the one
handler of problems.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from fastapi import FastAPI

from fairlead_api.routes import Route
from fairlead_broker.server.http.asgi import HeaderList, Message
from fairlead_broker.server.http.call import Call, Endpoint
from fairlead_broker.server.http.responses import CALL_IN_SCOPE, AdminEndpoint
from fairlead_broker.server.http.route_table import not_found

_CONTENT_LENGTH: Final = b"content-length"


def admin_endpoints(
    routes: Mapping[str, Route], endpoints: Mapping[str, AdminEndpoint]
) -> dict[str, Endpoint]:
    """Every admin endpoint behind one FastAPI application, as endpoints of the data listener's application."""
    application = FastAPI(openapi_url=None, docs_url=None, redoc_url=None, redirect_slashes=False)
    for name, endpoint in endpoints.items():
        route = routes[name]
        application.add_api_route(route.path, endpoint, methods=[route.method], name=name)

    async def answer(call: Call) -> None:
        if not all(call.parameters.values()):
            # FastAPI knows no empty segments and would answer in its own words.
            raise not_found(call.scope["raw_path"].decode("latin-1"))
        scope = {
            **call.scope,
            # FastAPI must match segments as they were split, not what they decode to.
            "path": call.scope["raw_path"].decode("latin-1"),
            "method": "GET" if call.scope["method"] == "HEAD" else call.scope["method"],
            CALL_IN_SCOPE: call,
        }
        collected = _CollectedAnswer()
        # When an endpoint raises, FastAPI collects a 500 of its own here and raises on: only the latter counts.
        await application(scope, call.receive, collected.send)
        await call.answer(collected.status, collected.headers, b"".join(collected.parts))

    return dict.fromkeys(endpoints, answer)


class _CollectedAnswer:
    """What an ASGI application sends, kept until it is known that it is the answer."""

    def __init__(self) -> None:
        self.status = 0
        self.headers: HeaderList = []
        self.parts: list[bytes] = []

    async def send(self, message: Message) -> None:
        """Take one ASGI message."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.headers = [pair for pair in message["headers"] if pair[0] != _CONTENT_LENGTH]
        else:
            self.parts.append(message.get("body", b""))
