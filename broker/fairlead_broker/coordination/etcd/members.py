"""The members of an etcd cluster.

Requests are sent to one member until it fails, and then to the next member. `client`, `keep_alives` and `watch` make
the requests. The module chooses the member and the token, and retries requests. A request that must not be applied
twice is sent again only if it was definitely not applied the first time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, NoReturn, TypeAlias, TypeVar

import grpc
import structlog

from fairlead_broker.coordination.etcd import etcd_pb2 as messages
from fairlead_broker.coordination.etcd.calls import AUTHENTICATE, STATUS, Answer, Call, Request
from fairlead_broker.coordination.etcd.failures import (
    AUTHENTICATION_OFF,
    BREAKS,
    CredentialsRefused,
    Failure,
    Refused,
    Verdict,
    WrongCluster,
    judge,
)
from fairlead_broker.coordination.etcd.member import Headed, Member, Metadata
from fairlead_broker.coordination.etcd.options import EtcdOptions
from fairlead_broker.coordination.protocol import (
    CoordinationClosed,
    CoordinationUnavailable,
    UnknownOutcome,
)

ROUND_PAUSES_SECONDS: Final = (0.05, 0.1, 0.2, 0.4)
"""Seconds to pause after a round in which every member has failed, by number of rounds. After the listed pauses, the
last pause is repeated.
"""
TOKENS_MAX: Final = 3
"""Maximum number of tokens that one call requests; a further token would also be refused."""
HAS_LEADER: Final = ("hasleader", "true")
"""Metadata that makes a member without a leader refuse requests and end streams at once instead of waiting."""
CLOSED: Final = "this client of etcd was closed"

_log = structlog.get_logger("fairlead.coordination")

T = TypeVar("T")
Action: TypeAlias = Callable[[Member, Metadata, float], Awaitable[T]]
"""Function that sends a request to a member with metadata and waits for its answer for at most the given number of
seconds.
"""


class Members:
    """The configured members, with the cluster id of the first member that answered."""

    def __init__(self, options: EtcdOptions) -> None:
        self.cluster_id = options.cluster_id
        self.patience = options.patience
        self._members = tuple(Member(url, options, self.check_cluster) for url in options.endpoints)
        self._preferred = 0
        self._user = options.user
        self._token: str | None = None if options.user else ""
        """Token for requests: empty if no token is needed, or None if a token must be requested first."""
        self._authenticating = asyncio.Lock()
        self.closed = False

    async def check(self) -> None:
        """Connect to every member once. Raises a permanent error, or an error with all reasons if no member answers."""
        outcomes = await asyncio.gather(
            *(each.connect(self._metadata, self.patience.connect_seconds) for each in self._members),
            return_exceptions=True,
        )
        errors = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
        for error in errors:
            if not isinstance(error, BREAKS):
                raise error
        if len(errors) == len(self._members):
            reasons = zip(self._members, errors, strict=True)
            said = "; ".join(f"{member.url}: {judge(error).reason}" for member, error in reasons)
            msg = f"no member of etcd can be reached: {said}"
            raise CoordinationUnavailable(msg)
        await self.ask(STATUS, messages.StatusRequest())

    async def ask(
        self,
        call: Call[Request, Answer],
        request: Request,
        *,
        repeatable: bool = True,
    ) -> Answer:
        """Send one request (see `run`). Raises `Refused` if etcd refuses the request."""

        async def send(member: Member, metadata: Metadata, limit_seconds: float) -> Answer:
            answer = await member.ask(call, request, metadata, limit_seconds)
            self.check_cluster(member, answer)  # type: ignore[arg-type]
            return answer

        return await self.run(send, repeatable=repeatable)

    async def run(
        self,
        action: Action[T],
        *,
        repeatable: bool = True,
        call_seconds: float | None = None,
        attempt_seconds: float | None = None,
    ) -> T:
        """Run an action with a member, and after a failure with the next member, until the call times out.

        Raises `CoordinationUnavailable` (the request was not applied), `UnknownOutcome` (only if the request is
        not repeatable), `Refused`, `CredentialsRefused`, `WrongCluster` and `CoordinationClosed`.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + (call_seconds or self.patience.call_seconds)
        attempt_seconds = attempt_seconds or self.patience.attempt_seconds
        attempts = _Attempts(repeatable, bool(self._user), len(self._members))
        while True:
            self._check_open()
            member = self._members[self._preferred]
            left = deadline - loop.time()
            limit = min(left, attempt_seconds) if repeatable else left
            try:
                return await self._attempt(member, action, limit)
            except _Failed as failed:
                attempts.note(member, failed.failure)
                self._leave(member, failed.failure)
            if loop.time() >= deadline:
                raise CoordinationUnavailable(attempts.summary)
            if (pause := attempts.pause_seconds()) is not None:
                # No event announces that a member answers again, so only another attempt can detect an answer.
                await asyncio.sleep(min(pause, max(0.0, deadline - loop.time())))  # noqa: TID251

    def check_cluster(self, member: Member, answer: Headed) -> None:
        """Raise `WrongCluster` unless the answer comes from the expected etcd cluster."""
        found = answer.header.cluster_id
        if self.cluster_id is None:
            self.cluster_id = found
        if found != self.cluster_id:
            msg = (
                f"{member.url} belongs to etcd cluster {found:x}, not to {self.cluster_id:x}; list only members of "
                "one cluster, and restart brokers after etcd was restored as a new cluster"
            )
            raise WrongCluster(msg)

    async def close(self) -> None:
        """Close all connections, which ends their calls and streams."""
        self.closed = True
        for member in self._members:
            await member.close()

    async def _attempt(self, member: Member, action: Action[T], limit_seconds: float) -> T:
        """Run an action once. Raises `_Failed` if the attempt fails."""
        try:
            metadata = await self._enter(member, limit_seconds)
        except BREAKS as error:
            # The action was not started, so the request was not sent.
            failure = judge(error)
            verdict = Verdict.NOT_APPLIED if failure.verdict is Verdict.UNKNOWN else failure.verdict
            raise _Failed(Failure(verdict, failure.reason)) from error
        try:
            return await action(member, metadata, limit_seconds)
        except BREAKS as error:
            raise _Failed(judge(error)) from error
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            # Closing the connection cancelled the call, but not this task.
            raise _Failed(Failure(Verdict.UNKNOWN, "the connection was closed")) from error

    async def _enter(self, member: Member, limit_seconds: float) -> Metadata:
        """Connect to a member and authenticate, before any request is sent."""
        limit_seconds = min(limit_seconds, self.patience.connect_seconds)
        if not member.is_connected:
            await member.connect(self._metadata, limit_seconds)
        if self._token is None:
            async with asyncio.timeout(limit_seconds), self._authenticating:
                if self._token is None:
                    self._token = await self._authenticate(member, limit_seconds)
        return self._metadata

    @property
    def _metadata(self) -> Metadata:
        return (HAS_LEADER, ("token", self._token)) if self._token else (HAS_LEADER,)

    async def _authenticate(self, member: Member, limit_seconds: float) -> str:
        assert self._user is not None, "only a client with a user requests a token"
        request = messages.AuthenticateRequest(name=self._user.name, password=self._user.password)
        try:
            answer = await member.ask(AUTHENTICATE, request, (), limit_seconds)
        except grpc.aio.AioRpcError as error:
            if AUTHENTICATION_OFF not in (error.details() or ""):
                raise
            _log.warning("etcd authentication is off", member=member.url, user=self._user.name)
            return ""
        self.check_cluster(member, answer)
        return answer.token

    def _leave(self, member: Member, failure: Failure) -> None:
        """Choose another member for later requests, or discard the token, depending on the failure."""
        if failure.verdict is Verdict.TOKEN:
            self._token = None
        elif member is self._members[self._preferred]:
            self._preferred = (self._preferred + 1) % len(self._members)
            _log.info("etcd member failed, trying another", member=member.url, reason=failure.reason)

    def _check_open(self) -> None:
        if self.closed:
            raise CoordinationClosed(CLOSED)


class _Failed(Exception):
    """One failed attempt."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.reason)
        self.failure = failure


class _Attempts:
    """Failed attempts of one call, which decide whether the call continues."""

    def __init__(self, repeatable: bool, has_user: bool, members: int) -> None:
        self._repeatable = repeatable
        self._tokens_left = TOKENS_MAX if has_user else 0
        self._members = members
        self._reasons: dict[str, str] = {}
        self._failures = 0

    @property
    def summary(self) -> str:
        """Reasons for the failed attempts, as one text."""
        return "no member of etcd answered: " + "; ".join(
            f"{url}: {reason}" for url, reason in self._reasons.items()
        )

    def note(self, member: Member, failure: Failure) -> None:
        """Record a failure, or raise the error that ends the call."""
        self._reasons[member.url] = failure.reason
        match failure.verdict:
            case Verdict.REFUSED:
                raise Refused(failure.reason)
            case Verdict.CREDENTIALS:
                _refuse(member, failure)
            case Verdict.TOKEN:
                self._tokens_left -= 1
                if self._tokens_left < 0:
                    _refuse(member, failure)
            case Verdict.UNKNOWN if not self._repeatable:
                msg = f"the answer of {member.url} was lost: {failure.reason}"
                raise UnknownOutcome(msg)
            case Verdict.UNKNOWN | Verdict.NOT_APPLIED:
                self._failures += 1

    def pause_seconds(self) -> float | None:
        """Return the pause before the next attempt, or None if some members were not tried in this round."""
        rounds, rest = divmod(self._failures, self._members)
        if rest or not rounds:
            return None
        return ROUND_PAUSES_SECONDS[min(rounds, len(ROUND_PAUSES_SECONDS)) - 1]


def _refuse(member: Member, failure: Failure) -> NoReturn:
    msg = f"{member.url} refuses this client: {failure.reason}; check user, password and role in etcd"
    raise CredentialsRefused(msg)
