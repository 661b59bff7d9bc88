"""Calls that any broker takes: one request, one JSON answer, tried again by the kind of its problem.

The base of `Admin`, which says what the calls are. Must not know any single one.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping
from types import TracebackType
from typing import Self, TypeVar

import msgspec

from fairlead.connection.transport import NO_BROKER, Answer, Query, Transport, json_call
from fairlead.errors import ClusterError, error_of
from fairlead.settings import DEFAULT_BOOTSTRAP, Duration, connection_of
from fairlead_api.bodies.metadata import Page
from fairlead_api.problems import ProblemError

T = TypeVar("T")


class SimpleCalls:
    """A client of such calls. Open it with `async with`."""

    def __init__(
        self,
        bootstrap: str | Iterable[str] = DEFAULT_BOOTSTRAP,
        *,
        request_timeout: Duration = "30s",
        connect_timeout: Duration = "5s",
        retry_timeout: Duration = "30s",
    ) -> None:
        self._transport = Transport(
            connection_of(bootstrap, connect=connect_timeout, request=request_timeout, retry=retry_timeout),
            "admin",
        )

    async def __aenter__(self) -> Self:
        await self._transport.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._transport.close()

    async def _delete(
        self,
        path: str,
        subject: str,
        absent: type[ClusterError],
        *,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        call = json_call("DELETE", path, subject, headers=headers)
        attempts = 0

        async def delete() -> None:
            """Make one attempt."""
            nonlocal attempts
            attempts += 1
            try:
                await self._transport.send_to_any(call)
            except absent:
                # An earlier attempt without an answer has deleted it.
                if attempts == 1:
                    raise

        await self._transport.retry(delete)

    async def _call(
        self,
        method: str,
        path: str,
        subject: str,
        type_: type[T],
        *,
        body: object = None,
        query: Query | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> T:
        answer = await self._transport.call(json_call(method, path, subject, body, query, headers))
        return decoded(answer, type_, subject)

    async def _pages(self, path: str, subject: str, type_: type[Page[T]]) -> AsyncIterator[T]:
        query: dict[str, str | int] = {}
        while True:
            page = await self._call("GET", path, subject, type_, query=query)
            for item in page.items:
                yield item
            if page.next is None:
                return
            query["after"] = page.next


def decoded(answer: Answer, type_: type[T], subject: str) -> T:
    """Return an answer's document; one that cannot be read is the server's fault, or none of a broker."""
    try:
        return msgspec.json.decode(answer.body, type=type_)
    except msgspec.MsgspecError as error:
        problem = ProblemError("internal", f"the answer cannot be read: {error}")
        advice = None if isinstance(error, msgspec.ValidationError) else NO_BROKER
        raise error_of(problem, subject=subject, broker=answer.broker, advice=advice) from error
