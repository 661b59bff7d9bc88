"""A request and its answer as endpoints see them, and the media types of their bodies.

Callers: ``application`` creates one ``Call`` for each request and passes the call to the endpoint of its route. A call
parses headers and reads the body only on demand, because frequent calls need few headers. A call records which answer
was sent, for metrics and for the decision whether a refusal can still be sent. The code is in one file because
endpoints need a request, its caller, its body and its answer together. ``body_type`` and ``answer_type``
negotiate the media types (Content-Type, Accept).
"""

from __future__ import annotations

import asyncio
import math
import re
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, TypeAlias
from urllib.parse import unquote

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
from fairlead_api.routes.definitions import Traffic
from fairlead_broker.access.caller import Caller
from fairlead_broker.access.caller_access import OPEN_ACCESS, CallerAccess
from fairlead_broker.peers import identity
from fairlead_broker.peers.messages import PeerIncarnation
from fairlead_broker.registry.caller_side import CallerSide
from fairlead_broker.runtime.engine.budget import HeldAnswer
from fairlead_broker.runtime.engine.time_limits import end_now
from fairlead_broker.runtime.quota_view import CallerQuota
from fairlead_broker.server.http.asgi import HeaderList, Receive, Scope, Send
from fairlead_broker.server.http.body import UNKNOWN, BodyBudget, BodyReader
from fairlead_broker.server.http.request_target import ParsedQueries, QueryValues

# If a client reads nothing, granian queues four sends and keeps a fifth in full, regardless of their size. Measured:
# pieces of 256 KiB are as fast as pieces of 1 MiB, and a stalled client occupies 1.9 MiB instead of 6.5 MiB.
PART_BYTES_MAX: Final = 256 << 10
# The end of a long answer is sent in small pieces. When the last send returns, only these small pieces are still
# queued, so the bytes of the answer are counted until the client has received nearly all of them. Empty sends would
# have the same effect, but clients treat empty frames as an attack (h2: too_many_data_frames).
TAIL_PARTS: Final = 4
TAIL_PART_BYTES: Final = 16 << 10
THROTTLE_MS: Final = Header.THROTTLE_MS.lower().encode()
JSON_CONTENT_TYPE: Final = (b"content-type", JSON.encode())
TOPIC_ID_HEADER: Final = b"fairlead-topic-id"
LEADER_EPOCH_HEADER: Final = b"fairlead-leader-epoch"
# Answers with these statuses must not have a Content-Length (RFC 9110, 8.6).
BODILESS_STATUSES: Final = frozenset({204, 304})
EPOCH_MAX: Final = 2**31 - 1
READING_METHODS: Final = frozenset({"GET", "HEAD"})
"""Methods of calls that only read."""
STALL_SECONDS_MAX: Final = 60.0


class ReaderStalled(Exception):
    """Raised when a client stops reading its answer; the answer is aborted and the connection is closed."""


@dataclass(frozen=True, slots=True)
class Outside:
    """Listener for clients outside the brokers' network."""

    scheme: str
    """Scheme with which clients call the listener, or the proxy in front of the listener."""
    forwards: bool
    """Whether all brokers share an address, such as that of a load balancer, and every broker forwards calls."""


class Call:
    """A request for ``route`` with its decoded path ``parameters``."""

    __slots__ = (
        "__weakref__", "_headers", "_query", "_send", "_stall_seconds_max", "access", "body_reader", "bytes_sent",
        "change", "held", "is_audited", "is_forwarded", "outside", "parameters", "peer", "problem_code", "quota",
        "receive", "route", "scope", "stamp", "status",
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
        """Counter of the bytes that a fetch answer occupies; None for other answers."""
        self.body_reader = BodyReader(receive, budget, scope.get("client") or UNKNOWN)
        self.parameters: dict[str, str] = {}
        self.route: Route | None = None
        self.status = 0
        """Status of the answer; 0 before the answer begins."""
        self.bytes_sent = 0
        self.peer: PeerIncarnation | None = None
        """Broker that sent the request; None on all listeners except the peer listener."""
        self.outside: Outside | None = None
        """Listener for clients outside the brokers' network, if the request came through that listener."""
        self.access: CallerAccess = OPEN_ACCESS
        """Access of the caller, for decisions on names in the body and in the answer."""
        self.quota: CallerQuota | None = None
        """Limits of the caller, to which the request is charged; None if the request is not charged."""
        self.stamp: Callable[[], HeaderList] | None = None
        """Function that returns the headers added to every answer."""
        self.problem_code: str | None = None
        """Code of the problem in the answer; None when the answer has no problem."""
        self.change: dict[str, object] | None = None
        """Changes that the call has made, for the audit log; never contains secrets."""
        self.is_audited = False
        """Whether the audit log has a record of the request."""
        self.is_forwarded = False
        """Whether another broker has answered the request; the other broker audits the request."""
        self._headers: dict[bytes, bytes] | None = None
        self._query: QueryValues | None = None

    def begin_produce(self) -> None:
        """Count the request among its caller's produce calls. Raises ProblemError overloaded."""
        self.body_reader.begin_call(self.access.caller.principal)

    def end_produce(self) -> None:
        """Stop counting the request among its caller's produce calls, and its body, because its records are stored.

        The caller of this method no longer refers to the body.
        """
        self.body_reader.release()

    @property
    def caller_side(self) -> CallerSide:
        """Side from which the client reaches brokers, even if another broker forwarded the request."""
        if self.peer is not None:
            return CallerSide.of_text(self.header_text(CALLER_SCHEME) or "http")
        scheme = str(self.scope["scheme"])
        return CallerSide(scheme, None if self.outside is None else self._called_url(self.outside.scheme))

    def _called_url(self, scheme: str) -> str | None:
        """Return the base URL that an external client has used; headers of proxies are not read (rule T14)."""
        authority = self.header_text(b"host")
        return f"{scheme}://{authority}" if _AUTHORITY.fullmatch(authority) else None

    @property
    def client_address(self) -> str:
        """Address of the client, even if another broker forwarded the request."""
        if self.peer is not None and (given := self.header_text(CALLER_ADDRESS)):
            return given
        address: str = (self.scope.get("client") or UNKNOWN)[0]
        return address

    @property
    def audit_caller(self) -> Caller:
        """Caller as the audit log names it."""
        caller = self.access.caller
        if self.peer is not None and (token_id := self.header_text(CALLER_TOKEN)):
            return replace(caller, token_id=token_id)
        if self.peer is not None and (issuer := self.header_text(CALLER_ISSUER)):
            name, _, key_id = issuer.partition("/")
            return replace(caller, issuer=name, key_id=unquote(key_id) or None)
        return caller

    @property
    def audit_facts(self) -> dict[str, str]:
        """Address, route and trace of the request, for the audit log."""
        facts = {"address": self.client_address}
        if self.route is not None:
            facts["route"] = self.route.name
        if traceparent := self.header_text(b"traceparent"):
            facts["traceparent"] = traceparent[:TRACEPARENT_LENGTH]
        return facts

    @property
    def matched_route(self) -> Route:
        """Route of the request; it is always set when an endpoint runs."""
        assert self.route is not None, "an endpoint runs only after its route is found"
        return self.route

    @property
    def http1(self) -> bool:
        """Whether the request came over HTTP/1.x, where a connection carries one request at a time."""
        version: str = self.scope["http_version"]
        return version.startswith("1")

    @property
    def raw_path(self) -> str:
        """Path of the request as sent, percent-encoded."""
        path: bytes = self.scope["raw_path"]
        return path.decode("latin-1")

    @property
    def headers(self) -> Mapping[bytes, bytes]:
        """Headers by lower-case name; for a repeated header, the last value is used."""
        if self._headers is None:
            self._headers = dict(self.scope["headers"])
        return self._headers

    @property
    def query(self) -> QueryValues:
        """Query parameters, with every name and value checked against the route."""
        assert self._query is not None, "the query is checked before the endpoint runs"
        return self._query

    @property
    def topic(self) -> str:
        """Name of the topic in the path, which is checked against the name rule before the endpoint runs."""
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
        """Topic id that the caller expects for the name (header Fairlead-Topic-Id); None when the header is absent."""
        given = self.headers.get(TOPIC_ID_HEADER)
        return None if given is None else check_topic_id(given.decode("latin-1"))

    @property
    def leader_epoch(self) -> LeaderEpoch | None:
        """Highest leader epoch that the caller has seen (header Fairlead-Leader-Epoch); None if absent."""
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
        """Parse the query for the route. Raises ProblemError for unknown, repeated and invalid parameters."""
        self._query = queries.of(self.matched_route, self.scope["query_string"])

    @property
    def may_forward(self) -> bool:
        """Whether the call may be forwarded: False if the call comes from a peer or the caller forbids forwarding.

        A client outside the brokers' network cannot forbid forwarding if all brokers share one address for such
        clients.
        """
        if self.peer is not None:
            return False
        if self.outside is not None and self.outside.forwards:
            return True
        return self.header_text(_FORWARD).strip().lower() != FORWARD_NEVER

    def header_text(self, name: bytes) -> str:
        """Return the value of a header; empty when the header is absent."""
        return self.headers.get(name, b"").decode("latin-1")

    def refuse_coded_body(self) -> None:
        """Raise unsupported_media_type for a body with a content coding; the broker decodes no content coding."""
        coding = self.headers.get(b"content-encoding", b"identity")
        if coding.lower() != b"identity":
            raise ProblemError(
                "unsupported_media_type",
                f"content-encoding {shown(coding.decode('latin-1'))} is not supported; send the body as it is and"
                " compress inside the batch",
                data={"supported": ["identity"]},
            )

    async def body(self, bytes_max: int) -> bytes:
        """Return the whole body; see ``BodyReader.read``. Raises unsupported_media_type for a content-encoded body."""
        self.refuse_coded_body()
        return await self.body_reader.read(self._announced_bytes(), bytes_max, ends_at_length=self.http1)

    async def answer(self, status: int, headers: HeaderList, body: Buffer = b"") -> None:
        """Send a whole answer of at most a few MiB."""
        if status not in BODILESS_STATUSES:
            headers.append((b"content-length", b"%d" % len(body)))
        await self._start(status, headers, len(body))
        if self.scope["method"] == "HEAD":
            body = b""
        self.bytes_sent = len(body)
        await self._send({"type": "http.response.body", "body": body})

    async def answer_head(self, status: int, headers: HeaderList, length: int) -> None:
        """Send only the head of an answer; `length` is the number of bytes that its body would have."""
        await self._start(status, [*headers, (b"content-length", b"%d" % length)])
        await self._send({"type": "http.response.body", "body": b""})

    async def answer_json(self, value: object, status: int = 200, headers: HeaderList | None = None) -> None:
        """Send a JSON answer with a value that msgspec can encode."""
        await self.answer(status, [JSON_CONTENT_TYPE, *(headers or ())], msgspec.json.encode(value))

    async def answer_parts(self, status: int, headers: HeaderList, parts: Sequence[Buffer]) -> None:
        """Send buffers in order, in pieces of at most PART_BYTES_MAX.

        Each piece is a `bytes` object. granian iterates over any other buffer item by item, which makes a fetch three
        times slower.
        """
        total = sum(map(len, parts))
        headers.append((b"content-length", b"%d" % total))
        await self._start(status, headers, total)
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
        """Send a piece of a stream. `more`: further pieces follow. Raises ReaderStalled when sending times out."""
        held = self.held
        try:
            async with asyncio.timeout(self._stall_seconds_max) as stall:
                if held is not None:
                    held.sending(partial(end_now, stall))
                await self._send({"type": "http.response.body", "body": piece, "more_body": more})
        except TimeoutError as error:
            raise ReaderStalled from error
        finally:
            if held is not None:
                held.sent()
        self.bytes_sent += len(piece)
        if self.quota is not None:
            self.quota.fetched(len(piece))

    async def _send_pieces(self, parts: Sequence[Buffer], total: int) -> None:
        """Send an answer in pieces. Raises ReaderStalled when sending a piece times out."""
        now = asyncio.get_running_loop().time
        held = self.held
        try:
            async with asyncio.timeout(self._stall_seconds_max) as stall:
                if held is not None:
                    held.sending(partial(end_now, stall))
                for piece in pieces_of(parts):
                    self.bytes_sent += len(piece)
                    more = self.bytes_sent < total
                    await self._send({"type": "http.response.body", "body": piece, "more_body": more})
                    stall.reschedule(now() + self._stall_seconds_max)
                    if held is not None:
                        held.moved()
        except TimeoutError as error:
            raise ReaderStalled from error

    async def _start(self, status: int, headers: HeaderList, nbytes: int = 0) -> None:
        assert self.status == 0, f"a second answer ({status}) for one request"
        self.status = status
        await self.body_reader.ended()
        if self.quota is not None and self.quota.has_rates:
            headers = self._charged(headers, nbytes)
        if self.stamp is not None:
            headers = [*headers, *self.stamp()]
        await self._send({"type": "http.response.start", "status": status, "headers": headers})

    def _charged(self, headers: HeaderList, nbytes: int) -> HeaderList:
        """Charge the bytes of an answer with records; return its headers, with the wait time of a caller in debt.

        The wait time ends when the next request of the same kind is admitted (rule Q6). Debts of other kinds are not
        included, because a producer waits for the time, and may produce while its caller is in debt with fetches.
        """
        quota, traffic = self.quota, self.matched_route.traffic
        assert quota is not None, "called only for a request that is charged to a quota"
        if traffic is Traffic.FETCH and nbytes:
            quota.fetched(nbytes)
        seconds = quota.wait_seconds(traffic)
        return [*headers, (THROTTLE_MS, b"%d" % math.ceil(seconds * 1000))] if seconds > 0 else headers

    @property
    def announced_bytes(self) -> int:
        """Size of the body that the head announces; 0 if the head announces no body."""
        return self._announced_bytes() or 0

    def _announced_bytes(self) -> int | None:
        given = self.headers.get(b"content-length")
        # granian already refuses a Content-Length that is not a number. The check only protects the conversion of the
        # header to an integer.
        return int(given) if given is not None and given.isdigit() and len(given) < 20 else None


def pieces_of(parts: Sequence[Buffer]) -> Iterator[bytes]:
    """Yield the bytes of all buffers in pieces of PART_BYTES_MAX, a remainder, and the tail; each byte is copied once.

    Small buffers share a piece, because each piece costs one iteration of the event loop. Each piece is a ``bytes``
    object: granian copies `bytes` in one step and iterates over any other buffer item by item (measured: 40 % of a core
    at 90 MB/s).
    """
    left = sum(map(len, parts))
    gathered: list[memoryview] = []
    size = room = _piece_bytes(left)
    for part in parts:
        view = memoryview(part).cast("B")  # Arrow buffers have signed bytes
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
    """Return the length of the next piece of an answer of which ``left`` bytes remain."""
    tail = TAIL_PARTS * TAIL_PART_BYTES
    return min(PART_BYTES_MAX, left - tail) if left > tail else min(TAIL_PART_BYTES, left)


Endpoint: TypeAlias = Callable[[Call], Awaitable[None]]
"""Function that answers the calls to one route."""


ACCEPT_LENGTH_MAX = 1000
BINARY_EVENT = "a CloudEvent in binary mode"
"""Name used in place of a media type for a binary-mode event, because the event's data may have any media type."""
_AUTHORITY: Final = re.compile(r"[A-Za-z0-9._:\[\]-]{1,261}")
"""Host with an optional port, as a client names the broker that it calls."""
CALLER_SCHEME: Final = identity.CALLER_SCHEME.encode()
CALLER_ADDRESS: Final = identity.CALLER_ADDRESS.encode()
CALLER_TOKEN: Final = identity.CALLER_TOKEN.encode()
CALLER_ISSUER: Final = identity.CALLER_ISSUER.encode()
TRACEPARENT_LENGTH: Final = 55
"""Length of the header `traceparent`."""
_FORWARD: Final = Header.FORWARD.lower().encode()
EVENT_VERSION = b"ce-specversion"
STRUCTURED_EVENTS = (CLOUD_EVENT, CLOUD_EVENTS)


def body_type(call: Call) -> str:
    """Return the media type of the body, one of the route's types.

    A body without a type is refused, because a web page can send such a body to any origin without a preflight request.
    Raises ProblemError unsupported_media_type with the supported types, or unsupported_version for frames of another
    version.
    """
    supported = call.matched_route.body_types
    given = call.header_text(b"content-type")
    if given in supported:
        return given
    wanted = essence(given)
    for media_type in supported:
        if essence(media_type) == wanted:
            if wanted == FRAMES_ESSENCE:
                _check_frames_version(given)
            return media_type
    raise ProblemError(
        "unsupported_media_type",
        f"a body of type {shown(given) if given else 'none'} is not supported; supported:"
        f" {', '.join(supported)}",
        data={"supported": list(supported)},
    )


def record_body_type(call: Call) -> str:
    """Return the body type of a produce call: BINARY_EVENT for a binary-mode event, otherwise the ``body_type``."""
    if EVENT_VERSION in call.headers and essence(call.header_text(b"content-type")) not in STRUCTURED_EVENTS:
        return BINARY_EVENT
    return body_type(call)


def answer_type(call: Call) -> str:
    """Return the media type of the route that the caller prefers, or the first type if the caller has no preference.

    Calls that answer only in JSON do not use this function, so that no write is refused because of its Accept header.

    Raises ProblemError not_acceptable with the supported types.
    """
    supported = call.matched_route.answer_types
    accept = call.header_text(b"accept")
    if not accept or accept == "*/*":
        return supported[0]
    if accept in supported:
        return accept
    # A list of values may be spread over several headers of the same name (RFC 9110, 5.3).
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
        f"accept {shown(accept)} names no media type that this call can answer with; supported: {', '.join(supported)}",
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
    """Return the weight of the most specific range that covers the type (RFC 9110, 12.5.1)."""
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
                f"frames of version {shown(value)} are not supported; supported: {FRAMES_VERSION}",
                data={"value": value[:80], "supported": [FRAMES_VERSION]},
            )


# The longest legitimate body sets every configuration key of a topic, which takes a few KiB.
ADMIN_BYTES_MAX = 1 << 20


async def json_body(call: Call) -> bytes:
    """Return the JSON body of a request; the body may be empty.

    Raises unsupported_media_type if the body is not declared as JSON, or body_too_large if it exceeds the limit.
    """
    if call.header_text(b"content-type"):
        body_type(call)
    body = await call.body(ADMIN_BYTES_MAX)
    if body:
        body_type(call)
    return body
