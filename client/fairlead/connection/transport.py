"""HTTP/2 calls to the brokers: a single attempt at one broker, or a call with retries that any broker may answer.

Every module that calls the cluster uses this module. The module wraps pyreqwest, whose exceptions do not leave the
module. An answer with status 400 or higher becomes the typed error of its problem. The module must not depend on the
meaning of the calls. The module is a single file because retries, the order of addresses and the token change together
with the outcome of each call.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Final, ParamSpec, Self, TypeAlias, TypeVar

import msgspec
import pyreqwest.client
import pyreqwest.exceptions

from fairlead import clock
from fairlead.connection.failed_requests import (
    is_out_of_reach,
    is_unclear,
    unreachable_error,
    wants_certificate,
)
from fairlead.connection.pool import ConnectionPool
from fairlead.connection.wrong_listener import WANTED, listeners_of
from fairlead.credentials import CallerToken
from fairlead.errors import (
    ClosedError,
    ClusterError,
    SettingError,
    TopicRecreatedError,
    UnauthenticatedError,
    UnreachableError,
    error_of,
    second_start,
)
from fairlead.settings import ConnectionSettings
from fairlead_api.bodies.media_types import FORWARD_NEVER, JSON, Header
from fairlead_api.problems import ProblemError, SideEffect

if TYPE_CHECKING:
    from pyreqwest.response import Response

P = ParamSpec("P")
T = TypeVar("T")

ANSWER_MARGIN_SECONDS: Final = 5.0
"""Seconds that the client waits in addition to the timeout sent to the broker, so that the broker's typed answer
arrives before the client's own timeout."""

SILENT_SECONDS: Final = 10.0
"""Seconds for which a broker that did not answer is tried last, because another failed attempt may take seconds."""

READ_SECONDS: Final = 3.0
"""Seconds after which a read is also sent to the next address, because the broker at the address may be paused or cut
off."""

SECOND_OPINION_SECONDS: Final = 1.0
"""Timeout of the request to a second broker, which may delay the first broker's answer by at most this time."""

CERTIFICATE_WANTED: Final = "the broker may want a client certificate (client_cert_file)"
ONE_ADDRESS_WANTED: Final = (
    "a client that can reach only its bootstrap addresses must set one_address (--one-address)"
)
NO_BROKER: Final = f"The address belongs to another service or to a proxy in front of a broker: {WANTED}."
PEER_LISTENER: Final = f"The address is that of the listener on which brokers call each other: {WANTED}."

Query: TypeAlias = Mapping[str, str | int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One HTTP request, independent of the broker that receives it. `subject` names the request in error messages."""

    method: str
    path: str
    subject: str
    query: Query = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes | None = None
    timeout_seconds: float | None = None
    """Seconds that the broker may take; None means the request timeout of the connection settings."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A successful answer: status below 400, complete body. `body` is a memoryview, which keeps the bytes alive."""

    status: int
    body: memoryview
    etag: str | None
    broker: str
    throttle_seconds: float = 0.0
    """Seconds that the broker asks this client to wait, because the client exceeds a limit."""


_READ: Final = Call(method="GET", path="/v1/versions", subject="versions")
"""Read that every broker answers from its memory."""


@contextmanager
def cancellable() -> Iterator[None]:
    """Raise the cancellation of the current task if a pyreqwest call within the block has dropped the cancellation.

    If the task is cancelled after a request has ended and before the task continues, pyreqwest returns the outcome of
    the request and drops the cancellation. Without this check, a task that repeats its calls would never end.
    """
    task = asyncio.current_task()
    before = task.cancelling() if task is not None else 0
    try:
        yield
    finally:
        if task is not None and task.cancelling() > before:
            raise asyncio.CancelledError


class Transport:
    """All of one client's connections.

    `async with` opens the connections, each of which carries all streams to one broker. `owner` is the name of the
    client (such as "producer") in error messages, since users do not see the transport.
    """

    def __init__(self, settings: ConnectionSettings, owner: str = "connection") -> None:
        self.settings = settings
        self._owner = owner
        self._pool: ConnectionPool | None = None
        self._token = CallerToken(settings.credentials)
        self._first = 0
        """Index of the address that is tried first."""
        self._second = 0
        """Number of requests sent so far to a second broker; the number selects the next second broker in rotation."""
        self._silent_until: dict[str, float] = {}
        self._answered_at = float("-inf")
        """Time of the last answer to a call that any broker may answer."""
        self._unclear: set[str] = set()
        """Addresses whose listener did not answer, or did not answer in HTTP/2."""
        self.known_brokers: tuple[str, ...] = ()
        """Broker addresses from the metadata, tried after the bootstrap addresses."""

    async def __aenter__(self) -> Self:
        if self._pool is not None:
            raise second_start()
        try:
            self._pool = ConnectionPool(self.settings)
        except RuntimeError as error:
            # The HTTP client's threads are not copied to a forked process.
            if "fork" not in str(error):
                raise
            allowed = "in a spawned process, or in a fork of a process that has not opened a client"
            raise SettingError("start", "called in a fork", allowed) from error
        # The token's lock belongs to one event loop, and a closed client may be opened again on another event loop.
        self._token = CallerToken(self.settings.credentials)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close every connection; calls in flight fail."""
        pool, self._pool = self._pool, None
        if pool is not None:
            await pool.close()

    async def send(self, call: Call, broker: str) -> Answer:
        """Send a call once to a broker, which must not forward it.

        With `one_address`, the call goes to a bootstrap address instead, and the broker there forwards it. Raises
        `UnreachableError` if there is no answer, and the typed `ClusterError` for a problem.
        """
        headers = call.headers
        if self.settings.one_address:
            broker = self._in_order()[0]
        else:
            headers = {Header.FORWARD: FORWARD_NEVER, **headers}
        try:
            return await self._send(call, broker, headers)
        except UnreachableError:
            self._count_silent(broker)
            raise

    async def _send(self, call: Call, broker: str, headers: Mapping[str, str]) -> Answer:
        """Send a call; if the token is refused and its source has a new token, send the call once more."""
        token = await self._token.text_for(broker)
        try:
            return await self._send_as(token, call, broker, headers)
        except UnauthenticatedError:
            if not await self._token.replaces(token):
                raise
        return await self._send_as(await self._token.text_for(broker), call, broker, headers)

    async def _send_as(
        self, token: str | None, call: Call, broker: str, headers: Mapping[str, str]
    ) -> Answer:
        if self._pool is None:
            raise ClosedError(self._owner)
        with self._pool.client() as client:
            return await self._send_with(client, call, broker, headers, token)

    async def _send_with(
        self,
        client: pyreqwest.client.Client,
        call: Call,
        broker: str,
        headers: Mapping[str, str],
        token: str | None,
    ) -> Answer:
        timeout = (call.timeout_seconds or self.settings.request_timeout_seconds) + ANSWER_MARGIN_SECONDS
        builder = client.request(call.method, broker + call.path)
        builder = builder.timeout(timedelta(seconds=timeout))
        builder = builder.headers(headers)
        if token is not None:
            # This method marks the header as sensitive, so that HTTP/2 never puts it into its table of headers.
            builder = builder.bearer_auth(token)
        if call.query:
            builder = builder.query({name: str(value) for name, value in call.query.items()})
        if call.body is not None:
            builder = builder.body_bytes(call.body)
        began = clock.monotonic()
        try:
            with cancellable():
                response = await builder.build().send()
                body = memoryview(await response.bytes())
        except pyreqwest.exceptions.ClientClosedError as error:
            raise ClosedError(self._owner) from error
        except pyreqwest.exceptions.RequestError as error:
            if is_unclear(error):
                self._unclear.add(broker)
            # A failed ping may close a connection before the call times out.
            waited = min(timeout, clock.monotonic() - began)
            unreachable = unreachable_error(call.subject, broker, error, waited)
            if self.settings.tls.client_cert_file is None and wants_certificate(broker, error):
                unreachable.attempts[broker] += f"; {CERTIFICATE_WANTED}"
            if broker not in self.settings.bootstrap and is_out_of_reach(error):
                unreachable.attempts[broker] += f"; {ONE_ADDRESS_WANTED}"
            raise unreachable from error
        if response.status >= 400:
            raise _refusal(response, body, call.subject, broker, self._token)
        throttle = response.get_header(Header.THROTTLE_MS)
        seconds = 0.0 if throttle is None else (_seconds(throttle) or 0.0) / 1000
        return Answer(response.status, body, response.get_header("etag"), broker, seconds)

    async def call(self, call: Call) -> Answer:
        """Send a call to any broker and retry retryable problems until `retry_timeout`.

        The method is only for calls that may be repeated: reads and idempotent writes.
        """
        return await self.retry(self.send_to_any, call)

    async def retry(self, attempt: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs) -> T:
        """Repeat attempts, with pauses, until an attempt succeeds or `retry_timeout` elapses; raise the last error.

        A problem is retried if its kind allows a retry; a missing answer is always retried. If something other than a
        broker seems to listen at an address, the last error describes it.
        """
        deadline = clock.monotonic() + self.settings.retry_timeout_seconds
        attempts = 0
        while True:
            try:
                return await attempt(*args, **kwargs)
            except (ClusterError, UnreachableError) as error:
                attempts += 1
                pause = self._pause_before_retry(error, attempts)
                if pause is None or clock.monotonic() + pause > deadline:
                    if isinstance(error, UnreachableError):
                        await self._look_at(error)
                    raise
            await asyncio.sleep(pause)  # noqa: TID251 - the pause before a retry

    async def _look_at(self, error: UnreachableError) -> None:
        """Describe the listeners at addresses without a clear answer, and add the description to an error."""
        unclear = self._unclear & error.attempts.keys()
        self._unclear -= unclear
        for broker, answer in (await listeners_of(unclear)).items():
            error.attempts[broker] += f"; {answer}"

    def _pause_before_retry(self, error: ClusterError | UnreachableError, attempts: int) -> float | None:
        """Return the seconds before the next attempt; None if the error must not be retried."""
        advice = None
        if isinstance(error, ClusterError):
            # The call contains the id of a deleted topic, so a retry cannot succeed.
            if not error.retryable or isinstance(error, TopicRecreatedError):
                return None
            advice = error.retry_after_seconds
        return self.settings.backoff.seconds(attempts, clock.chance(), advice)

    async def send_to_any(self, call: Call) -> Answer:
        """Send a call to each address once until a broker answers, starting with the address that answered last.

        A read without an answer after `READ_SECONDS` is also sent to the next address, and the first answer counts: the
        first broker may be silent, or may wait for a silent broker. A broker forwards calls that the controller must
        handle. After a retryable refusal the next call starts with another address: a broker that is cut off from the
        other brokers refuses every call until the connection returns.
        """
        addresses = self._in_order()
        is_read = call.method == "GET"
        if not is_read and len(addresses) > 1 and clock.monotonic() - self._answered_at > SILENT_SECONDS:
            addresses = await self._after_a_read()
        failures: list[UnreachableError] = []
        if is_read and len(addresses) > 1:
            found = await self._first_answer(call, addresses, failures)
        else:
            found = await self._answer_in_turn(call, addresses, failures)
        if isinstance(found, Answer):
            return found
        attempts = {broker: cause for error in failures for broker, cause in error.attempts.items()}
        sent = any(error.side_effect is SideEffect.MAYBE for error in failures)
        raise found or UnreachableError(call.subject, attempts, sent=sent)

    async def _answer_in_turn(
        self, call: Call, addresses: Sequence[str], failures: list[UnreachableError]
    ) -> Answer | Exception | None:
        """Send a call to one address after the other; return the first outcome, and append failures to `failures`.

        The method starts no task, since a task and its end delay a call by several turns of the event loop.
        """
        for broker in addresses:
            outcome = await self._outcome(call, broker)
            if not isinstance(outcome, UnreachableError):
                self._settle(broker, outcome, ())
                return outcome
            failures.append(outcome)
            self._count_silent(broker)
        return None

    async def _first_answer(
        self, call: Call, addresses: Sequence[str], failures: list[UnreachableError]
    ) -> Answer | Exception | None:
        """Send a read to the next address while earlier ones have not answered; return the first outcome."""
        found: Answer | Exception | None = None
        left = deque(addresses)
        asked: dict[asyncio.Task[Answer | Exception], str] = {}
        async with asyncio.TaskGroup() as tasks:
            while found is None and (asked or left):
                if left:
                    broker = left.popleft()
                    asked[tasks.create_task(self._outcome(call, broker))] = broker
                patience = READ_SECONDS if left else None
                done, _ = await asyncio.wait(asked, timeout=patience, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    broker, outcome = asked.pop(task), task.result()
                    if isinstance(outcome, UnreachableError):
                        failures.append(outcome)
                        self._count_silent(broker)
                    elif found is None:
                        found = outcome
                        earlier = addresses[: addresses.index(broker)]
                        self._settle(broker, outcome, [each for each in earlier if each in asked.values()])
            for task in asked:
                task.cancel()
        return found

    async def _outcome(self, call: Call, broker: str) -> Answer | Exception:
        """Send a call to a broker; return the answer or the error."""
        try:
            return await self._send(call, broker, call.headers)
        except Exception as error:  # noqa: BLE001 - raised by the caller
            return error

    def _settle(self, broker: str, outcome: Answer | Exception, waiting: Sequence[str]) -> None:
        """Choose the address of the next call: not a broker that was asked earlier and has not answered."""
        if isinstance(outcome, Answer):
            for silent in waiting:
                self._count_silent(silent)
            self.prefer(broker)
        elif isinstance(outcome, ClusterError) and outcome.retryable:
            self._first = self._addresses.index(broker) + 1
            self._reconnect_if_one()

    async def _after_a_read(self) -> list[str]:
        """Return the addresses after a read, in their new order, which begins with an address that has answered.

        A read is given up soon and sent to the next address. A write that may be under way is not.
        """
        with suppress(ClusterError, UnreachableError):
            await self.send_to_any(_READ)
        return self._in_order()

    async def second_opinion(self, call: Call, first: str) -> Answer | None:
        """Send a call to a broker other than `first`, in rotation; return None unless the call succeeds in time."""
        others = [broker for broker in self._addresses if broker != first and not self._is_silent(broker)]
        if not others:
            self._reconnect_if_one()
            return None
        self._second += 1
        broker = others[self._second % len(others)]
        try:
            async with asyncio.timeout(SECOND_OPINION_SECONDS):
                return await self._send(call, broker, call.headers)
        except (UnreachableError, TimeoutError):
            self._count_silent(broker)
        except ClusterError:
            pass
        return None

    def prefer(self, broker: str) -> None:
        """Start the next call with this address."""
        self._answered_at = clock.monotonic()
        self._silent_until.pop(broker, None)
        addresses = self._addresses
        # The list of brokers may have changed while the broker answered.
        self._first = addresses.index(broker) if broker in addresses else 0

    def move_to(self, addresses: tuple[str, ...]) -> None:
        """Call these bootstrap addresses, of another cluster, from now on."""
        self.settings = replace(self.settings, bootstrap=addresses)
        self.known_brokers = ()
        self._first = 0

    @property
    def _addresses(self) -> list[str]:
        known = () if self.settings.one_address else self.known_brokers
        return list(dict.fromkeys(self.settings.bootstrap + known))

    def _in_order(self) -> list[str]:
        """Return the addresses in the order in which they are tried."""
        addresses = self._addresses
        first = self._first % len(addresses)
        # The stable sort moves brokers that did not answer to the end and keeps the order of the others.
        return sorted(addresses[first:] + addresses[:first], key=self._is_silent)

    def doubt(self, broker: str) -> None:
        """Try a broker that has not answered yet after the other brokers."""
        self._silent_until[broker] = clock.monotonic() + SILENT_SECONDS

    def _count_silent(self, broker: str) -> None:
        self.doubt(broker)
        self._reconnect_if_one()

    def _reconnect_if_one(self) -> None:
        """With `one_address`, send later calls over new connections.

        A load balancer at the address may connect the client to a broker with newer metadata, or to a broker that
        answers.
        """
        if self.settings.one_address and self._pool is not None:
            self._pool.reconnect()

    def _is_silent(self, broker: str) -> bool:
        return self._silent_until.get(broker, 0.0) > clock.monotonic()


def json_call(
    method: str,
    path: str,
    subject: str,
    body: object = None,
    query: Query | None = None,
    headers: Mapping[str, str] | None = None,
) -> Call:
    """Return a call with a JSON body or no body; `headers` are added to the headers for JSON."""
    encoded = None if body is None else msgspec.json.encode(body)
    content = {} if encoded is None else {"content-type": JSON}
    return Call(
        method=method,
        path=path,
        subject=subject,
        query=query or {},
        headers={"accept": JSON, **content, **(headers or {})},
        body=encoded,
    )


def _refusal(
    response: Response, body: memoryview, subject: str, broker: str, token: CallerToken
) -> ClusterError:
    try:
        document = msgspec.json.decode(body, type=dict[str, object])
    except msgspec.DecodeError:
        document = {}
    is_ours = isinstance(document.get("code"), str)
    if not is_ours:
        # The answer came from a proxy or another server.
        document = {
            "status": response.status,
            "detail": f"status {response.status} without a problem document",
        }
    document.setdefault("status", response.status)
    if "retry_after_seconds" not in document and (pause := response.get_header("retry-after")):
        document["retry_after_seconds"] = _seconds(pause)
    problem = ProblemError.from_document(document)  # type: ignore[arg-type]
    if problem.code == "unauthenticated":
        advice = token.advice()
    else:
        advice = PEER_LISTENER if problem.code == "peer_refused" else None if is_ours else NO_BROKER
    return error_of(problem, subject=subject, broker=broker, advice=advice)


def _seconds(retry_after: str) -> float | None:
    """Return `Retry-After` in seconds; return None if the header contains a date, which would require a clock."""
    try:
        return float(retry_after)
    except ValueError:
        return None


def decoded(answer: Answer, type_: type[T], subject: str) -> T:
    """Return the decoded body of an answer; raise the typed error of `internal` if the body cannot be decoded."""
    try:
        return msgspec.json.decode(answer.body, type=type_)
    except msgspec.MsgspecError as error:
        problem = ProblemError("internal", f"the answer cannot be read: {error}")
        advice = None if isinstance(error, msgspec.ValidationError) else NO_BROKER
        raise error_of(problem, subject=subject, broker=answer.broker, advice=advice) from error
