"""The cluster as a caller's identity sees it: the clients with which pages query and change the cluster.

Pages take `Access` as a dependency and never open an Admin client themselves, so that every call has the identity of
the caller. A caller without a session calls the cluster without a token; an open cluster has only such callers. The
console queries the cluster separately for each identity, and stops these queries some minutes after the identity's last
request.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from hashlib import sha256
from types import TracebackType
from typing import Annotated, Final, NotRequired, Self, TypedDict

from fastapi import Depends, Request

from fairlead import Admin, clock
from fairlead_console.identity.sessions import Session
from fairlead_console.identity.signed_in import session_of
from fairlead_console.observation.observer import Observer
from fairlead_console.settings import ConsoleSettings

REQUEST_TIMEOUT: Final = "10s"
RETRY_TIMEOUT: Final = "5s"
"""Request timeout and retry timeout of the console's clients, short because a person waits for the page."""
IDLE_SECONDS: Final = 300.0
"""Time since the last request of an identity after which the console forgets the identity."""
IDENTITIES_MAX: Final = 100
"""Maximum number of identities at a time; the identity with the oldest request is forgotten first."""
ANONYMOUS: Final = ""


class Connection(TypedDict):
    """Arguments with which a page opens a client of the SDK."""

    bootstrap: str
    token: NotRequired[str]


class RecordsHidden(Exception):
    """The console does not show the records of a topic; the message names the topic."""


@dataclass(frozen=True, slots=True)
class ClusterAccess:
    """Access of one identity to the cluster."""

    connection: Connection
    admin: Admin
    observer: Observer


@dataclass(slots=True)
class _Identity:
    access: ClusterAccess
    observing: asyncio.Task[None]
    used_at: float = field(default_factory=clock.monotonic)


class AccessPool:
    """The access of each identity, opened with `async with`."""

    def __init__(self, settings: ConsoleSettings) -> None:
        self._settings = settings
        self._tasks = asyncio.TaskGroup()
        self._identities: dict[str, _Identity] = {}

    async def __aenter__(self) -> Self:
        await self._tasks.__aenter__()
        await self._access(ANONYMOUS, None)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for each in self._identities.values():
            each.observing.cancel()
        await self._tasks.__aexit__(kind, error, trace)

    async def of(self, session: Session | None) -> ClusterAccess:
        """Return the access of the caller's identity."""
        now = clock.monotonic()
        for name, each in list(self._identities.items()):
            if name != ANONYMOUS and now - each.used_at > IDLE_SECONDS:
                self._forget(name)
        if session is None:
            return await self._access(ANONYMOUS, None)
        return await self._access(sha256(session.token.encode()).hexdigest(), session.token)

    def forget(self, session: Session) -> None:
        """End the access of a caller who has signed out."""
        self._forget(sha256(session.token.encode()).hexdigest())

    async def _access(self, name: str, token: str | None) -> ClusterAccess:
        found = self._identities.get(name)
        if found is None:
            others = {key: each.used_at for key, each in self._identities.items() if key != ANONYMOUS}
            if len(others) >= IDENTITIES_MAX:
                self._forget(min(others, key=others.__getitem__))
            found = self._identities[name] = await self._opened(token)
        found.used_at = clock.monotonic()
        return found.access

    async def _opened(self, token: str | None) -> _Identity:
        connection = Connection(bootstrap=self._settings.bootstrap)
        if token is not None:
            connection["token"] = token
        admin = Admin(**connection, request_timeout=REQUEST_TIMEOUT, retry_timeout=RETRY_TIMEOUT)
        await admin.__aenter__()
        observer = Observer(admin)
        observing = self._tasks.create_task(_observe(admin, observer), name="observer")
        return _Identity(ClusterAccess(connection, admin, observer), observing)

    def _forget(self, name: str) -> None:
        found = self._identities.pop(name, None)
        if found is not None:
            found.observing.cancel()


async def _observe(admin: Admin, observer: Observer) -> None:
    """Query the cluster repeatedly until the identity is forgotten, then close its client."""
    try:
        await observer.run()
    finally:
        await admin.__aexit__(None, None, None)


async def access_of(request: Request) -> ClusterAccess:
    """Return the access of the identity that has sent a request."""
    pool: AccessPool = request.app.state.access_pool
    return await pool.of(session_of(request))


Access = Annotated[ClusterAccess, Depends(access_of)]
"""Dependency of every page that queries the cluster."""


def _shown_records(request: Request, name: str) -> None:
    settings: ConsoleSettings = request.app.state.settings
    if settings.hides_records(name):
        message = f"this console does not show the records of {name}; use the command line"
        raise RecordsHidden(message)


ShownRecords = Annotated[None, Depends(_shown_records)]
"""Dependency of every page that shows records of the topic `name`."""
