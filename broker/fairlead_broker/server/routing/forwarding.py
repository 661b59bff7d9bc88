"""Passing calls on to the broker that can answer them, one hop at most.

Callers: the families of calls that leaders or the controller answer. A call from another broker, and one whose caller
said `Fairlead-Forward: never`, is never passed on. What the other broker answers goes back as it came, problems too;
without an answer the caller gets a definite refusal only if the request certainly was not sent.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final, TypeVar

from fairlead_api.batch.header import Buffer
from fairlead_api.bodies.media_types import JSON
from fairlead_api.bodies.requests import CreateTopicRequest
from fairlead_api.identifiers import BrokerId, Revision
from fairlead_api.problems import JSON as JSON_VALUE
from fairlead_api.problems import ProblemError, SideEffect
from fairlead_api.routes import ROUTES
from fairlead_broker.coordination.protocol import CoordinationUnavailable
from fairlead_broker.peers import identity, messages
from fairlead_broker.peers.peers import ANSWER_MARGIN_SECONDS, PeerAnswer, PeerUnavailable, problem_of
from fairlead_broker.runtime import Broker, TopicView
from fairlead_broker.runtime.leading.leader_replica import LeaderReplica
from fairlead_broker.server.http.asgi import HeaderList
from fairlead_broker.server.http.call import ADMIN_BYTES_MAX, BODILESS_STATUSES, Call, Endpoint
from fairlead_broker.server.http.disconnect import unless_gone
from fairlead_broker.server.http.route_table import RouteTable
from fairlead_broker.server.routing.locate import Here, locate_path

if TYPE_CHECKING:
    from prometheus_client import Counter

ADMIN_SECONDS_MAX: Final = 60.0
"""Maximum seconds that the controller takes: writing the partitions of the largest topic takes some seconds."""
LEADER_SECONDS_MAX: Final = 30.0
"""Maximum seconds that a leader takes for a call without a wait of its own; delete-records waits for followers."""
MIRROR_SECONDS_MAX: Final = 5.0
"""How long an answer of the controller is held back until this broker has seen what was written."""
RETRY_SECONDS: Final = 0.2
"""Advice where an election is likely under way."""
JSON_BODY: Final = ("content-type", JSON)
_STRANGER_CODES: Final = frozenset({"peer_refused", "stale_broker_epoch"})
"""Codes that refuse a broker whose incarnation has ended, before anything is done for it."""
_STRANGER_STATUSES: Final = frozenset({HTTPStatus.FORBIDDEN, HTTPStatus.PRECONDITION_FAILED})
_NOT_PASSED_ON: Final = frozenset(
    {
        b"connection", b"content-length", b"expect", b"host", b"keep-alive", b"te", b"transfer-encoding", b"upgrade",
        b"accept-encoding", b"user-agent",
    }
)  # fmt: skip
_NOT_PASSED_BACK: Final = frozenset({"connection", "content-length", "date", "server", "transfer-encoding"})
_OWN_HEADERS: Final = frozenset(
    {
        identity.CLUSTER_ID,
        identity.BROKER_ID,
        identity.BROKER_EPOCH,
        identity.PEER_SECRET,
        identity.MIRROR_REVISION,
    }
)

T = TypeVar("T")


class Forwarding:
    """Forwards calls to the broker that can answer them."""

    def __init__(self, broker: Broker, forwarded: Counter) -> None:
        """`forwarded` counts by route and outcome what was passed on."""
        self._broker = broker
        self._forwarded = forwarded
        self._routes = RouteTable(ROUTES)
        self._stop = asyncio.Event()

    @property
    def stopping(self) -> bool:
        """Whether the broker stops, so that nothing that may wait long is passed on."""
        return self._stop.is_set()

    def stop(self) -> None:
        """End what waits at other brokers for something to come."""
        self._stop.set()

    async def until_stop(self, work: Coroutine[Any, Any, T]) -> T | None:
        """Return what the work returns; None, and the work is ended, once the broker stops."""
        # Owned here: both tasks have ended when this returns.
        task = asyncio.get_running_loop().create_task(work)
        stop = asyncio.get_running_loop().create_task(self._stop.wait())
        try:
            await asyncio.wait({task, stop}, return_when=asyncio.FIRST_COMPLETED)
            return task.result() if task.done() else None
        finally:
            task.cancel()
            stop.cancel()
            await asyncio.wait({task, stop})

    def at_leader(
        self, endpoint: Callable[[Call, LeaderReplica], Awaitable[None]], *, writing: bool
    ) -> Endpoint:
        """Return an endpoint that answers a small call about one partition at its leader."""

        async def answer(call: Call) -> None:
            found = await locate_path(call, self._broker)
            if isinstance(found, Here):
                await endpoint(call, found.replica)
                return
            body = await call.body(ADMIN_BYTES_MAX)
            await self.pass_on(call, found.broker, body, LEADER_SECONDS_MAX, writing=writing)

        return answer

    def at_controller(self, endpoint: Endpoint) -> Endpoint:
        """Return an endpoint whose call the controller answers; the change is visible here before the answer."""

        async def answer(call: Call) -> None:
            controller = self._broker.peer_side.controller_elsewhere() if call.may_forward else None
            if controller is None:
                await endpoint(call)
                return
            body = await call.body(ADMIN_BYTES_MAX)
            heard = await self._ask_controller(
                controller, call.scope["method"], target(call), passed_on(call), body
            )
            await call.answer(heard.status, passed_back(heard), heard.body)

        return answer

    async def create_topic(self, call: Call, request: CreateTopicRequest) -> TopicView:
        """Create a topic, or have the controller create it; returns it when it is known here. Raises its refusal."""
        controller = self._broker.peer_side.controller_elsewhere() if call.may_forward else None
        if controller is None:
            view, _ = await self._broker.create_topic(request)
            return view
        body = messages.encode(request)
        heard = await self._ask_controller(controller, "POST", "/v1/topics", [JSON_BODY], body)
        if heard.status >= HTTPStatus.BAD_REQUEST:
            raise problem_of(heard)
        return self._broker.views.by_name(request.name)

    async def pass_on(
        self, call: Call, leader: BrokerId, body: bytes, timeout_seconds: float, *, writing: bool
    ) -> None:
        """Answer a call about the partition in the path with what its leader says."""
        try:
            heard = await unless_gone(
                call.receive,
                self.ask(
                    leader,
                    call.scope["method"],
                    target(call),
                    passed_on(call),
                    body,
                    timeout_seconds + ANSWER_MARGIN_SECONDS,
                ),
            )
        except PeerUnavailable as unavailable:
            raise no_answer(unavailable, call.topic, call.partition, writing=writing) from unavailable
        await self.answer(call, heard)

    async def answer(self, call: Call, heard: PeerAnswer) -> None:
        """Give a caller what another broker answered, in parts, counted while it is held."""
        if heard.status in BODILESS_STATUSES:
            await call.answer(heard.status, passed_back(heard))
            return
        if call.scope["method"] == "HEAD":
            # No body came, and the length is that of the one which a GET would have brought.
            await call.answer_head(
                heard.status, passed_back(heard), int(heard.headers.get("content-length", "0"))
            )
            return
        call.held = call.held or self._broker.answers.hold()
        call.held.resize(len(heard.body))
        await call.answer_parts(heard.status, passed_back(heard), [heard.body])

    async def ask(
        self,
        broker: BrokerId,
        method: str,
        path: str,
        headers: Sequence[tuple[str, str]],
        body: bytes | Sequence[Buffer],
        timeout_seconds: float,
    ) -> PeerAnswer:
        """Ask another broker once. Raises `PeerUnavailable`."""
        peers = self._broker.peer_side.peers
        route, _ = self._routes.find(method, path.partition("?")[0])
        try:
            heard = await peers.call(
                broker, method, path, headers=headers, body=body, timeout_seconds=timeout_seconds
            )
        except PeerUnavailable as unavailable:
            self._forwarded.labels(route.name, "no_answer" if unavailable.sent else "not_sent").inc()
            raise
        self._forwarded.labels(route.name, str(heard.status)).inc()
        if heard.status in _STRANGER_STATUSES and (problem := problem_of(heard)).code in _STRANGER_CODES:
            # The caller is none of this: for the cluster this broker is away, and nothing was done.
            raise PeerUnavailable(broker, problem.detail, sent=False)
        return heard

    async def _ask_controller(
        self,
        controller: BrokerId,
        method: str,
        path: str,
        headers: Sequence[tuple[str, str]],
        body: bytes,
    ) -> PeerAnswer:
        try:
            heard = await self.ask(controller, method, path, headers, body, ADMIN_SECONDS_MAX)
        except PeerUnavailable as unavailable:
            raise ProblemError(
                "coordination_unavailable",
                f"the controller gives no answer: {unavailable}",
                side_effect=SideEffect.MAYBE if unavailable.sent else SideEffect.NONE,
                retry_after_seconds=RETRY_SECONDS,
            ) from unavailable
        if heard.status < HTTPStatus.BAD_REQUEST:
            await self.see(Revision(int(heard.headers.get(identity.MIRROR_REVISION, "0"))))
        return heard

    async def see(self, revision: Revision) -> None:
        """Wait until this broker knows what another one knew; what is done is done, also where that takes too long."""
        with suppress(TimeoutError, CoordinationUnavailable):
            async with asyncio.timeout(MIRROR_SECONDS_MAX):
                await self._broker.peer_side.wait_for(revision)


def passed_on(call: Call) -> list[tuple[str, str]]:
    """The headers of a call as another broker is to see them."""
    return [
        (name.decode("latin-1"), _as_sent(value))
        for name, value in call.scope["headers"]
        if name not in _NOT_PASSED_ON
        and name.decode("latin-1") not in _OWN_HEADERS
        and not name.startswith(b":")
    ]


def _as_sent(value: bytes) -> str:
    """Return a header's value as text that is these bytes again when it is sent, which is as UTF-8."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value.decode("latin-1")


def passed_back(heard: PeerAnswer) -> HeaderList:
    """The headers of another broker's answer as the caller is to see them."""
    return [
        (name.encode("latin-1"), value.encode("latin-1"))
        for name, value in heard.headers.items()
        if name not in _NOT_PASSED_BACK and name not in _OWN_HEADERS
    ]


def no_answer(unavailable: PeerUnavailable, topic: str, partition: int, *, writing: bool) -> ProblemError:
    """Return the problem for a leader without an answer: surely refused, or perhaps carried out."""
    where: dict[str, JSON_VALUE] = {"topic": topic, "partition": partition}
    detail = f"the leader of {topic}-{partition} gives no answer: {unavailable}"
    if not writing or not unavailable.sent:
        return ProblemError("no_leader", detail, data=where, retry_after_seconds=RETRY_SECONDS)
    return ProblemError("ack_timeout" if unavailable.timed_out else "leader_changed", detail, data=where)


def target(call: Call) -> str:
    """Path and query of a call as they were given."""
    query: str = call.scope["query_string"].decode("latin-1")
    return f"{call.raw_path}?{query}" if query else call.raw_path
