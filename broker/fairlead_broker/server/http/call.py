"""One request and its answer, as endpoints see them, and the media types of both bodies.

Callers: ``application`` makes one ``Call`` for each request and hands it to the endpoint of its route. A call reads
headers and body only when asked, since the hot calls need few of them. It remembers what was sent, for metrics and for
the decision whether a refusal can still be sent. ``body_type`` and ``answer_type`` negotiate the media types
(Content-Type, Accept).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Final, TypeAlias

import msgspec

from fairlead_api.batch.header import Buffer
from fairlead_api.bodies.media_types import (
    CLOUD_EVENT,
    CLOUD_EVENTS,
    FORWARD_NEVER,
    FRAMES_ESSENCE,
    FRAMES_VERSION,
    JSON,
    Header,
    essence,
)
from fairlead_api.excerpts import shown
from fairlead_api.identifiers import PARTITION_MAX, LeaderEpoch, PartitionIndex, TopicId, check_topic_id
from fairlead_api.problems import ProblemError
from fairlead_api.routes import Route
from fairlead_api.routes.query_parameters import QueryValues
from fairlead_broker.peers.messages import PeerIncarnation
from fairlead_broker.runtime.engine.budget import HeldAnswer
from fairlead_broker.server.http.asgi import HeaderList, Receive, Scope, Send
from fairlead_broker.server.http.body import BodyBudget, BodyReader
from fairlead_broker.server.http.route_table import ParsedQueries

# granian queues four sends and holds a fifth, whole and uncounted, for a reader that takes nothing. Measured: pieces of
# 256 KiB are as quick as pieces of a MiB, and such a reader holds 1.9 MiB rather than 6.5.
PART_BYTES_MAX: Final = 256 << 10
# The end of a longer answer goes in small pieces: when the last send returns, all but those are with the connection,
# so that the answer is counted until its reader has nearly all of it. Empty sends would tell the same, but clients
# take them for an attack (h2: too_many_data_frames).
TAIL_PARTS: Final = 4
TAIL_PART_BYTES: Final = 16 << 10
JSON_CONTENT_TYPE: Final = (b"content-type", JSON.encode())
TOPIC_ID_HEADER: Final = b"fairlead-topic-id"
LEADER_EPOCH_HEADER: Final = b"fairlead-leader-epoch"
# No Content-Length may stand in these (RFC 9110, 8.6).
BODILESS_STATUSES: Final = frozenset({204, 304})
EPOCH_MAX: Final = 2**31 - 1
READING_METHODS: Final = frozenset({"GET", "HEAD"})
"""Methods of calls that change nothing."""
STALL_SECONDS_MAX: Final = 60.0


class ReaderStalled(Exception):
    """The client takes nothing of its answer: it is given up, and its connection with it."""


class Call:
    """A request on ``route`` with its decoded path ``parameters``."""

    __slots__ = (
        "_headers", "_query", "_send", "_stall_seconds_max", "body_reader", "bytes_sent", "held", "parameters",
        "peer", "problem_code", "receive", "route", "scope", "stamp", "status",
    )  # fmt: skip

    def __init__(
        self,
        scope: Scope,
        receive: Receive,
        send: Send,
        budget: BodyBudget,
        stall_seconds_max: float = STALL_SECONDS_MAX,
    ) -> None:
        self.scope = scope
        self.receive = receive
        self._send = send
        self._stall_seconds_max = stall_seconds_max
        self.held: HeldAnswer | None = None
        """What counts the bytes of a fetch answer."""
        self.body_reader = BodyReader(receive, budget)
        self.parameters: dict[str, str] = {}
        self.route: Route | None = None
        self.status = 0
        """Status of the answer, 0 until it begins."""
        self.bytes_sent = 0
        self.peer: PeerIncarnation | None = None
        """The broker that calls, on the peer listener."""
        self.stamp: Callable[[], HeaderList] | None = None
        """Headers that every answer carries."""
        self.problem_code: str | None = None
        """Code of the refusal that was answered."""
        self._headers: dict[bytes, bytes] | None = None
        self._query: QueryValues | None = None

    @property
    def matched_route(self) -> Route:
        """The route, which every endpoint may rely on."""
        assert self.route is not None, "an endpoint runs only after its route is found"
        return self.route

    @property
    def http1(self) -> bool:
        """Whether the request came over HTTP/1.x, one at a time on its connection."""
        version: str = self.scope["http_version"]
        return version.startswith("1")

    @property
    def raw_path(self) -> str:
        """Path of the request as it was sent, percent-encoded."""
        path: bytes = self.scope["raw_path"]
        return path.decode("latin-1")

    @property
    def headers(self) -> Mapping[bytes, bytes]:
        """Headers by lower-case name; of a repeated one the last."""
        if self._headers is None:
            self._headers = dict(self.scope["headers"])
        return self._headers

    @property
    def query(self) -> QueryValues:
        """The query, every name and value checked against the route."""
        assert self._query is not None, "the query is checked before the endpoint runs"
        return self._query

    @property
    def topic(self) -> str:
        """Name of the topic in the path; checked against the name rule before the endpoint runs."""
        return self.parameters["topic"]

    @property
    def partition(self) -> PartitionIndex:
        """Index of the partition in the path. Raises ProblemError malformed_request."""
        text = self.parameters["partition"]
        if not text.isascii() or not text.isdigit() or len(text) > 10 or int(text) > PARTITION_MAX:
            raise ProblemError(
                "malformed_request",
                f"partition {shown(text)} is not a number from 0 to {PARTITION_MAX}",
                data={"parameter": "partition", "value": text[:80], "allowed": f"0 to {PARTITION_MAX}"},
            )
        return PartitionIndex(int(text))

    @property
    def topic_id(self) -> TopicId | None:
        """The topic id that the caller expects behind the name (header Fairlead-Topic-Id), if given."""
        given = self.headers.get(TOPIC_ID_HEADER)
        return None if given is None else check_topic_id(given.decode("latin-1"))

    @property
    def leader_epoch(self) -> LeaderEpoch | None:
        """The highest leader epoch that the caller has seen (header Fairlead-Leader-Epoch), if given."""
        given = self.headers.get(LEADER_EPOCH_HEADER)
        if given is None:
            return None
        if not given.isdigit() or len(given) > 10 or int(given) > EPOCH_MAX:
            raise ProblemError(
                "malformed_request",
                f"header Fairlead-Leader-Epoch {shown(given.decode('latin-1'))} is not a number from 0 to {EPOCH_MAX}",
                data={"parameter": "Fairlead-Leader-Epoch"},
            )
        return LeaderEpoch(int(given))

    def check_query(self, queries: ParsedQueries) -> None:
        """Parse the query by the route. Raises ProblemError for unknown, repeated and wrong parameters."""
        self._query = queries.of(self.matched_route, self.scope["query_string"])

    @property
    def may_forward(self) -> bool:
        """Whether the call may be forwarded: not from a peer, and not if its caller forbids it."""
        return self.peer is None and self.header_text(_FORWARD).strip().lower() != FORWARD_NEVER

    def header_text(self, name: bytes) -> str:
        """Value of a header, empty when it is not there."""
        return self.headers.get(name, b"").decode("latin-1")

    def refuse_coded_body(self) -> None:
        """Raise unsupported_media_type for a body that its sender has packed: nothing here unpacks one."""
        coding = self.headers.get(b"content-encoding", b"identity")
        if coding.lower() != b"identity":
            raise ProblemError(
                "unsupported_media_type",
                f"content-encoding {shown(coding.decode('latin-1'))} is not supported; send the body as it is and"
                " compress inside the batch",
                data={"supported": ["identity"]},
            )

    async def body(self, bytes_max: int) -> bytes:
        """The whole body; see ``BodyReader.read``. Raises unsupported_media_type for a coded body."""
        self.refuse_coded_body()
        return await self.body_reader.read(self._announced_bytes(), bytes_max, ends_at_length=self.http1)

    async def answer(self, status: int, headers: HeaderList, body: Buffer = b"") -> None:
        """Send a whole answer of at most a few MiB."""
        if status not in BODILESS_STATUSES:
            headers.append((b"content-length", b"%d" % len(body)))
        await self._start(status, headers)
        if self.scope["method"] == "HEAD":
            body = b""
        self.bytes_sent = len(body)
        await self._send({"type": "http.response.body", "body": body})

    async def answer_head(self, status: int, headers: HeaderList, length: int) -> None:
        """Send an answer without its body, which is so long."""
        await self._start(status, [*headers, (b"content-length", b"%d" % length)])
        await self._send({"type": "http.response.body", "body": b""})

    async def answer_json(self, value: object, status: int = 200, headers: HeaderList | None = None) -> None:
        """Send a value that msgspec can encode."""
        await self.answer(status, [JSON_CONTENT_TYPE, *(headers or ())], msgspec.json.encode(value))

    async def answer_parts(self, status: int, headers: HeaderList, parts: Sequence[Buffer]) -> None:
        """Send buffers one after the other in pieces of at most PART_BYTES_MAX.

        The pieces are `bytes`: granian walks any other buffer item by item, which makes a fetch three times slower.
        """
        total = sum(map(len, parts))
        headers.append((b"content-length", b"%d" % total))
        await self._start(status, headers)
        if not total or self.scope["method"] == "HEAD":
            await self._send({"type": "http.response.body", "body": b""})
            return
        if total <= PART_BYTES_MAX:
            self.bytes_sent = total
            await self._send({"type": "http.response.body", "body": b"".join(parts)})
        else:
            await self._send_pieces(parts, total)

    async def start_stream(self, headers: HeaderList) -> None:
        """Begin an answer of unknown length."""
        await self._start(200, headers)

    async def send_piece(self, piece: bytes, *, more: bool = True) -> None:
        """Send a piece of a stream; `more`: it is not the last. Raises ReaderStalled when it is not taken in time."""
        held = self.held
        try:
            async with asyncio.timeout(self._stall_seconds_max) as stall:
                if held is not None:
                    held.sending(partial(_end, stall))
                await self._send({"type": "http.response.body", "body": piece, "more_body": more})
        except TimeoutError as error:
            raise ReaderStalled from error
        finally:
            if held is not None:
                held.sent()
        self.bytes_sent += len(piece)

    async def _send_pieces(self, parts: Sequence[Buffer], total: int) -> None:
        """Send piece by piece. Raises ReaderStalled when one is not taken in time."""
        now = asyncio.get_running_loop().time
        held = self.held
        try:
            async with asyncio.timeout(self._stall_seconds_max) as stall:
                if held is not None:
                    held.sending(partial(_end, stall))
                for piece in pieces_of(parts):
                    self.bytes_sent += len(piece)
                    more = self.bytes_sent < total
                    await self._send({"type": "http.response.body", "body": piece, "more_body": more})
                    stall.reschedule(now() + self._stall_seconds_max)
                    if held is not None:
                        held.moved()
        except TimeoutError as error:
            raise ReaderStalled from error

    async def _start(self, status: int, headers: HeaderList) -> None:
        assert self.status == 0, f"a second answer ({status}) for one request"
        self.status = status
        if self.stamp is not None:
            headers = [*headers, *self.stamp()]
        await self._send({"type": "http.response.start", "status": status, "headers": headers})

    def _announced_bytes(self) -> int | None:
        given = self.headers.get(b"content-length")
        # The server in front of us refuses a content-length that is no number; this only guards the conversion.
        return int(given) if given is not None and given.isdigit() and len(given) < 20 else None


def _end(stall: asyncio.Timeout) -> None:
    """End a wait now, unless its time is over anyway."""
    if not stall.expired():
        stall.reschedule(asyncio.get_running_loop().time())


def pieces_of(parts: Sequence[Buffer]) -> Iterator[bytes]:
    """The bytes of all parts in pieces of PART_BYTES_MAX, a rest, and the tail; each byte is copied once.

    Small parts share a piece, since each piece costs a turn of the loop. The pieces are ``bytes``: granian copies
    those at once and walks any other buffer item by item (measured: 40 % of a core at 90 MB/s).
    """
    left = sum(map(len, parts))
    gathered: list[memoryview] = []
    size = room = _piece_bytes(left)
    for part in parts:
        view = memoryview(part).cast("B")  # Arrow calls its bytes signed
        while len(view) >= room > 0:
            yield b"".join((*gathered, view[:room]))
            view = view[room:]
            left -= size
            gathered, size = [], _piece_bytes(left)
            room = size
        if view:
            gathered.append(view)
            room -= len(view)


def _piece_bytes(left: int) -> int:
    """How long the next piece is when so many bytes are left."""
    tail = TAIL_PARTS * TAIL_PART_BYTES
    return min(PART_BYTES_MAX, left - tail) if left > tail else min(TAIL_PART_BYTES, left)


Endpoint: TypeAlias = Callable[[Call], Awaitable[None]]
"""Function that answers the calls of one route."""


ACCEPT_LENGTH_MAX = 1000
BINARY_EVENT = "a CloudEvent in binary mode"
"""In place of a media type: the body may have any."""
_FORWARD: Final = Header.FORWARD.lower().encode()
EVENT_VERSION = b"ce-specversion"
STRUCTURED_EVENTS = (CLOUD_EVENT, CLOUD_EVENTS)


def body_type(call: Call) -> str:
    """The media type of the body, one of the route's; JSON where none is said and JSON is supported.

    Raises ProblemError unsupported_media_type listing the supported ones, unsupported_version for other frames.
    """
    supported = call.matched_route.body_types
    given = call.header_text(b"content-type")
    if given in supported:
        return given
    if not given and JSON in supported:
        return JSON
    wanted = essence(given)
    for media_type in supported:
        if essence(media_type) == wanted:
            if wanted == FRAMES_ESSENCE:
                _check_frames_version(given)
            return media_type
    raise ProblemError(
        "unsupported_media_type",
        f"a body of type {shown(given) if given else 'none'} is not understood here; supported:"
        f" {', '.join(supported)}",
        data={"supported": list(supported)},
    )


def record_body_type(call: Call) -> str:
    """As ``body_type``, for calls that take records; BINARY_EVENT where the headers make the body an event's data."""
    if EVENT_VERSION in call.headers and essence(call.header_text(b"content-type")) not in STRUCTURED_EVENTS:
        return BINARY_EVENT
    return body_type(call)


def answer_type(call: Call) -> str:
    """The media type of the route's that the caller likes most, the first one where it does not care.

    A call that answers in JSON alone never asks, so that no write is refused for the form of its receipt.

    Raises ProblemError not_acceptable listing the supported ones.
    """
    supported = call.matched_route.answer_types
    accept = call.header_text(b"accept")
    if not accept or accept == "*/*":
        return supported[0]
    if accept in supported:
        return accept
    # A list may come in several headers of the name (RFC 9110, 5.3).
    accept = ",".join(value.decode("latin-1") for name, value in call.scope["headers"] if name == b"accept")
    best, best_weight = "", 0.0
    ranges = [_media_range(part) for part in accept[:ACCEPT_LENGTH_MAX].split(",")]
    for media_type in supported:
        weight = _weight(essence(media_type), ranges)
        if weight > best_weight:
            best, best_weight = media_type, weight
    if best:
        return best
    raise ProblemError(
        "not_acceptable",
        f"accept {shown(accept)} names nothing that this call answers; supported: {', '.join(supported)}",
        data={"supported": list(supported)},
    )


def _media_range(part: str) -> tuple[str, float]:
    name, *parameters = part.split(";")
    weight = 1.0
    for parameter in parameters:
        key, _, value = parameter.partition("=")
        if key.strip().lower() == "q":
            try:
                weight = min(max(float(value), 0.0), 1.0)
            except ValueError:
                weight = 0.0
    return name.strip().lower(), weight


def _weight(media_type: str, ranges: Sequence[tuple[str, float]]) -> float:
    """The weight of the most specific range that covers the type (RFC 9110, 12.5.1)."""
    main = media_type.partition("/")[0]
    for covering in (media_type, f"{main}/*", "*/*"):
        weights = [weight for name, weight in ranges if name == covering]
        if weights:
            return max(weights)
    return 0.0


def _check_frames_version(given: str) -> None:
    for parameter in given.split(";")[1:]:
        key, _, value = parameter.partition("=")
        if key.strip().lower() == "v" and value.strip().strip('"') != str(FRAMES_VERSION):
            raise ProblemError(
                "unsupported_version",
                f"frames of version {shown(value)} are not understood; supported: {FRAMES_VERSION}",
                data={"value": value[:80], "supported": [FRAMES_VERSION]},
            )


# The longest honest one sets every configuration key of a topic: some KiB.
ADMIN_BYTES_MAX = 1 << 20


async def json_body(call: Call) -> bytes:
    """The body. Raises unsupported_media_type for anything that does not claim to be JSON, body_too_large."""
    body_type(call)
    return await call.body(ADMIN_BYTES_MAX)
