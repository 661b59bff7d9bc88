"""Answers of admin calls as FastAPI wants them.

Callers: the families of admin calls. Hot calls answer through ``Call`` itself.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Annotated, TypeAlias

import msgspec
from fastapi import Depends, Request, Response

from fairlead_api.bodies.media_types import JSON
from fairlead_broker.server.http.call import Call

CALL_IN_SCOPE = "fairlead.call"


async def current_call(request: Request) -> Call:
    """The call that ``application`` made for this request. A coroutine: FastAPI calls all others in a thread."""
    call: Call = request.scope[CALL_IN_SCOPE]
    return call


CurrentCall = Annotated[Call, Depends(current_call)]
AdminEndpoint: TypeAlias = Callable[[Call], Awaitable[Response]]


def json_response(value: object, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """A value that msgspec can encode."""
    return Response(msgspec.json.encode(value), status, dict(headers or {}), JSON)
