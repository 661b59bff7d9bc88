"""``GET /openapi.json``: the contract as a machine reads it.

Callers: ``application`` for the route named in ``endpoints``. Made from the route table and not by FastAPI, which
does not know the hot calls.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from fastapi import Response

from fairlead_api.bodies.media_types import JSON
from fairlead_api.routes.openapi import document
from fairlead_broker.server.http.responses import AdminEndpoint, CurrentCall


class OpenApiCalls:
    """The OpenAPI document of this release, made once."""

    def __init__(self, release: str) -> None:
        self._release = release
        self._body: bytes | None = None

    def endpoints(self) -> Mapping[str, AdminEndpoint]:
        """The endpoint of each route of this family, by route name."""
        return {"openapi": self.openapi}

    async def openapi(self, call: CurrentCall) -> Response:
        """``GET /openapi.json``."""
        del call
        if self._body is None:
            self._body = msgspec.json.encode(document(self._release))
        return Response(self._body, media_type=JSON)
