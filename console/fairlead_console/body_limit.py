"""Limit on the size of the requests that the console reads: the file of a form, and the other fields of the form."""

from __future__ import annotations

from typing import Final

from starlette.exceptions import HTTPException
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

BODY_MIB_MAX: Final = 64
BODY_BYTES_MAX: Final = BODY_MIB_MAX * 1024 * 1024
REFUSAL: Final = (
    f"The form is larger than {BODY_MIB_MAX} MiB; write larger files with fairlead produce --file"
)


class BodyLimit:
    """ASGI middleware that refuses a body if its declared length is too large, or once it has become too large."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, and count the bytes of its body."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        declared = next((value for name, value in scope["headers"] if name == b"content-length"), b"0")
        if declared.isdigit() and int(declared) > BODY_BYTES_MAX:
            await PlainTextResponse(REFUSAL, 413)(scope, receive, send)
            return
        nbytes = 0

        async def receive_counted() -> Message:
            nonlocal nbytes
            message = await receive()
            nbytes += len(message.get("body", b""))
            if nbytes > BODY_BYTES_MAX:
                raise HTTPException(413, REFUSAL)
            return message

        await self._app(scope, receive_counted, send)
