"""Calls of one link to its source, with one attempt at each broker.

A call that any broker can answer is tried at the addresses in order, starting with the address that answered last. A
fetch goes to the leader that the source's metadata names. Exceptions of the HTTP client do not leave this module.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from http import HTTPStatus
from typing import Final, TypeVar
from urllib.parse import quote, urlencode

import msgspec
import pyreqwest.client
import pyreqwest.exceptions
import pyreqwest.response

from fairlead_api.bodies.frames import Frame, iterate_frames
from fairlead_api.bodies.links import HandOverAnswer, HandOverRequest
from fairlead_api.bodies.media_types import FRAMES, JSON
from fairlead_api.bodies.metadata import Metadata, Page, TopicDescription, Versions
from fairlead_api.bodies.requests import (
    FetchRequest,
    OffsetsLookupAnswer,
    OffsetsLookupRequest,
)
from fairlead_api.problems import ProblemError
from fairlead_broker.peers.http_clients import cancellable, client_builder, problem_in
from fairlead_broker.sources.credentials import SourceCredentials
from fairlead_broker.sources.source_topics import flaw_of

CONNECT_SECONDS_MAX: Final = 3.0
CALL_SECONDS_MAX: Final = 10.0
OTHER_SECONDS: Final = 3.0
"""Number of seconds after which a call leaves a broker that does not answer, while another address is left. A failover
waits five seconds for the source, and must reach the second broker within this time.
"""
ANSWER_MARGIN_SECONDS: Final = 5.0
"""Number of seconds that a fetch may take in addition to the requested wait."""
ANSWER_BYTES_MAX: Final = 64 << 20
"""Maximum size of an answer, above that of every fetch and every page of a list, so that no source fills the memory."""
PART_BYTES: Final = 1 << 18
PAGE_LIMIT: Final = 1000
"""Number of items in one page of a list."""
TOPICS: Final = "/v1/topics"
KEEP_ALIVE: Final = timedelta(seconds=10)
STREAM_WINDOW_BYTES: Final = 64 << 20

T = TypeVar("T")


class SourceUnreachable(Exception):
    """No broker of the source answered, or an answer could not be read."""


@dataclass(frozen=True, slots=True)
class SourceTopics:
    """Topics of a source."""

    items: list[TopicDescription]
    tag: str | None
    """Entity tag of the list; None if the list changed while it was read."""


@dataclass(frozen=True, slots=True)
class _Answer:
    """Answer of a broker of the source, without an error."""

    status: int
    body: memoryview
    tag: str | None


class SourceCluster:
    """Connections of one link to its source. An instance must be created on the event loop that uses it."""

    def __init__(self, bootstrap: Sequence[str], credentials: SourceCredentials) -> None:
        """Open the connections. Raises `SourceUnreachable` for certificates that TLS cannot use."""
        self._bootstrap = list(bootstrap)
        self._token = credentials.token
        self._client: pyreqwest.client.Client = _client(credentials)

    async def versions(self) -> Versions:
        """Return the versions and the id of the source. Raises like `_send`."""
        return await self._json("GET", "/v1/versions", Versions)

    async def metadata(self) -> Metadata:
        """Return the brokers, and the topics that the link may describe. Raises like `_send`."""
        return await self._json("GET", "/v1/metadata", Metadata)

    async def topics(self, seen: str | None = None) -> SourceTopics | None:
        """Return the topics that the link may describe; None if they have not changed since the answer tagged `seen`.

        Raises like `_send`.
        """
        first = await self._first_topics(seen)
        if first.status == HTTPStatus.NOT_MODIFIED:
            return None
        page = _decoded(first.body, Page[TopicDescription], TOPICS)
        if page.next is None:
            return SourceTopics(page.items, first.tag)
        items = page.items + await self.items(TOPICS, Page[TopicDescription], page.next)
        # The pages show one state of the source only if the first page is still the same.
        again = await self._first_topics(first.tag)
        return SourceTopics(items, first.tag if again.status == HTTPStatus.NOT_MODIFIED else None)

    async def _first_topics(self, seen: str | None) -> _Answer:
        headers = {"accept": JSON} if seen is None else {"accept": JSON, "if-none-match": seen}
        path = f"{TOPICS}?limit={PAGE_LIMIT}"
        return await self._anywhere(
            lambda address, seconds: self._send(address, "GET", path, headers, b"", seconds)
        )

    async def topic(self, name: str) -> TopicDescription:
        """Return a topic with its configuration. Raises like `_send`, also for a description that is not sound."""
        topic = await self._json("GET", f"/v1/topics/{quote(name)}", TopicDescription)
        if (flaw := flaw_of(topic)) is not None:
            msg = f"the description of topic {name} is not sound: {flaw}"
            raise SourceUnreachable(msg)
        return topic

    async def offsets(self, request: OffsetsLookupRequest) -> OffsetsLookupAnswer:
        """Return the offsets at positions of partitions. Raises like `_send`."""
        return await self._json("POST", "/v1/offsets:lookup", OffsetsLookupAnswer, request)

    async def hand_over(self, name: str, request: HandOverRequest) -> HandOverAnswer:
        """Make the source refuse records for a topic; return the ends of its partitions. Raises like `_send`."""
        return await self._json("POST", f"/v1/topics/{quote(name)}:hand-over", HandOverAnswer, request)

    async def take_back(self, name: str) -> None:
        """Make the source accept records for a topic again. Raises like `_send`."""
        await self._json("POST", f"/v1/topics/{quote(name)}:take-back", TopicDescription)

    async def get(self, path: str, type_: type[T], query: Mapping[str, str | int] | None = None) -> T:
        """Return the JSON answer to a call that changes nothing. Raises like `_send`."""
        return await self._json("GET", f"{path}?{urlencode(query)}" if query else path, type_)

    async def items(self, path: str, type_: type[Page[T]], after: str | None = None) -> list[T]:
        """Return the items of all pages of a list, or of the pages from a cursor on. Raises like `_send`."""
        items: list[T] = []
        while True:
            query: dict[str, str | int] = {"limit": PAGE_LIMIT}
            if after is not None:
                query["after"] = after
            page = await self.get(path, type_, query)
            items += page.items
            if page.next is None:
                return items
            after = page.next

    async def fetch(self, address: str, request: FetchRequest) -> list[Frame]:
        """Fetch from a broker of the source; return one frame for each partition, or no frame. Raises like `_send`."""
        seconds = request.max_wait_ms / 1000 + ANSWER_MARGIN_SECONDS
        headers = {"content-type": JSON, "accept": FRAMES}
        answer = await self._send(
            address, "POST", "/v1/fetch", headers, msgspec.json.encode(request), seconds
        )
        try:
            return list(iterate_frames(answer.body)) if answer.body else []
        except ProblemError as problem:
            msg = f"{address} sent an answer that cannot be read: {problem.detail}"
            raise SourceUnreachable(msg) from problem

    async def close(self) -> None:
        """Close the connections, which makes calls in progress fail."""
        await self._client.close()

    async def _json(self, method: str, path: str, type_: type[T], request: object = None) -> T:
        body = b"" if request is None else msgspec.json.encode(request)
        headers = {"accept": JSON} if request is None else {"accept": JSON, "content-type": JSON}
        answer = await self._anywhere(
            lambda address, seconds: self._send(address, method, path, headers, body, seconds)
        )
        return _decoded(answer.body, type_, path)

    async def _anywhere(self, send: Callable[[str, float], Awaitable[_Answer]]) -> _Answer:
        failure: SourceUnreachable | None = None
        addresses = tuple(self._bootstrap)
        for address in addresses:
            try:
                answer = await send(address, CALL_SECONDS_MAX if address == addresses[-1] else OTHER_SECONDS)
            except SourceUnreachable as error:
                failure = error
                # The next call begins with another address.
                self._bootstrap.remove(address)
                self._bootstrap.append(address)
            else:
                return answer
        assert failure is not None, "a link has at least one address"
        raise failure

    async def _send(
        self,
        address: str,
        method: str,
        path: str,
        headers: Mapping[str, str],
        body: bytes,
        seconds: float,
    ) -> _Answer:
        """Return an answer. Raises `ProblemError` for a refusal by the source, and `SourceUnreachable`."""
        builder = self._client.request(method, address.rstrip("/") + path)
        builder = builder.timeout(timedelta(seconds=seconds)).headers(headers)
        if self._token is not None:
            builder = builder.header("authorization", f"Bearer {self._token}")
        if body:
            builder = builder.body_bytes(body)
        try:
            with cancellable():
                async with builder.build_streamed() as response:
                    received = await _received(address, response)
        except pyreqwest.exceptions.PyreqwestError as error:
            msg = f"{address} does not answer: {type(error).__name__}: {error}"
            raise SourceUnreachable(msg) from error
        if response.status >= HTTPStatus.BAD_REQUEST:
            raise problem_in("the source", response.status, received)
        return _Answer(response.status, received, response.get_header("etag"))


async def _received(address: str, response: pyreqwest.response.Response) -> memoryview:
    """Return the body of an answer. Raises `SourceUnreachable` for a body that is too large, before it is received."""
    length = response.get_header("content-length")
    if length is not None and length.isdecimal() and int(length) <= ANSWER_BYTES_MAX:
        # HTTP/2 ends a stream that has more bytes than this.
        return memoryview(await response.bytes())
    parts, size = [], 0
    while (part := await response.body_reader.read(PART_BYTES)) is not None:
        size += len(part)
        if size > ANSWER_BYTES_MAX:
            msg = f"{address} sent an answer of more than {ANSWER_BYTES_MAX} bytes"
            raise SourceUnreachable(msg)
        parts.append(bytes(part))
    return memoryview(b"".join(parts))


def _decoded(body: memoryview, type_: type[T], path: str) -> T:
    try:
        return msgspec.json.decode(body, type=type_)
    except msgspec.MsgspecError as error:
        msg = f"the answer to {path} cannot be read: {error}"
        raise SourceUnreachable(msg) from error


def _client(credentials: SourceCredentials) -> pyreqwest.client.Client:
    builder = client_builder(
        "fairlead-link",
        connect_seconds_max=CONNECT_SECONDS_MAX,
        keep_alive=KEEP_ALIVE,
        stream_window_bytes=STREAM_WINDOW_BYTES,
    )
    try:
        if credentials.ca_pem is not None:
            builder = builder.add_root_certificate_pem(credentials.ca_pem)
        if credentials.identity_pem is not None:
            builder = builder.identity_pem(credentials.identity_pem)
        return builder.build()
    except (ValueError, pyreqwest.exceptions.BuilderError) as error:
        msg = f"the certificates of the link cannot be used: {error}"
        raise SourceUnreachable(msg) from error
