"""Client calls that another broker carries out, with one attempt each: at a leader, a coordinator or the controller.

The packages that answer clients use this module. If the other broker does not answer, the caller gets a definite
refusal only if the request was certainly not sent.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from http import HTTPStatus
from typing import TYPE_CHECKING, Final

from fairlead_api.batch.header import Buffer
from fairlead_api.identifiers import BrokerId, Revision
from fairlead_api.problems import ProblemError, SideEffect
from fairlead_broker.controlling.controllership import Controllership
from fairlead_broker.coordination.protocol import CoordinationUnavailable
from fairlead_broker.peers import identity
from fairlead_broker.peers.peers import PeerAnswer, PeerUnavailable, problem_of
from fairlead_broker.runtime.peer_serving.peer_side import PeerSide

if TYPE_CHECKING:
    from prometheus_client import Counter

ADMIN_SECONDS_MAX: Final = 60.0
"""Maximum number of seconds that the controller may take; writing the partitions of the largest topic takes several
seconds."""
MIRROR_SECONDS_MAX: Final = 5.0
"""Maximum number of seconds for which an answer from the controller is delayed until this broker's mirror contains
the change.
"""
CONTROLLER_SECONDS_MAX: Final = 5.0
"""Maximum number of seconds for which a call waits for a controller. A cluster has no controller while it starts, and
after the loss of its controller until that broker's lease expires.
"""
RETRY_SECONDS: Final = 0.2
"""Number of seconds after which a retry is advised when an election is probably in progress."""
_STRANGER_CODES: Final = frozenset({"peer_refused", "stale_broker_epoch"})
"""Problem codes with which a peer refuses a broker whose incarnation has ended, before it processes the request."""
_STRANGER_STATUSES: Final = frozenset({HTTPStatus.FORBIDDEN, HTTPStatus.PRECONDITION_FAILED})


class ForwardedCalls:
    """Sends calls of clients to other brokers."""

    def __init__(
        self,
        peer_side: PeerSide,
        controllership: Controllership,
        is_ready: Callable[[], bool],
        forwarded: Counter,
    ) -> None:
        """`is_ready` returns whether this broker serves clients.

        `forwarded` counts the forwarded calls by route and outcome.
        """
        self._peer_side = peer_side
        self._controllership = controllership
        self._is_ready = is_ready
        self._forwarded = forwarded

    async def ask(
        self,
        route: str,
        broker: BrokerId,
        method: str,
        path: str,
        headers: Sequence[tuple[str, str]],
        body: bytes | Sequence[Buffer],
        timeout_seconds: float,
    ) -> PeerAnswer:
        """Send a request of a route to another broker once, and return its answer. Raises `PeerUnavailable`."""
        try:
            heard = await self._peer_side.peers.call(
                broker, method, path, headers=headers, body=body, timeout_seconds=timeout_seconds
            )
        except PeerUnavailable as unavailable:
            self._forwarded.labels(route, "no_answer" if unavailable.sent else "not_sent").inc()
            raise
        self._forwarded.labels(route, str(heard.status)).inc()
        if heard.status in _STRANGER_STATUSES and (problem := problem_of(heard)).code in _STRANGER_CODES:
            # The peer has refused this broker, not the caller, and has not processed the request.
            raise PeerUnavailable(broker, problem.detail, sent=False)
        return heard

    async def wait_for_controller(self) -> None:
        """Wait until a controller is known, for at most a few seconds."""
        if self._is_ready():
            await self._controllership.known(CONTROLLER_SECONDS_MAX)

    async def ask_controller(
        self,
        route: str,
        controller: BrokerId,
        method: str,
        path: str,
        headers: Sequence[tuple[str, str]],
        body: bytes,
    ) -> PeerAnswer:
        """Return the controller's answer once this broker's mirror contains the change.

        Raises `coordination_unavailable` if the controller does not answer.
        """
        try:
            heard = await self.ask(route, controller, method, path, headers, body, ADMIN_SECONDS_MAX)
        except PeerUnavailable as unavailable:
            raise ProblemError(
                "coordination_unavailable",
                f"the controller does not answer: {unavailable}",
                side_effect=SideEffect.MAYBE if unavailable.sent else SideEffect.NONE,
                retry_after_seconds=RETRY_SECONDS,
            ) from unavailable
        if heard.status < HTTPStatus.BAD_REQUEST:
            await self.see(Revision(int(heard.headers.get(identity.MIRROR_REVISION, "0"))))
        return heard

    async def see(self, revision: Revision) -> None:
        """Wait until the mirror of this broker has reached a revision.

        A timeout of the wait is ignored, because the change has already taken effect.
        """
        with suppress(TimeoutError, CoordinationUnavailable):
            async with asyncio.timeout(MIRROR_SECONDS_MAX):
                await self._peer_side.wait_for(revision)
