"""Forwarding of calls to the broker that can answer them, with at most one hop.

Callers: the families of calls that are answered by leaders or by the controller. A call from another broker, and a call
with `Fairlead-Forward: never`, is never forwarded. The answer from the other broker is returned unchanged, including
problems. If the other broker does not answer, the caller gets a definite refusal only if the request was certainly not
sent.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final, TypeVar

from fairlead_api.batch.header import Buffer
from fairlead_api.bodies.media_types import JSON
from fairlead_api.bodies.requests import CreateTopicRequest
from fairlead_api.identifiers import BrokerId, Revision
from fairlead_api.problems import JSON as JSON_VALUE
from fairlead_api.problems import ProblemError
from fairlead_api.routes import ROUTES
from fairlead_broker.peers import identity, messages
from fairlead_broker.peers.forwarded_callers import FORWARDED_CALLER, audited_caller_headers
from fairlead_broker.peers.peers import ANSWER_MARGIN_SECONDS, PeerAnswer, PeerUnavailable, problem_of
from fairlead_broker.runtime import Broker, TopicView
from fairlead_broker.runtime.leading.leader_replica import LeaderReplica
from fairlead_broker.runtime.peer_serving.forwarded_calls import RETRY_SECONDS, ForwardedCalls
from fairlead_broker.server.http.access_gate import AUTHORIZATION
from fairlead_broker.server.http.asgi import HeaderList
from fairlead_broker.server.http.call import ADMIN_BYTES_MAX, BODILESS_STATUSES, Call, Endpoint
from fairlead_broker.server.http.disconnect import unless_gone
from fairlead_broker.server.http.request_target import RouteTable
from fairlead_broker.server.routing.locate import Here, locate_path

if TYPE_CHECKING:
    from prometheus_client import Counter

LEADER_SECONDS_MAX: Final = 30.0
"""Maximum number of seconds that a leader may take for a call without its own timeout; delete-records waits for
followers."""
JSON_BODY: Final = ("content-type", JSON)
_NOT_PASSED_ON: Final = frozenset(
    {
        b"connection", b"content-length", b"expect", b"host", b"keep-alive", b"te", b"transfer-encoding", b"upgrade",
        b"accept-encoding", b"user-agent", AUTHORIZATION, FORWARDED_CALLER.encode(),
    }
)  # fmt: skip
_NOT_PASSED_BACK: Final = frozenset({"connection", "content-length", "date", "server", "transfer-encoding"})
_OWN_HEADERS: Final = frozenset(
    {
        identity.CLUSTER_ID,
        identity.BROKER_ID,
        identity.BROKER_EPOCH,
        identity.PEER_SECRET,
        identity.BROKER_PROOF,
        identity.MIRROR_REVISION,
        identity.CALLER_SCHEME,
        identity.CALLER_ADDRESS,
        identity.CALLER_TOKEN,
        identity.CALLER_ISSUER,
        identity.CALLER_ISSUED,
    }
)

T = TypeVar("T")


class Forwarding:
    """Forwarder of calls to the broker that can answer them."""

    def __init__(self, broker: Broker, forwarded: Counter) -> None:
        """`forwarded` counts the forwarded calls by route and outcome."""
        self._broker = broker
        self._calls = ForwardedCalls(broker.peer_side, broker.controllership, lambda: broker.ready, forwarded)
        self._routes = RouteTable(ROUTES)
        self._stop = asyncio.Event()

    @property
    def stopping(self) -> bool:
        """Whether the broker is stopping and no longer forwards calls that may wait for a long time."""
        return self._stop.is_set()

    def stop(self) -> None:
        """Cancel the calls that wait at other brokers for records."""
        self._stop.set()

    async def until_stop(self, work: Coroutine[Any, Any, T]) -> T | None:
        """Return the result of the work; if the broker stops first, cancel the work and return None."""
        # This method owns the tasks of the work and of the stop; all tasks have ended when the method returns.
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
        """Return an endpoint for a small call about one partition.

        Calls are answered by this broker or forwarded to the leader.
        """

        async def answer(call: Call) -> None:
            found = await locate_path(call, self._broker)
            if isinstance(found, Here):
                await endpoint(call, found.replica)
                return
            body = await call.body(ADMIN_BYTES_MAX)
            await self.pass_on(call, found.broker, body, LEADER_SECONDS_MAX, writing=writing)

        return answer

    def at_controller(self, endpoint: Endpoint) -> Endpoint:
        """Return an endpoint that forwards calls to the controller.

        The answer is sent after this broker's mirror contains the change.
        """

        async def answer(call: Call) -> None:
            controller = await self._controller_elsewhere(call)
            if controller is None:
                await endpoint(call)
                return
            body = await call.body(ADMIN_BYTES_MAX)
            heard = await self._calls.ask_controller(
                call.matched_route.name,
                controller,
                call.scope["method"],
                target(call),
                passed_on(call),
                body,
            )
            call.is_forwarded = True
            await call.answer(heard.status, passed_back(heard), heard.body)

        return answer

    async def create_topic(self, call: Call, request: CreateTopicRequest) -> TopicView:
        """Create a topic, here or at the controller, and return it once this broker's mirror contains the topic.

        Raises the problem with which the creation is refused.
        """
        controller = await self._controller_elsewhere(call)
        if controller is None:
            view, created = await self._broker.create_topic(request)
            if created:
                call.change = {"topic": request.name, "partitions": view.partition_count}
            return view
        body = messages.encode(request)
        headers = [JSON_BODY, *audited_caller_headers(call.access, call.client_address)]
        heard = await self._calls.ask_controller(
            "create_topic", controller, "POST", "/v1/topics", headers, body
        )
        if heard.status >= HTTPStatus.BAD_REQUEST:
            raise problem_of(heard)
        return self._broker.views.by_name(request.name)

    async def pass_on(
        self, call: Call, leader: BrokerId, body: bytes, timeout_seconds: float, *, writing: bool
    ) -> None:
        """Forward a call about the partition in the path to its leader, and send the leader's answer to the caller."""
        asked = self.ask(
            leader,
            call.scope["method"],
            target(call),
            passed_on(call),
            body,
            timeout_seconds + ANSWER_MARGIN_SECONDS,
        )
        try:
            # A write is not given up when its client disconnects, because the leader carries it out anyway.
            heard = await (asked if writing else unless_gone(call.receive, asked))
        except PeerUnavailable as unavailable:
            raise no_answer(unavailable, call.topic, call.partition, writing=writing) from unavailable
        await self.answer(call, heard)

    async def answer(self, call: Call, heard: PeerAnswer) -> None:
        """Send the answer from another broker to the caller in pieces.

        The bytes of the answer are counted while they are in memory.
        """
        call.is_forwarded = True
        if heard.status in BODILESS_STATUSES:
            await call.answer(heard.status, passed_back(heard))
            return
        if call.scope["method"] == "HEAD":
            # The answer to HEAD has no body, but has the Content-Length of the answer to GET.
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
        """Send a request to another broker once, and return its answer. Raises `PeerUnavailable`."""
        route, _ = self._routes.find(method, path.partition("?")[0])
        return await self._calls.ask(route.name, broker, method, path, headers, body, timeout_seconds)

    async def _controller_elsewhere(self, call: Call) -> BrokerId | None:
        """Return the broker to which a call for the controller is forwarded; None if this broker executes the call."""
        await self._calls.wait_for_controller()
        return self._broker.peer_side.controller_elsewhere() if call.may_forward else None

    async def see(self, revision: Revision) -> None:
        """Wait until the mirror of this broker has reached a revision, for at most a few seconds."""
        await self._calls.see(revision)


def passed_on(call: Call) -> list[tuple[str, str]]:
    """Return the headers of a call that are forwarded to another broker.

    The headers contain the caller's name instead of its token, and the client's side unless the side is http.
    """
    side = call.caller_side.text
    passed = [] if side == "http" else [(identity.CALLER_SCHEME, side)]
    return [*audited_caller_headers(call.access, call.client_address), *passed, *_as_given(call)]


def _as_given(call: Call) -> list[tuple[str, str]]:
    return [
        (name.decode("latin-1"), _as_sent(value))
        for name, value in call.scope["headers"]
        if name not in _NOT_PASSED_ON
        and name.decode("latin-1") not in _OWN_HEADERS
        and not name.startswith(b":")
    ]


def _as_sent(value: bytes) -> str:
    """Return a header's value as text, decoded as UTF-8, or as Latin-1 if the bytes are not valid UTF-8."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value.decode("latin-1")


def passed_back(heard: PeerAnswer) -> HeaderList:
    """Return the headers of another broker's answer that are returned to the caller."""
    return [
        (name.encode("latin-1"), value.encode("latin-1"))
        for name, value in heard.headers.items()
        if name not in _NOT_PASSED_BACK and name not in _OWN_HEADERS
    ]


def no_answer(unavailable: PeerUnavailable, topic: str, partition: int, *, writing: bool) -> ProblemError:
    """Return the problem for a leader that did not answer.

    The problem states whether the call was certainly not executed or may have been executed.
    """
    where: dict[str, JSON_VALUE] = {"topic": topic, "partition": partition}
    detail = f"the leader of {topic}-{partition} does not answer: {unavailable}"
    if not writing or not unavailable.sent:
        return ProblemError("no_leader", detail, data=where, retry_after_seconds=RETRY_SECONDS)
    return ProblemError("ack_timeout" if unavailable.timed_out else "leader_changed", detail, data=where)


def target(call: Call) -> str:
    """Return the path and query of a call as the client sent them."""
    query: str = call.scope["query_string"].decode("latin-1")
    return f"{call.raw_path}?{query}" if query else call.raw_path
