"""The cluster as the identity of a caller sees it: the clients with which pages ask and change.

An open cluster has one identity for all callers. Pages take `Access` as a dependency and never open an Admin client
themselves, so that every call has the identity of the caller.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from dataclasses import dataclass
from types import TracebackType
from typing import Annotated, Final, Self, TypedDict

from fastapi import Depends, Request

from fairlead import Admin
from fairlead_console.observation.observer import Observer
from fairlead_console.settings import ConsoleSettings

REQUEST_TIMEOUT: Final = "10s"
RETRY_TIMEOUT: Final = "5s"
"""Timeouts are short, because a person waits for the page."""


class Connection(TypedDict):
    """Arguments with which a page opens a client of the SDK."""

    bootstrap: str


@dataclass(frozen=True, slots=True)
class ClusterAccess:
    """Access of one identity to the cluster."""

    connection: Connection
    admin: Admin
    observer: Observer


class AccessPool:
    """The accesses of all identities, opened with `async with`."""

    def __init__(self, settings: ConsoleSettings) -> None:
        self._settings = settings
        self._stack = AsyncExitStack()
        self._open: ClusterAccess | None = None

    async def __aenter__(self) -> Self:
        connection = Connection(bootstrap=self._settings.bootstrap)
        admin = Admin(**connection, request_timeout=REQUEST_TIMEOUT, retry_timeout=RETRY_TIMEOUT)
        await self._stack.enter_async_context(admin)
        tasks = await self._stack.enter_async_context(asyncio.TaskGroup())
        self._open = ClusterAccess(connection, admin, Observer(admin))
        observing = tasks.create_task(self._open.observer.run(), name="observer")
        self._stack.callback(observing.cancel)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.aclose()

    def of(self, request: Request) -> ClusterAccess:
        """Return the access of the caller's identity."""
        del request  # an open cluster has one identity
        assert self._open is not None, "requests arrive after the pool was opened"
        return self._open


def _access(request: Request) -> ClusterAccess:
    pool: AccessPool = request.app.state.access_pool
    return pool.of(request)


Access = Annotated[ClusterAccess, Depends(_access)]
"""Dependency of every page that asks the cluster."""
