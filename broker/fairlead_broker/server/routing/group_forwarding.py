"""Forwarding of calls about a group to the group's coordinator, with at most one hop.

Callers: ``groups``. The coordinator of a group is cached. If the cached broker is not the coordinator or cannot be
reached, the coordinator is looked up once more before the caller gets a refusal.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final, TypeAlias, TypeVar

from fairlead_api.identifiers import Revision
from fairlead_api.problems import ProblemError, SideEffect
from fairlead_broker.peers import identity
from fairlead_broker.peers.peers import ANSWER_MARGIN_SECONDS, PeerAnswer, PeerUnavailable
from fairlead_broker.runtime import Broker
from fairlead_broker.server.http.call import BODILESS_STATUSES, READING_METHODS, Call, Endpoint, body_type
from fairlead_broker.server.routing.forwarding import RETRY_SECONDS, Forwarding, passed_on, target

COORDINATOR_SECONDS_MAX: Final = 20.0
"""Maximum number of seconds for a coordinator to claim and load a large group, wait for its turn to write, and
write."""
NOT_COORDINATOR: Final = "not_coordinator"

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
            if not call.may_forward:
                await _send(call, await _bounded(call, group_call(call, body), _effect(call)))
            elif not await self._attempt(call, group_call, body, last=False):
                await self._attempt(call, group_call, body, last=True)

        return answer

    async def _attempt(self, call: Call, group_call: GroupCall, body: bytes, *, last: bool) -> bool:
        """Answer the call here or forward it to the coordinator.

        Return False if the coordinator should be looked up again.
        """
        group = call.parameters["group"]
        lookup = self._broker.groups.coordinator_elsewhere(group, again=last)
        coordinator = await _bounded(call, lookup, SideEffect.NONE)
        if coordinator is None:
            try:
                answered = await _bounded(call, group_call(call, body), _effect(call))
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
                raise _no_answer(call, unavailable) from unavailable
            return False
        if heard.status == HTTPStatus.MISDIRECTED_REQUEST and not last:
            await self._see_what_it_saw(heard)
            return False
        await self._forwarding.answer(call, heard)
        return True

    async def _see_what_it_saw(self, heard: PeerAnswer) -> None:
        """Wait until this broker's mirror has the revision of a broker that answered that it is not the coordinator."""
        await self._forwarding.see(Revision(int(heard.headers.get(identity.MIRROR_REVISION, "0"))))


async def _bounded(call: Call, work: Awaitable[T], effect: SideEffect) -> T:
    """Return the result of the work. Raises coordination_unavailable with this side effect when the work times out."""
    try:
        async with asyncio.timeout(COORDINATOR_SECONDS_MAX):
            return await work
    except TimeoutError as timeout:
        raise ProblemError(
            "coordination_unavailable",
            f"group {call.parameters['group']} did not answer within {COORDINATOR_SECONDS_MAX:.0f} s",
            side_effect=effect,
            retry_after_seconds=RETRY_SECONDS,
        ) from timeout


async def _send(call: Call, answered: Answered) -> None:
    if answered.status in BODILESS_STATUSES:
        await call.answer(answered.status, [])
    else:
        await call.answer_json(answered.value, answered.status)


def _no_answer(call: Call, unavailable: PeerUnavailable) -> ProblemError:
    """Return the problem for a coordinator that did not answer.

    The problem states whether the call was certainly not executed or may have been executed.
    """
    return ProblemError(
        "coordination_unavailable",
        f"the coordinator of group {call.parameters['group']} does not answer: {unavailable}",
        side_effect=_effect(call) if unavailable.sent else SideEffect.NONE,
        retry_after_seconds=RETRY_SECONDS,
    )


def _effect(call: Call) -> SideEffect:
    return SideEffect.NONE if call.scope["method"] in READING_METHODS else SideEffect.MAYBE
