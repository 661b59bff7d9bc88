"""One request to the API server: its deadline, its retries, its answer as a dict or a typed error.

The rest of the room builds on `Requests.send`. An answer of 429 or 5xx and a lost connection are tried again, for as
long as the deadline allows, after what `Retry-After` says or after a growing pause; a conflict never is: who reads
and decides again is the caller.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import aiohttp

from fairlead_operator.api_server.connection import Connection
from fairlead_operator.clock import Chance
from fairlead_operator.naming import FIELD_MANAGER, Manifest
from fairlead_operator.ports import ApiError, Conflict, Forbidden, Invalid, NotFound, Unavailable
from fairlead_operator.telemetry import Telemetry

CONNECTIONS_MAX: Final = 16
"""Requests at once: workers of the queue and a few beside them."""
DEADLINE_SECONDS: Final = 10.0
LIST_DEADLINE_SECONDS: Final = 60.0
"""Lists of thousands of objects come in parts, each of which may be large."""
PAUSE_SECONDS: Final = 0.2
PAUSE_SECONDS_MAX: Final = 3.0
_TRY_AGAIN: Final = frozenset({429, 500, 502, 503, 504})
_NOT_PROCESSED: Final = 429
_UNAUTHORIZED: Final = 401
_NOT_TYPED: Final = "failed to create typed patch object"
"""What is applied has a field that its kind does not know; the server answers 500, though the trouble is not its."""
_BY_STATUS: Final[Mapping[int, type[ApiError]]] = {
    400: Invalid,
    401: Forbidden,
    403: Forbidden,
    404: NotFound,
    409: Conflict,
    410: Unavailable,
    413: Invalid,
    415: Invalid,
    422: Invalid,
}


@dataclass(frozen=True, slots=True)
class Request:
    """What is asked. `repeatable`: asking twice does the same as asking once."""

    method: str
    path: str
    query: Mapping[str, str]
    body: Any = None
    content_type: str = "application/json"
    accept: str = "application/json"
    repeatable: bool = True
    deadline_seconds: float = DEADLINE_SECONDS


class Requests:
    """The connections to one API server. `chance` gives numbers from 0 to 1."""

    def __init__(
        self, connection: Connection, telemetry: Telemetry, chance: Chance, *, identity: str = ""
    ) -> None:
        self._connection = connection
        self._telemetry = telemetry
        self._log = telemetry.log
        self._chance = chance
        # In the audit log this tells replicas of one operator apart.
        self._agent = "/".join(filter(None, (FIELD_MANAGER, identity)))
        self._session: aiohttp.ClientSession | None = None

    async def send(self, request: Request, *, still_allowed: Callable[[], float] | None = None) -> Manifest:
        """The answer's object.

        `still_allowed` gives the seconds for which the caller may write at all: nothing is sent, and nothing is
        waited for, beyond them. Raises the subclasses of ApiError.
        """
        clock = asyncio.get_running_loop().time
        until = clock() + request.deadline_seconds
        pause = PAUSE_SECONDS
        renewed = False
        while True:
            left = until - clock()
            if still_allowed is not None:
                left = min(left, still_allowed())
            if left <= 0:
                raise Unavailable(0, "Deadline", f"{request.method} {request.path}: no time left to ask")
            # Half of the time for one attempt: a server that accepts and never answers leaves time for another.
            try:
                return await self._attempt(request, min(left, request.deadline_seconds / 2))
            except _Refused as refused:
                error = refused.error
                wait = refused.retry_after_seconds or pause * (0.75 + self._chance() / 2)
                if error.status == _UNAUTHORIZED and not renewed:
                    renewed = True
                    await self._renew()
                    continue
                if not refused.try_again or clock() + wait >= until:
                    raise error from refused.__cause__
            pause = min(pause * 2, PAUSE_SECONDS_MAX)
            await asyncio.sleep(wait)  # noqa: TID251 - the server asked for the pause, or needs one

    async def close(self) -> None:
        """Close the connections."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def _attempt(self, request: Request, seconds: float) -> Manifest:
        headers = {
            "Accept": request.accept,
            "User-Agent": self._agent,
            **await self._connection.authorization(),
        }
        data = None
        if request.body is not None:
            data = json.dumps(request.body, separators=(",", ":")).encode()
            headers["Content-Type"] = request.content_type
        verb = request.method.lower()
        try:
            async with (
                asyncio.timeout(seconds),
                self._open().request(
                    request.method,
                    self._connection.server + request.path,
                    params=request.query,
                    data=data,
                    headers=headers,
                ) as response,
            ):
                body = await response.read()
                self._telemetry.requests_total.labels(verb, str(response.status)).inc()
                if response.ok:
                    return _object(body)
                raise _refused(request, response.status, body, response.headers.get("Retry-After"))
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            self._telemetry.requests_total.labels(verb, "none").inc()
            what = str(error) or f"no answer in {seconds:.1f} s"
            unavailable = Unavailable(0, "NoAnswer", f"{request.method} {request.path}: {what}")
            raise _Refused(unavailable, try_again=request.repeatable) from error

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            connector = aiohttp.TCPConnector(ssl=self._connection.tls, limit=CONNECTIONS_MAX)
            self._session = aiohttp.ClientSession(
                connector=connector, proxy=self._connection.configuration.proxy
            )
        return self._session

    async def _renew(self) -> None:
        """Read credentials again; other requests keep the old connections until they are answered."""
        self._log.info("credentials read again")
        await self._connection.load()
        old, self._session = self._session, None
        if old is not None:
            await old.close()


class _Refused(Exception):
    def __init__(self, error: ApiError, *, try_again: bool, retry_after_seconds: float | None = None) -> None:
        super().__init__(str(error))
        self.error = error
        self.try_again = try_again
        self.retry_after_seconds = retry_after_seconds


def _object(body: bytes) -> Manifest:
    answer = json.loads(body)
    assert isinstance(answer, dict), "the API server answers objects"
    return answer


def _refused(request: Request, status: int, body: bytes, retry_after: str | None) -> _Refused:
    reason, message = "", body[:500].decode(errors="replace")
    with contextlib.suppress(ValueError):
        answer = json.loads(body)
        if isinstance(answer, dict):
            reason, message = str(answer.get("reason", "")), str(answer.get("message", message))
    kind = Invalid if _NOT_TYPED in message else _BY_STATUS.get(status, Unavailable)
    error = kind(status, reason, message or f"{request.method} {request.path}")
    seconds = float(retry_after) if retry_after is not None and retry_after.isdigit() else None
    again = status == _NOT_PROCESSED or (kind is Unavailable and status in _TRY_AGAIN and request.repeatable)
    return _Refused(error, try_again=again, retry_after_seconds=seconds)
