"""Request bodies, read chunk by chunk and never beyond their limits.

Callers: ``call``. A body is held once: one chunk is used as received, several chunks are joined a single time. The
bytes of all requests together are bounded too (``BodyBudget``), since many large uploads at once would end the process.

``CallLimit`` bounds the produce calls under way. Their number decides how long each waits, and the right number depends
on the machine, the batches and the disk. The limit follows how late the event loop wakes a timer, since every step of a
request, its refusal too, waits in the same queue: additive increase and multiplicative decrease, as TCP does with its
window (Jacobson 1988). A slow disk alone leaves the loop on time; then the largest limit holds.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Final

from fairlead_api.bodies.media_types import CLOUD_EVENT, CLOUD_EVENTS, JSON
from fairlead_api.problems import ProblemError
from fairlead_broker.runtime import refusals
from fairlead_broker.server.http.asgi import Receive

INTERVAL_SECONDS: Final = 0.05
"""Between two looks at the loop: many requests long, and much shorter than the time in which a refusal is due."""
LATE_SECONDS: Final = 0.014
"""From here on the loop is late: a refusal takes three or four of its turns, and is to take less than 0.1 s. Lower
and goodput falls: 12 ms brought 0.82 to 0.99 of the peak at twice the load, 20 ms 0.95 to all of it with later
refusals."""
CALLS_MIN: Final = 64
"""Enough to keep loop, disk and network busy at once."""
_DECREASE: Final = 0.7
_INCREASE: Final = 16
"""From the least to 1,000 in three seconds."""


class CallLimit:
    """Counts calls under way against a limit that follows the loop's lag."""

    __slots__ = ("_calls_max", "calls", "limit")

    def __init__(self, calls_max: int) -> None:
        self._calls_max = calls_max
        self.limit = calls_max
        """How many are let in at the moment."""
        self.calls = 0
        """How many are under way."""

    def observe_lag(self, seconds: float) -> None:
        """Adjust the limit to the measured lag of the event loop."""
        if seconds > LATE_SECONDS:
            # Not what the limit was but what was under way made it late.
            lowered = round(min(self.limit, max(self.calls, CALLS_MIN)) * _DECREASE)
            self.limit = min(self._calls_max, max(CALLS_MIN, lowered))
        else:
            self.limit = min(self._calls_max, self.limit + _INCREASE)

    @property
    def full(self) -> bool:
        """Return whether another call would be refused."""
        return self.calls >= self.limit

    def begin(self) -> bool:
        """Count a call, if it may be let in."""
        if self.calls >= self.limit:
            return False
        self.calls += 1
        return True

    def go_on(self) -> None:
        """Count a call that was let in before."""
        self.calls += 1

    def end(self) -> None:
        """Count a call no more."""
        self.calls -= 1


JSON_TYPES = frozenset({JSON, CLOUD_EVENT, CLOUD_EVENTS})
# What is read and thrown away of a refused body, so that the answer arrives. A client that is still sending may take
# the reset of its HTTP/2 stream for the answer (curl does). On HTTP/1.1 the only way to stop it is to close the
# connection, and most clients then report a broken pipe rather than the answer that they were sent.
DRAIN_BYTES_MAX = 256 << 10
HTTP1_DRAIN_BYTES_MAX = 64 << 20
DRAIN_SECONDS_MAX = 5.0
DRAIN_IDLE_SECONDS_MAX = 0.5
# A body that has not begun to come by then is counted among the calls again when it is there.
SLOW_BODY_SECONDS = 0.05
# Advised wait after a refusal: long enough for a queue to drain, short enough not to idle.
RETRY_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class ProduceBodyLimits:
    """Largest bodies of produce calls in bytes, by what they cost: JSON grows ten-fold when it is parsed."""

    bytes_max: int
    json_bytes_max: int

    def of(self, media_type: str) -> int:
        """The limit of a media type."""
        return self.json_bytes_max if media_type in JSON_TYPES else self.bytes_max


class ClientGone(Exception):
    """The client went away before its request was complete: no answer can be sent."""


@dataclass(frozen=True, slots=True)
class BodyLimits:
    """Limits of request bodies; the settings of the same names say why."""

    bodies_bytes_max: int = 256 << 20
    produce_calls_max: int = 1000
    body_seconds_max: float = 60.0
    body_idle_seconds_max: float = 10.0


class BodyBudget:
    """Bytes of request bodies held by all requests of the broker together, and how many produce calls there are.

    From three quarters on new bodies are refused, so that bodies under way can be completed: refusing a body in the
    middle costs the same and helps no caller.
    """

    __slots__ = ("calls", "coming", "held_bytes", "limits", "stopping")

    calls: CallLimit
    """The produce calls under way."""

    coming: set[asyncio.Timeout]
    """What ends the wait for the next piece of each body of a produce call."""

    def __init__(self, limits: BodyLimits) -> None:
        self.limits = limits
        self.held_bytes = 0
        self.calls = CallLimit(limits.produce_calls_max)
        self.coming = set()
        self.stopping = False
        """Whether the broker stops, so that no body of a produce call is worth waiting for."""

    def stop(self) -> None:
        """Refuse every body of a produce call that is not whole yet; those of other calls may still be needed."""
        self.stopping = True
        now = asyncio.get_running_loop().time()
        for wait in self.coming:
            if not wait.expired():
                wait.reschedule(now)

    def admit(self, announced_bytes: int) -> None:
        """Let a body in that announces so many bytes, or raise ProblemError overloaded before it is read."""
        bytes_max = self.limits.bodies_bytes_max
        if self.held_bytes and self.held_bytes + announced_bytes > bytes_max - bytes_max // 4:
            raise self._overloaded()

    def begin_call(self) -> None:
        """Count a produce call until ``end_call``. Raises ProblemError overloaded."""
        if not self.calls.begin():
            raise ProblemError(
                "overloaded",
                f"{self.calls.calls} produce calls are under way",
                retry_after_seconds=RETRY_SECONDS,
            )

    def end_call(self) -> None:
        """Count a produce call no more."""
        self.calls.end()

    def take(self, size_bytes: int) -> None:
        """Add bytes to the held ones, or raise ProblemError overloaded."""
        if self.held_bytes + size_bytes > self.limits.bodies_bytes_max:
            raise self._overloaded()
        self.held_bytes += size_bytes

    def give_back(self, size_bytes: int) -> None:
        """Subtract bytes from the held ones."""
        self.held_bytes -= size_bytes

    def _overloaded(self) -> ProblemError:
        return ProblemError(
            "overloaded",
            f"requests in progress hold {self.held_bytes} of {self.limits.bodies_bytes_max} bytes for bodies",
            retry_after_seconds=RETRY_SECONDS,
        )


class BodyReader:
    """The body of one request; read at most once, then ``release`` gives its bytes back to the budget."""

    __slots__ = (
        "_aside", "_budget", "_counted", "_produces", "_receive", "complete", "held_bytes", "received_bytes",
    )  # fmt: skip

    def __init__(self, receive: Receive, budget: BodyBudget) -> None:
        self._receive = receive
        self._budget = budget
        self.held_bytes = 0
        self.received_bytes = 0
        self.complete = False
        self._counted = False
        self._aside = False
        self._produces = False
        """Whether the body is that of a produce call."""

    def begin_call(self) -> None:
        """Count the request among the produce calls until ``release``. Raises ProblemError overloaded."""
        self._budget.begin_call()
        self._counted = self._produces = True

    async def read(
        self, announced_bytes: int | None, bytes_max: int, *, ends_at_length: bool = False
    ) -> bytes:
        """The whole body.

        ``announced_bytes`` is content-length, where given; ``ends_at_length`` says that the body ends there, as over
        HTTP/1.1, whatever else may come. Raises ProblemError body_too_large as soon as more
        than ``bytes_max`` is announced or has come, overloaded, malformed_request when it trickles, or shutting_down;
        ClientGone. No body at all (0) is never too much for the broker.
        """
        if announced_bytes is not None and announced_bytes > bytes_max:
            announced = f"a body of {announced_bytes} bytes is announced"
            raise _too_large(announced, bytes_max)
        if bytes_max:
            self._budget.admit(announced_bytes or 0)
        limits = self._budget.limits
        now = asyncio.get_running_loop().time
        end = now() + limits.body_seconds_max
        slow = self._counted and asyncio.get_running_loop().call_later(SLOW_BODY_SECONDS, self._stand_aside)
        try:
            async with asyncio.timeout_at(min(end, now() + limits.body_idle_seconds_max)) as pace:
                if self._produces:
                    self._budget.coming.add(pace)
                body = await self._read_chunks(
                    announced_bytes if ends_at_length else None, bytes_max, pace, end
                )
        except TimeoutError as error:
            self._refuse_at_stop()
            arrived = f"{self.received_bytes} bytes of the body arrived, and then none for"
            raise ProblemError(
                "malformed_request",
                f"{arrived} {limits.body_idle_seconds_max:g} s, or not all within {limits.body_seconds_max:g} s",
            ) from error
        finally:
            self._budget.coming.discard(pace)
            if slow:
                slow.cancel()
        self._go_on()
        return body

    def end_call(self) -> None:
        """Count the request among the produce calls no more; it may begin another one."""
        if self._counted:
            self._counted = False
            self._budget.end_call()

    async def next_piece(self) -> bytes:
        """The next piece of a body that is read as it comes, perhaps empty; ``complete`` says whether it was the last.

        Only produce calls read so. Its bytes are held until ``keep_only``. Raises ProblemError overloaded or
        shutting_down, and ClientGone.
        """
        self._produces = True
        self._refuse_at_stop()
        try:
            async with asyncio.timeout(None) as wait:
                self._budget.coming.add(wait)
                piece = await self._next_chunk()
        except TimeoutError:
            self._refuse_at_stop()
            raise
        finally:
            self._budget.coming.discard(wait)
        self._budget.take(len(piece))
        self.held_bytes += len(piece)
        return piece

    def keep_only(self, size_bytes: int) -> None:
        """Hold no more than so many of the bytes that have come."""
        self._budget.give_back(self.held_bytes - size_bytes)
        self.held_bytes = size_bytes

    async def drain(self, bytes_max: int) -> None:
        """Read on before a refusal is sent, until the end, ``bytes_max``, a pause or the time limit."""
        drained = 0
        try:
            async with asyncio.timeout(DRAIN_SECONDS_MAX):
                while not self.complete and drained < bytes_max:
                    async with asyncio.timeout(DRAIN_IDLE_SECONDS_MAX):
                        drained += len(await self._next_chunk())
        except (TimeoutError, ClientGone):
            return

    def release(self) -> None:
        """The bytes are no longer needed."""
        self._budget.give_back(self.held_bytes)
        self.held_bytes = 0
        self.end_call()

    def _stand_aside(self) -> None:
        """Count no more while the body is coming, which its bytes bound: slow ones would keep all others out."""
        if self._counted:
            self._budget.calls.end()
            self._aside = True
            self._counted = False

    def _go_on(self) -> None:
        """Count again, now that the work begins; what has come so far is not refused any more."""
        if self._aside:
            self._aside = False
            self._counted = True
            self._budget.calls.go_on()

    def _refuse_at_stop(self) -> None:
        """Raise shutting_down for the body of a produce call once the broker stops."""
        if self._produces and self._budget.stopping:
            raise refusals.shutting_down()

    async def _read_chunks(
        self, ends_at: int | None, bytes_max: int, pace: asyncio.Timeout, end: float
    ) -> bytes:
        chunks: list[bytes] = []
        size = 0
        loop = asyncio.get_running_loop()
        idle_seconds_max = self._budget.limits.body_idle_seconds_max
        while not self.complete:
            self._refuse_at_stop()
            if chunks:
                self._stand_aside()
                pace.reschedule(min(end, loop.time() + idle_seconds_max))
            chunk = await self._next_chunk()
            if not chunk:
                continue
            size += len(chunk)
            if size > bytes_max:
                raise _too_large("the body is longer", bytes_max)
            self._budget.take(len(chunk))
            self.held_bytes = size
            chunks.append(chunk)
            if size == ends_at:
                # The end comes as a message of its own, which would cost a small call a tenth of its time. Over HTTP/2
                # it has to: a stream that is answered before its client has ended it is reset, which many clients take
                # for a failure, and after a thousand late ends the server closes the connection.
                self.complete = True
        return chunks[0] if len(chunks) == 1 else b"".join(chunks)

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
        f"{what}; this call takes at most {bytes_max} bytes",
        data={"limit_bytes": bytes_max},
    )
