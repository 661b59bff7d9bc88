"""Consumer groups: members, committed offsets, lists, descriptions, lag.

Callers: ``application`` for the routes named in ``endpoints``. The group's coordinator decides which member owns a
partition and whether an offset may be committed; this module handles bodies, parameters and statuses. Any broker
accepts a call about one group and forwards it to the group's coordinator, with at most one hop (``AtCoordinator``). The
coordinator of a group is cached. If the cached broker is not the coordinator or cannot be reached, the coordinator is
looked up once more before the caller gets a refusal.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from typing import Final, Protocol, TypeAlias, TypeVar

import msgspec
from msgspec import UNSET, UnsetType

from fairlead_api.access_needs import Kind, Operation
from fairlead_api.bodies.group_answers import AssignedPartitions, GroupDescription
from fairlead_api.bodies.group_requests import HeartbeatRequest, ResetRequest, decode_commit
from fairlead_api.bodies.json_bodies import decode_request
from fairlead_api.bodies.json_slices import WHOLE_BYTES_MAX
from fairlead_api.bodies.metadata import Page
from fairlead_api.bodies.requests import READ_COMMITTED, Isolation
from fairlead_api.identifiers import Revision
from fairlead_api.problems import ProblemError, SideEffect
from fairlead_broker.access.caller_access import CallerAccess
from fairlead_broker.peers import identity
from fairlead_broker.peers.peers import ANSWER_MARGIN_SECONDS, PeerAnswer, PeerUnavailable
from fairlead_broker.runtime import Broker
from fairlead_broker.runtime.engine.time_limits import TimeLimit, TimeLimits, end_now
from fairlead_broker.runtime.peer_serving.forwarded_calls import RETRY_SECONDS
from fairlead_broker.server.http.call import (
    ADMIN_BYTES_MAX,
    BODILESS_STATUSES,
    READING_METHODS,
    Call,
    Endpoint,
    body_type,
)
from fairlead_broker.server.http.codec_threads import in_thread
from fairlead_broker.server.http.paging import cursor_of, name_behind
from fairlead_broker.server.routing.forwarding import Forwarding, passed_on, target

COORDINATOR_SECONDS_MAX: Final = 20.0
"""Maximum number of seconds for a coordinator to claim and load a large group, wait for its turn to write, and
write."""
NOT_COORDINATOR: Final = "not_coordinator"
COMMIT_BYTES_MAX: Final = 8 << 20
"""Maximum number of bytes of a commit's body: enough for 10,000 partitions with metadata of the maximum length."""


T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Answered:
    """Answer from the coordinator: a value that msgspec can encode (None if the answer has no body), and a status."""

    value: object
    status: int = HTTPStatus.OK


GroupCall: TypeAlias = Callable[[Call, bytes], Awaitable[Answered]]
"""Function that executes a call on the coordinator. The function may be called twice with the same body: a call that
this broker refuses because it is not the coordinator is tried once more."""


class AtCoordinator:
    """Creates endpoints that any broker can serve, for calls that only the coordinator can execute."""

    def __init__(self, broker: Broker, forwarding: Forwarding) -> None:
        self._broker = broker
        self._forwarding = forwarding
        self._limits = TimeLimits(COORDINATOR_SECONDS_MAX)

    def endpoint(self, group_call: GroupCall, *, body_bytes_max: int = 0) -> Endpoint:
        """Return an endpoint for a route with ``group`` in its path.

        ``body_bytes_max``: 0 if the call has no JSON body.
        """

        async def answer(call: Call) -> None:
            body = b""
            if body_bytes_max:
                body_type(call)
                body = await call.body(body_bytes_max)
            elif call.scope["method"] == "DELETE":
                # A body is refused, because a caller that sends the members to delete in a body would delete the whole
                # group.
                await call.body(0)
            await self.answer(call, call.parameters["group"], group_call, body)

        return answer

    async def answer(self, call: Call, group: str, group_call: GroupCall, body: bytes) -> None:
        """Answer a call about a group here or at the coordinator of the group; the body of the call has been read."""
        if not call.may_forward:
            await _send(call, await self._bounded(group, group_call(call, body), _effect(call)))
        elif not await self._attempt(call, group, group_call, body, last=False):
            await self._attempt(call, group, group_call, body, last=True)

    async def _attempt(
        self, call: Call, group: str, group_call: GroupCall, body: bytes, *, last: bool
    ) -> bool:
        """Answer the call here or forward it to the coordinator.

        Return False if the coordinator should be looked up again.
        """
        coordinator = None
        if not self._broker.groups.coordinates(group):
            lookup = self._broker.groups.coordinator_elsewhere(group, again=last)
            coordinator = await self._bounded(group, lookup, SideEffect.NONE)
        if coordinator is None:
            try:
                answered = await self._bounded(group, group_call(call, body), _effect(call))
            except ProblemError as problem:
                if last or problem.code != NOT_COORDINATOR:
                    raise
                return False
            await _send(call, answered)
            return True
        try:
            heard = await self._forwarding.ask(
                coordinator,
                call.scope["method"],
                target(call),
                passed_on(call),
                body,
                COORDINATOR_SECONDS_MAX + ANSWER_MARGIN_SECONDS,
            )
        except PeerUnavailable as unavailable:
            if last or unavailable.sent:
                raise _no_answer(call, group, unavailable) from unavailable
            return False
        if heard.status == HTTPStatus.MISDIRECTED_REQUEST and not last:
            await self._see_what_it_saw(heard)
            return False
        await self._forwarding.answer(call, heard)
        return True

    async def _bounded(self, group: str, work: Awaitable[T], effect: SideEffect) -> T:
        """Return the result of the work. Raises coordination_unavailable with `effect` when the work times out."""
        limit: TimeLimit | None = None
        try:
            async with asyncio.timeout(None) as wait:
                limit = self._limits.begin(partial(end_now, wait))
                return await work
        except TimeoutError as timeout:
            raise ProblemError(
                "coordination_unavailable",
                f"group {group} did not answer within {COORDINATOR_SECONDS_MAX:.0f} s",
                side_effect=effect,
                retry_after_seconds=RETRY_SECONDS,
            ) from timeout
        finally:
            if limit is not None:
                limit.cancel()

    async def _see_what_it_saw(self, heard: PeerAnswer) -> None:
        """Wait until this broker's mirror has the revision of a broker that answered that it is not the coordinator."""
        await self._forwarding.see(Revision(int(heard.headers.get(identity.MIRROR_REVISION, "0"))))


async def _send(call: Call, answered: Answered) -> None:
    if answered.status in BODILESS_STATUSES:
        await call.answer(answered.status, [])
    else:
        await call.answer_json(answered.value, answered.status)


def _no_answer(call: Call, group: str, unavailable: PeerUnavailable) -> ProblemError:
    """Return the problem for a coordinator that did not answer.

    The problem states whether the call was certainly not executed or may have been executed.
    """
    return ProblemError(
        "coordination_unavailable",
        f"the coordinator of group {group} does not answer: {unavailable}",
        side_effect=_effect(call) if unavailable.sent else SideEffect.NONE,
        retry_after_seconds=RETRY_SECONDS,
    )


def _effect(call: Call) -> SideEffect:
    return SideEffect.NONE if call.scope["method"] in READING_METHODS else SideEffect.MAYBE


class _Entry(Protocol):
    """Entry for one partition in an answer; the entry may contain a problem."""

    @property
    def problem(self) -> dict[str, object] | UnsetType: ...


class GroupCalls:
    """Endpoints of the calls about consumer groups."""

    def __init__(self, broker: Broker, forwarding: Forwarding) -> None:
        self._broker = broker
        self._forwarding = forwarding

    def endpoints(self) -> Mapping[str, Endpoint]:
        """Return the endpoint of each route of this family, by route name."""
        at = AtCoordinator(self._broker, self._forwarding)
        return {
            "list_groups": self.list_groups,
            "describe_group": at.endpoint(self.describe_group),
            "delete_group": at.endpoint(self.delete_group),
            "group_lag": at.endpoint(self.group_lag),
            "heartbeat": at.endpoint(self.heartbeat, body_bytes_max=ADMIN_BYTES_MAX),
            "leave_group": at.endpoint(self.leave_group),
            "committed_offsets": at.endpoint(self.committed_offsets),
            "commit_offsets": at.endpoint(self.commit_offsets, body_bytes_max=COMMIT_BYTES_MAX),
            "delete_offsets": at.endpoint(self.delete_offsets),
            "reset_offsets": at.endpoint(self.reset_offsets, body_bytes_max=ADMIN_BYTES_MAX),
        }

    async def list_groups(self, call: Call) -> None:
        """``GET /v1/groups``, in the order of the store; any broker can answer."""
        given = call.query.text_or_none("after")
        after, limit = None if given is None else name_behind(given), call.query.integer("limit")
        listing = await self._broker.groups.listing(after, limit)
        shown, following = listing.items, listing.next
        if call.access.hides:
            # A cursor must not name a hidden group, and the last page must not have a cursor, so pages are read until
            # they contain one entry too many or the list ends.
            shown = [each for each in shown if call.access.sees(Kind.GROUP, each.group)]
            while following is not None and len(shown) <= limit:
                listing = await self._broker.groups.listing(following, limit)
                shown += [each for each in listing.items if call.access.sees(Kind.GROUP, each.group)]
                following = listing.next
            following = shown[limit - 1].group if len(shown) > limit else None
            shown = shown[:limit]
        await call.answer_json(Page(items=shown, next=None if following is None else cursor_of(following)))

    async def describe_group(self, call: Call, body: bytes) -> Answered:
        """``GET /v1/groups/{group}``."""
        del body
        return Answered(seen_members(call.access, await self._broker.groups.describe(_group(call))))

    async def delete_group(self, call: Call, body: bytes) -> Answered:
        """``DELETE /v1/groups/{group}``."""
        del body
        await self._broker.groups.delete(_group(call))
        return Answered(None, HTTPStatus.NO_CONTENT)

    async def group_lag(self, call: Call, body: bytes) -> Answered:
        """``GET /v1/groups/{group}/lag``."""
        del body
        committed = call.query.text("isolation") == READ_COMMITTED
        isolation: Isolation = READ_COMMITTED if committed else "read_uncommitted"
        answer = await self._broker.groups.lag(_group(call), isolation)
        if call.access.hides:
            lag = [each for each in answer.lag if call.access.sees(Kind.TOPIC, each.topic)]
            answer = msgspec.structs.replace(
                answer,
                lag=lag,
                total_records=sum(each.lag_records or 0 for each in lag),
                max_seconds=max((each.lag_seconds or 0.0 for each in lag), default=0.0),
            )
        return Answered(answer)

    async def heartbeat(self, call: Call, body: bytes) -> Answered:
        """``PUT /v1/groups/{group}/members/{member}``."""
        # If a JSON key is repeated, the last value is used, as on every hot path. A check for repeated keys would parse
        # the body again.
        request = decode_request(HeartbeatRequest, body, unique_keys=False)
        return Answered(
            await self._broker.groups.heartbeat(_group(call), _member(call), request, call.access)
        )

    async def leave_group(self, call: Call, body: bytes) -> Answered:
        """``DELETE /v1/groups/{group}/members/{member}``."""
        del body
        # A superuser may remove the members of every principal.
        owner = None if call.access.rules.is_superuser else call.access.owner
        await self._broker.groups.leave(
            _group(call), _member(call), static=call.query.flag("static"), principal=owner
        )
        return Answered(None, HTTPStatus.NO_CONTENT)

    async def committed_offsets(self, call: Call, body: bytes) -> Answered:
        """``GET /v1/groups/{group}/offsets``."""
        del body
        names = call.query.names("topics")
        for name in names or ():
            call.access.require(Operation.DESCRIBE, Kind.TOPIC, name)
        answer = await self._broker.groups.offsets(_group(call), names)
        if call.access.hides:
            offsets = [each for each in answer.offsets if call.access.sees(Kind.TOPIC, each.topic)]
            answer = msgspec.structs.replace(answer, offsets=offsets)
        return Answered(answer)

    async def commit_offsets(self, call: Call, body: bytes) -> Answered:
        """``PUT /v1/groups/{group}/offsets``."""
        # As in `heartbeat`, the body is not checked for repeated keys. Checking a large body would block the event
        # loop.
        is_small = len(body) <= WHOLE_BYTES_MAX
        request = decode_commit(body) if is_small else await in_thread(decode_commit, body)
        require_read(call, (each.topic for each in request.offsets))
        answer = await self._broker.groups.commit(_group(call), request, call.access.owner)
        return Answered(answer, _status(answer.offsets))

    async def delete_offsets(self, call: Call, body: bytes) -> Answered:
        """``DELETE /v1/groups/{group}/offsets``."""
        del body
        names = call.query.names("topics")
        return Answered(await self._broker.groups.delete_offsets(_group(call), names))

    async def reset_offsets(self, call: Call, body: bytes) -> Answered:
        """``POST /v1/groups/{group}/offsets:reset``."""
        request = decode_request(ResetRequest, body)
        dry_run = call.query.flag("dry_run")
        if not call.access.is_open:
            named = request.topics
            if named is None:
                present = await self._broker.groups.offsets(_group(call), None)
                require_read(call, {each.topic for each in present.offsets})
            else:
                require_read(call, (each if isinstance(each, str) else each.topic for each in named))
        answer = await self._broker.groups.reset(_group(call), request, dry_run=dry_run)
        return Answered(answer, _status(answer.offsets))


def require_read(call: Call, topics: Iterable[str]) -> None:
    """Raise `forbidden` for the first topic that the caller is not allowed to read."""
    if not call.access.is_open:
        for topic in topics:
            call.access.require(Operation.READ, Kind.TOPIC, topic)


def seen_members(access: CallerAccess, described: GroupDescription) -> GroupDescription:
    """Return the description of a group without the topics that the caller is not allowed to describe."""
    if not access.hides:
        return described

    def seen(partitions: list[AssignedPartitions]) -> list[AssignedPartitions]:
        return [each for each in partitions if access.sees(Kind.TOPIC, each.topic)]

    members = [
        msgspec.structs.replace(
            member,
            topics=[topic for topic in member.topics if access.sees(Kind.TOPIC, topic)],
            assignment=seen(member.assignment),
            revoking=seen(member.revoking),
            target=seen(member.target),
        )
        for member in described.members
    ]
    return msgspec.structs.replace(described, members=members)


def _group(call: Call) -> str:
    """Return the name of the group in the path, which is checked against the name rule before the endpoint runs."""
    return call.parameters["group"]


def _member(call: Call) -> str:
    """Return the id of the member in the path, which is checked against the name rule before the endpoint runs."""
    return call.parameters["member"]


def _status(entries: Iterable[_Entry]) -> int:
    """Return the status of an answer with one entry per partition: 207 if any partition was refused, otherwise 200."""
    refused = any(entry.problem is not UNSET for entry in entries)
    return HTTPStatus.MULTI_STATUS if refused else HTTPStatus.OK
