"""Request bodies, read chunk by chunk and never beyond their limits.

Callers: ``call``. A body is stored once: a single chunk is used as received, and several chunks are joined once.
``BodyBudget`` limits the bytes of all request bodies together, because many large concurrent uploads would exhaust the
memory of the process.

``CallLimit`` limits the number of produce calls in progress. The number of calls in progress determines how long each
call waits, and the best number depends on the machine, the batches and the disk. The limit is adjusted to the lag of
the event loop's timers, because every step of a request, including a refusal, waits in the loop's queue. The limit is
increased additively and decreased multiplicatively, like TCP's congestion window (Jacobson 1988). A slow disk alone
does not delay the loop, so it does not lower the limit.

``HeldBodies`` chooses the incomplete body that is aborted when request bodies use all their memory. A client can keep
an incomplete body in memory for as long as the time limits of bodies allow, so a few clients could keep all other
clients out. To choose the body that is aborted, ``HeldBodies`` first compares the bytes held by each client address,
and then the bytes held by each connection from the address of the new request. A body is aborted only if its address
(or connection) holds at least as many bytes as the address (or connection) of the new request would hold.

This code is in one file because a body, the budget that counts bodies and the choice of the body to abort change
together.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from functools import partial
from typing import Final, Protocol, TypeAlias

from fairlead_api.bodies.media_types import CLOUD_EVENT, CLOUD_EVENTS, JSON
from fairlead_api.principals import ANONYMOUS
from fairlead_api.problems import ProblemError
from fairlead_broker.runtime import refusals
from fairlead_broker.runtime.engine.time_limits import TimeLimit, TimeLimits
from fairlead_broker.server.http.asgi import Message, Receive

Client: TypeAlias = tuple[str, int]
"""Address and port of a client, which identify its connection."""
UNKNOWN: Final[Client] = ("", 0)
INTERVAL_SECONDS: Final = 0.05
"""Number of seconds between two measurements of the loop lag: longer than many requests take, and much shorter than the
time limit of a refusal."""
LATE_SECONDS: Final = 0.014
"""Number of seconds of lag above which the event loop counts as late. A refusal takes three or four loop iterations and
must take less than 0.1 s. A lower value reduces goodput: at twice the peak load, 12 ms gave 0.82 to 0.99 of the peak,
and 20 ms gave 0.95 to 1.0 with later refusals."""
CALLS_MIN: Final = 64
"""Minimum of the limit: enough calls to keep the event loop, the disk and the network busy."""
EXCESS_PERCENT: Final = 10
"""Maximum number of calls that are admitted beyond the limit for callers with few calls, in percent of the limit."""
_DECREASE: Final = 0.7
_INCREASE: Final = 16
"""Number by which the limit grows at each measurement; the limit grows from its minimum to 1,000 in three seconds."""


class CallLimit:
    """Counter of calls in progress, with a limit that is adjusted to the lag of the event loop.

    At the limit, a caller with fewer calls in progress than its equal share of the limit is still admitted (rule Q9).
    """

    __slots__ = ("_calls_max", "_excess", "_excess_of", "_under_way", "calls", "limit")

    def __init__(self, calls_max: int) -> None:
        self._calls_max = calls_max
        self.limit = calls_max
        """Current maximum number of concurrent calls."""
        self.calls = 0
        """Number of calls in progress."""
        self._under_way: dict[str, int] = {}
        """Number of calls in progress for each caller that has any."""
        self._excess = 0
        """Number of calls in progress that were admitted beyond the limit. Calls counted by `go_on` are not
        included."""
        self._excess_of: dict[str, int] = {}
        """Number of calls that were admitted beyond the limit, by caller."""

    def observe_lag(self, seconds: float) -> None:
        """Adjust the limit to the measured lag of the event loop."""
        if seconds > LATE_SECONDS:
            # The new limit is derived from the number of calls in progress, which caused the lag; the old limit may be
            # much larger.
            lowered = round(min(self.limit, max(self.calls, CALLS_MIN)) * _DECREASE)
            self.limit = min(self._calls_max, max(CALLS_MIN, lowered))
        else:
            self.limit = min(self._calls_max, self.limit + _INCREASE)

    @property
    def full(self) -> bool:
        """Whether new calls are refused, except calls from callers that have few calls in progress."""
        return self.calls >= self.limit

    def admits(self, caller: str) -> bool:
        """Return whether a further call from a caller is admitted."""
        if self.calls < self.limit:
            return True
        own = self._under_way.get(caller, 0)
        callers = len(self._under_way) + (not own)
        return self._excess * 100 < self.limit * EXCESS_PERCENT and own * callers < self.limit

    def begin(self, caller: str) -> bool:
        """Count a call and return True, or return False when it is not admitted."""
        if not self.admits(caller):
            return False
        if self.calls >= self.limit:
            self._excess += 1
            self._excess_of[caller] = self._excess_of.get(caller, 0) + 1
        self.go_on(caller)
        return True

    def go_on(self, caller: str) -> None:
        """Count a call that was admitted earlier, even if the limit is reached."""
        self.calls += 1
        self._under_way[caller] = self._under_way.get(caller, 0) + 1

    def end(self, caller: str) -> None:
        """Stop counting a call."""
        self.calls -= 1
        _take_one(self._under_way, caller)
        if caller in self._excess_of:
            self._excess -= 1
            _take_one(self._excess_of, caller)


def _take_one(counts: dict[str, int], caller: str) -> None:
    counts[caller] -= 1
    if not counts[caller]:
        del counts[caller]


JSON_TYPES = frozenset({JSON, CLOUD_EVENT, CLOUD_EVENTS})
# Number of bytes of a refused body that are read and discarded so that the client receives the answer. A client that is
# still sending may report the reset of its HTTP/2 stream instead of the answer (curl does). Over HTTP/1.1, a client can
# only be stopped by closing its connection, and most clients then report a broken pipe instead of the answer.
DRAIN_BYTES_MAX = 256 << 10
HTTP1_DRAIN_BYTES_MAX = 64 << 20
DRAIN_SECONDS_MAX = 5.0
DRAIN_IDLE_SECONDS_MAX = 0.5
# Number of seconds after which a call whose body has not begun to arrive is no longer counted. The produce call is
# counted again once its body is complete.
SLOW_BODY_SECONDS = 0.05
# Number of seconds after which a refusal advises a retry: long enough for the queue to drain, short enough not to leave
# the broker idle.
RETRY_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class ProduceBodyLimits:
    """Maximum body sizes of produce calls in bytes.

    JSON has a separate limit because a parsed JSON body takes up ten times its size in memory.
    """

    bytes_max: int
    json_bytes_max: int

    def of(self, media_type: str) -> int:
        """Return the maximum body size for a media type."""
        return self.json_bytes_max if media_type in JSON_TYPES else self.bytes_max


CUT_OFF: Final = "the body ended early or violated its transfer coding"
"""Detail of the problem for an incomplete body."""


class ClientGone(Exception):
    """Raised when the client disconnects before its request is complete, or violates the transfer coding of its body.

    After a violation of the transfer coding, the connection is still open, and the client can read an answer.
    """


@dataclass(frozen=True, slots=True)
class BodyLimits:
    """Limits of request bodies; the settings of the same names document the reasons."""

    bodies_bytes_max: int = 256 << 20
    produce_calls_max: int = 1000
    body_seconds_max: float = 60.0
    body_idle_seconds_max: float = 10.0


class HeldBody(Protocol):
    """An incomplete body with bytes in memory."""

    client: Client
    """Client that sends the body."""
    held_since: float
    """Monotonic time in seconds at which the first byte of the body arrived."""

    def end_early(self) -> None:
        """Return the bytes of the body to the budget and refuse the body."""


class HeldBodies:
    """Incomplete bodies in the order in which they began, with the bytes held by each address and connection."""

    __slots__ = ("_addresses", "_bodies", "_connections")

    def __init__(self) -> None:
        self._bodies: dict[HeldBody, int] = {}
        self._addresses: dict[str, int] = {}
        self._connections: dict[str, dict[int, int]] = {}

    def add(self, body: HeldBody, nbytes: int) -> None:
        """Count further bytes of an incomplete body."""
        address, port = body.client
        self._bodies[body] = self._bodies.get(body, 0) + nbytes
        self._addresses[address] = self._addresses.get(address, 0) + nbytes
        ports = self._connections.setdefault(address, {})
        ports[port] = ports.get(port, 0) + nbytes

    def remove(self, body: HeldBody) -> None:
        """Forget a body that is complete, refused or without bytes in memory."""
        nbytes = self._bodies.pop(body, 0)
        if not nbytes:
            return
        address, port = body.client
        ports = self._connections[address]
        self._addresses[address] -= nbytes
        ports[port] -= nbytes
        if not ports[port]:
            del ports[port]
        if not self._addresses[address]:
            del self._addresses[address], self._connections[address]

    def longest_held(self, client: Client, nbytes: int, since: float) -> HeldBody | None:
        """Return the body to abort to make room for ``nbytes`` of ``client``; None if no body may be aborted.

        If another address holds the most bytes, and at least as many as the client's address would hold with
        ``nbytes``, the result is the body held longest on the largest connection of that address. If no other address
        holds that much, but another connection of the client's address holds the most bytes of that address, and at
        least as many as the client's connection would hold with ``nbytes``, the result is the body held longest on that
        connection. In all other cases, the result is the body held longest of all, if it has been held since ``since``
        (a monotonic time in seconds) or longer.
        """
        address, port = client
        most = max(self._addresses, key=self._addresses.__getitem__, default=address)
        if most != address and self._addresses[most] >= self._addresses.get(address, 0) + nbytes:
            return self._first(most, self._largest_connection(most))
        ports = self._connections.get(address, {})
        if ports:
            largest = self._largest_connection(address)
            if largest != port and ports[largest] >= ports.get(port, 0) + nbytes:
                return self._first(address, largest)
        first = next(iter(self._bodies), None)
        return first if first is not None and first.held_since <= since else None

    def _largest_connection(self, address: str) -> int:
        ports = self._connections[address]
        return max(ports, key=ports.__getitem__)

    def _first(self, address: str, port: int) -> HeldBody:
        return next(body for body in self._bodies if body.client == (address, port))


class BodyBudget:
    """Broker-wide budget for the bytes of request bodies in memory, and limit on the number of produce calls.

    When three quarters of the budget are used, new bodies are refused, so that bodies already being received can be
    completed. Refusing a partly received body instead of a new body would cost as much and help no client, unless the
    client of the body holds more memory than others; in that case, ``HeldBodies`` chooses the body to abort.
    """

    __slots__ = ("calls", "coming", "held", "held_bytes", "limits", "slow", "stopping")

    calls: CallLimit
    """Counter of the produce calls in progress."""

    coming: set[asyncio.Timeout]
    """Timeouts of the reads that currently wait for the next piece of a produce call's body."""

    held: HeldBodies
    """Bodies with bytes in memory that wait for further bytes."""

    def __init__(self, limits: BodyLimits) -> None:
        self.limits = limits
        self.held_bytes = 0
        self.held = HeldBodies()
        self.calls = CallLimit(limits.produce_calls_max)
        self.coming = set()
        self.slow = TimeLimits(min(SLOW_BODY_SECONDS, limits.body_idle_seconds_max, limits.body_seconds_max))
        """Limits after which bodies count as slow."""
        self.stopping = False
        """Whether the broker is stopping and no longer waits for bodies of produce calls."""

    def stop(self) -> None:
        """Refuse every incomplete body of a produce call, because the broker is stopping.

        Bodies of other calls are not refused, because these calls may still be needed during the stop.
        """
        self.stopping = True
        now = asyncio.get_running_loop().time()
        for wait in self.coming:
            if not wait.expired():
                wait.reschedule(now)

    def admit(self, announced_bytes: int, client: Client) -> None:
        """Admit a body of the declared size. Raises ProblemError overloaded, before the body is read."""
        bytes_max = self.limits.bodies_bytes_max
        while self.held_bytes and self.held_bytes + announced_bytes > bytes_max - bytes_max // 4:
            body = self._longest_held(announced_bytes, client)
            if self.held_bytes + announced_bytes <= bytes_max:
                # The last quarter of the memory is also available to clients whose bodies hold fewer bytes than those
                # of others.
                return
            body.end_early()

    def begin_call(self, caller: str) -> None:
        """Count a produce call from a caller until ``end_call``. Raises ProblemError overloaded."""
        if not self.calls.begin(caller):
            raise ProblemError(
                "overloaded",
                f"{self.calls.calls} produce calls are in progress",
                retry_after_seconds=RETRY_SECONDS,
            )

    def end_call(self, caller: str) -> None:
        """Stop counting a produce call from a caller."""
        self.calls.end(caller)

    def take(self, size_bytes: int, client: Client) -> None:
        """Count bytes of a body that are in memory. Raises ProblemError overloaded when the budget is exceeded."""
        while self.held_bytes + size_bytes > self.limits.bodies_bytes_max:
            self._longest_held(size_bytes, client).end_early()
        self.held_bytes += size_bytes

    def give_back(self, size_bytes: int) -> None:
        """Stop counting bytes of a body that are no longer in memory."""
        self.held_bytes -= size_bytes

    def _longest_held(self, size_bytes: int, client: Client) -> HeldBody:
        """Return the body that may be aborted to make room for a body of the client. Raises ProblemError overloaded."""
        now = asyncio.get_running_loop().time()
        body = self.held.longest_held(client, size_bytes, now - self.limits.body_idle_seconds_max)
        if body is None:
            raise ProblemError(
                "overloaded",
                f"request bodies in progress use {self.held_bytes} of {self.limits.bodies_bytes_max} bytes",
                retry_after_seconds=RETRY_SECONDS,
            )
        return body


class BodyReader:
    """Reader of one request's body. The body is read at most once, and ``release`` returns its bytes to the budget."""

    __slots__ = (
        "_aside", "_budget", "_caller", "_counted", "_end", "_ended_bytes", "_produces", "_receive", "_wait",
        "client", "complete", "held_bytes", "held_since", "received_bytes",
    )  # fmt: skip

    def __init__(self, receive: Receive, budget: BodyBudget, client: Client = UNKNOWN) -> None:
        self._receive = receive
        self._budget = budget
        self.client = client
        """Address and port of the client."""
        self.held_bytes = 0
        self.held_since = 0.0
        """Monotonic time from which bytes of the body have been in memory."""
        self.received_bytes = 0
        self.complete = False
        self._counted = False
        self._caller = ANONYMOUS
        """Caller whose number of concurrent calls includes the request."""
        self._aside = False
        self._produces = False
        """Whether the body belongs to a produce call."""
        self._wait: asyncio.Timeout | None = None
        """Timeout of the read that waits for the next piece of the body."""
        self._ended_bytes = 0
        """Number of bytes that the body held when it was aborted in favour of another body; 0 for other bodies."""
        self._end: asyncio.Future[Message] | None = None
        """End message of a body whose announced bytes have all arrived."""

    @property
    def limits(self) -> BodyLimits:
        """Limits of all bodies."""
        return self._budget.limits

    def begin_call(self, caller: str = ANONYMOUS) -> None:
        """Count the request as one of the caller's produce calls until ``release``. Raises ProblemError overloaded."""
        self._budget.begin_call(caller)
        self._caller = caller
        self._counted = self._produces = True

    async def read(
        self, announced_bytes: int | None, bytes_max: int, *, ends_at_length: bool = False
    ) -> bytes:
        """Return the whole body.

        ``announced_bytes`` is the Content-Length, if given, at which the body is complete. ``ends_at_length``: as over
        HTTP/1.1, no end message has to arrive; otherwise, ``ended`` waits for the end message. Raises ProblemError
        body_too_large as soon as more than ``bytes_max`` bytes are announced or received, overloaded, malformed_request
        when the body arrives too slowly, and shutting_down. Raises ClientGone. With ``bytes_max`` 0 the call is never
        refused as overloaded.
        """
        if announced_bytes is not None and announced_bytes > bytes_max:
            announced = f"a body of {announced_bytes} bytes is announced"
            raise _too_large(announced, bytes_max)
        if bytes_max:
            self._budget.admit(announced_bytes or 0, self.client)
        limits = self._budget.limits
        end = asyncio.get_running_loop().time() + limits.body_seconds_max
        slow: TimeLimit | None = None
        try:
            # Nearly all bodies are complete before they count as slow.
            async with asyncio.timeout(None) as pace:
                slow = self._budget.slow.begin(partial(self._set_limits, pace, end))
                self._begin_wait(pace)
                body = await self._read_chunks(
                    announced_bytes, bytes_max, pace, end, ends_at_length=ends_at_length
                )
        except TimeoutError as error:
            self._refuse_ended()
            self._refuse_at_stop()
            arrived = f"{self.received_bytes} bytes of the body arrived, then none for"
            raise ProblemError(
                "malformed_request",
                f"{arrived} {limits.body_idle_seconds_max:g} s; or the body took more than"
                f" {limits.body_seconds_max:g} s",
            ) from error
        finally:
            self._end_wait()
            if slow is not None:
                slow.cancel()
        self._go_on()
        return body

    async def ended(self) -> None:
        """Wait for the end message of a complete body, which an answer must follow.

        Over HTTP/2, a stream that is answered before the client has ended it is reset, and many clients treat the reset
        as a failure. After a thousand late end messages, the HTTP server closes the connection. The end message nearly
        always arrives while the request is carried out, so that it delays no answer. A client that withholds the end
        message occupies no produce call, and its body may be ended early in favour of another.
        """
        end, self._end = self._end, None
        if end is None or end.done():
            return
        self.end_call()
        try:
            async with asyncio.timeout(self._budget.limits.body_idle_seconds_max) as wait:
                self._begin_wait(wait)
                if self.held_bytes:
                    self._budget.held.add(self, self.held_bytes)
                await end
        except TimeoutError:
            pass  # The answer is sent although the client has not ended its stream.
        finally:
            self._end_wait()

    def end_call(self) -> None:
        """Stop counting the request among the produce calls; the same request may call ``begin_call`` again."""
        if self._counted:
            self._counted = False
            self._budget.end_call(self._caller)

    async def next_piece(self) -> bytes:
        """Return the next piece of a streamed body, which may be empty. ``complete`` is true after the last piece.

        Only produce calls stream their bodies. The bytes of the piece are counted until ``keep_only``. Raises
        ProblemError overloaded or shutting_down, and ClientGone.
        """
        self._produces = True
        self._refuse_at_stop()
        try:
            async with asyncio.timeout(None) as wait:
                self._begin_wait(wait)
                if self.held_bytes:
                    self._budget.held.add(self, self.held_bytes)
                piece = await self._next_chunk()
        except TimeoutError:
            self._refuse_ended()
            self._refuse_at_stop()
            raise
        finally:
            self._end_wait()
        self._refuse_ended()
        self._hold(len(piece))
        return piece

    def keep_only(self, size_bytes: int) -> None:
        """Reduce the counted number of bytes of this body in memory to ``size_bytes``."""
        if self._ended_bytes:
            return
        self._budget.give_back(self.held_bytes - size_bytes)
        self.held_bytes = size_bytes
        self.held_since = asyncio.get_running_loop().time()

    def end_early(self) -> None:
        """Return the bytes of an incomplete body to the budget and refuse the body, in favour of another body."""
        self._budget.held.remove(self)
        self._budget.give_back(self.held_bytes)
        self._ended_bytes, self.held_bytes = self.held_bytes, 0
        if self._wait is not None and not self._wait.expired():
            self._wait.reschedule(asyncio.get_running_loop().time())

    async def drain(self, bytes_max: int) -> None:
        """Read and discard the body before a refusal, until its end, a pause, ``bytes_max`` or the time limit."""
        drained = 0
        now = asyncio.get_running_loop().time
        end = now() + DRAIN_SECONDS_MAX
        try:
            # One timer serves all pieces, because most refused bodies are empty and a timer costs microseconds.
            async with asyncio.timeout(DRAIN_IDLE_SECONDS_MAX) as pace:
                while not self.complete and drained < bytes_max:
                    drained += len(await self._next_chunk())
                    if not self.complete:
                        pace.reschedule(min(end, now() + DRAIN_IDLE_SECONDS_MAX))
        except (TimeoutError, ClientGone):
            return

    def release(self) -> None:
        """Return the bytes of the body to the budget and stop counting the request."""
        self._budget.give_back(self.held_bytes)
        self.held_bytes = 0
        self.end_call()

    def _set_limits(self, pace: asyncio.Timeout, end: float) -> None:
        """Set the time limits of a slow body, and stop counting the call while its body arrives."""
        self._stand_aside()
        if self._wait is pace and not pace.expired():
            idle_end = asyncio.get_running_loop().time() + self._budget.limits.body_idle_seconds_max
            pace.reschedule(min(end, idle_end))

    def _stand_aside(self) -> None:
        """Stop counting the call while its body arrives; otherwise slow bodies would block all other calls.

        The bytes of a body that is still arriving count towards the memory budget.
        """
        if self._counted:
            self._budget.calls.end(self._caller)
            self._aside = True
            self._counted = False

    def _go_on(self) -> None:
        """Count the call again as its complete body is processed; from here on, the call cannot be refused."""
        if self._aside:
            self._aside = False
            self._counted = True
            self._budget.calls.go_on(self._caller)

    def _hold(self, nbytes: int) -> None:
        """Count received bytes. Raises ProblemError overloaded."""
        self._budget.take(nbytes, self.client)
        if not self.held_bytes:
            self.held_since = asyncio.get_running_loop().time()
        self.held_bytes += nbytes

    def _begin_wait(self, wait: asyncio.Timeout) -> None:
        """Register the wait for the next piece, so that the budget can end the wait."""
        self._wait = wait
        if self._produces:
            self._budget.coming.add(wait)

    def _end_wait(self) -> None:
        self._budget.held.remove(self)
        if self._wait is not None:
            self._budget.coming.discard(self._wait)
            self._wait = None

    def _refuse_ended(self) -> None:
        """Raise overloaded if the body was aborted to free memory for another body."""
        if self._ended_bytes:
            raise ProblemError(
                "overloaded",
                "the memory for request bodies is full; this body of "
                f"{self._ended_bytes} bytes was ended in favour of another",
                retry_after_seconds=RETRY_SECONDS,
            )

    def _refuse_at_stop(self) -> None:
        """Raise shutting_down for the body of a produce call when the broker is stopping."""
        if self._produces and self._budget.stopping:
            raise refusals.shutting_down()

    async def _read_chunks(
        self,
        announced_bytes: int | None,
        bytes_max: int,
        pace: asyncio.Timeout,
        end: float,
        *,
        ends_at_length: bool,
    ) -> bytes:
        chunks: list[bytes] = []
        try:
            await self._read_into(
                chunks, announced_bytes, bytes_max, pace, end, ends_at_length=ends_at_length
            )
            return chunks[0] if len(chunks) == 1 else b"".join(chunks)
        finally:
            # The traceback of a refusal keeps this frame alive while the rest of the body is drained.
            chunks.clear()

    async def _read_into(
        self,
        chunks: list[bytes],
        announced_bytes: int | None,
        bytes_max: int,
        pace: asyncio.Timeout,
        end: float,
        *,
        ends_at_length: bool,
    ) -> None:
        size = 0
        loop = asyncio.get_running_loop()
        idle_seconds_max = self._budget.limits.body_idle_seconds_max
        while not self.complete:
            self._refuse_at_stop()
            if chunks and size != announced_bytes:
                self._stand_aside()
                if pace.when() is not None:
                    pace.reschedule(min(end, loop.time() + idle_seconds_max))
            chunk = await self._next_chunk()
            if not chunk:
                continue
            size += len(chunk)
            if size > bytes_max:
                raise _too_large("the body is longer", bytes_max)
            self._refuse_ended()
            self._hold(len(chunk))
            chunks.append(chunk)
            if size == announced_bytes and not self.complete:
                # The end of the body is a separate message. Waiting for the end message would add a tenth to the time
                # of a small call.
                self.complete = True
                if not ends_at_length:
                    self._end = asyncio.ensure_future(self._receive())  # noqa: TID251 - granian returns a future, so no task starts
            if not self.complete:
                self._budget.held.add(self, len(chunk))

    async def _next_chunk(self) -> bytes:
        message = await self._receive()
        if message["type"] != "http.request":
            raise ClientGone
        self.complete = not message.get("more_body", False)
        chunk: bytes = message.get("body", b"")
        self.received_bytes += len(chunk)
        return chunk


def _too_large(what: str, bytes_max: int) -> ProblemError:
    return ProblemError(
        "body_too_large",
        f"{what}; this call accepts at most {bytes_max} bytes",
        data={"limit_bytes": bytes_max},
    )
