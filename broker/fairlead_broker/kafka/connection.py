"""One connection of a Kafka client: requests run concurrently, and responses are sent in request order.

`listener` creates a connection for each accepted socket. A connection stops reading while it has the allowed number of
requests in progress, while the memory for requests is used up, or while its client does not read responses. This module
must not depend on the meaning of requests.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Protocol, TypeAlias, cast

import structlog

from fairlead_broker.kafka.calls.call import Client, CloseConnection
from fairlead_broker.kafka.frame_budget import SMALL_FRAME_BYTES, FrameBudget
from fairlead_broker.kafka.protocol.frames import Frame, FrameReader
from fairlead_broker.kafka.protocol.messages import UndecodableError

REQUESTS_MAX: Final = 10
"""Maximum number of requests in progress on one connection; Kafka's producers send at most five at once by default."""
PIECE_BYTES_MAX: Final = 256 << 10
"""Maximum number of bytes of a response that are passed to the socket at once. The rest of the response stays counted
in the memory for responses, and the connection learns whether the client reads."""
WRITE_BUFFER_BYTES: Final = 64 << 10
"""Number of bytes in the write buffer of a socket above which no more pieces of responses are passed to the socket."""
LOOK_SECONDS_MIN: Final = 1.0
"""Minimum number of seconds between two checks of a connection's time limits."""

Buffer: TypeAlias = bytes | bytearray | memoryview
Noted: TypeAlias = Callable[[tuple[str, str], bool], None]
"""Function that is called with host and port of a client, and whether it is authenticated."""

_log = structlog.get_logger("fairlead.kafka")


class Answer(Protocol):
    """Response of one request, ready to be sent."""

    buffers: Sequence[Buffer]

    @property
    def closes(self) -> bool:
        """Whether the connection is closed after the response."""
        ...

    def waits(self, cut: Callable[[], None]) -> None:
        """Note that the response waits for the client to read, or that the client has read a part of the response.

        `cut` closes the connection, and is called if the memory for responses is needed.
        """

    def sent(self) -> None:
        """Release the resources of the response; called once, when its bytes have left the broker or are dropped."""


class Service(Protocol):
    """Execution of the requests of all connections."""

    def client(self, address: str, port: int, names: Sequence[tuple[str, str]]) -> Client:
        """Return the client of a new connection; `names`: kind and value of each name in its verified certificate."""
        ...

    async def serve(self, frame: Frame, client: Client) -> Answer | None:
        """Execute a request and return its response; None for a request without a response.

        Raises `CloseConnection` or `UndecodableError` if the connection must be closed.
        """
        ...

    def gone(self, client: Client) -> None:
        """Forget the client of a connection that has ended."""


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """Limits of one connection; most are documented with the settings of the same names."""

    request_body_bytes_max: int
    """Maximum size of a Produce request in bytes."""
    body_seconds_max: float
    body_idle_seconds_max: float
    reader_stall_seconds_max: float
    first_request_seconds_max: float
    """Maximum time from the opening of a connection until its first request is complete."""
    idle_seconds_max: float = 600.0
    """Time after which a connection without a request or a response is closed: Kafka's `connections.max.idle.ms`."""


@dataclass(slots=True)
class _UnderWay:
    """Request whose response is not sent completely yet."""

    task: asyncio.Task[Answer | None]
    reserved: int
    """Number of bytes that the request has reserved in the budget."""
    pieces: Iterator[Sequence[Buffer]] | None = None
    """Pieces of the response that are not passed to the socket yet; None before the first piece."""


class Connection(asyncio.Protocol):
    """Connection of one client."""

    def __init__(
        self,
        service: Service,
        budget: FrameBudget,
        limits: ConnectionLimits,
        opened: Callable[[Connection], bool],
        closed: Callable[[Connection], None],
        noted: Noted,
    ) -> None:
        """`opened` is called with the new connection and returns whether the connection may stay open.

        `noted` is called when the first request has arrived, whose answer may take long, and after the first request of
        an authenticated client.
        """
        self._service = service
        self._budget = budget
        self._limits = limits
        self._opened = opened
        self._closed = closed
        self._noted = noted
        self._noted_as: bool | None = None
        """Whether the client was noted as authenticated; None if it was not noted yet."""
        self._reader = FrameReader(limits.request_body_bytes_max)
        self._transport: asyncio.Transport | None = None
        self._client = Client("", 0)
        self._under_way: deque[_UnderWay] = deque()
        """Requests in progress, in order of arrival."""
        self._reserved = 0
        """Bytes reserved for the request that is arriving."""
        self._waits_for_memory = False
        self._can_write = True
        self._is_reading = True
        self._is_ending = False
        """Whether no further request is started; the connection is closed after its last response."""
        self._timer: asyncio.TimerHandle | None = None
        self._has_request = False
        self._opened_at = 0.0
        """Time at which the connection was opened."""
        self._moved_at = 0.0
        """Time of the last received bytes or sent response."""
        self._frame_since: float | None = None
        """Time at which the incomplete request began to arrive; None if no request is incomplete."""

    # -- socket events

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start to read, unless the listener has too many connections."""
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(WRITE_BUFFER_BYTES)
        address = transport.get_extra_info("peername") or ("", 0)
        certificate = transport.get_extra_info("peercert") or {}
        names = certificate.get("subjectAltName", ())
        self._client = self._service.client(str(address[0]), int(address[1]), names)
        if not self._opened(self):
            self._transport.abort()
            return
        loop = asyncio.get_running_loop()
        self._opened_at = self._moved_at = loop.time()
        self._timer = loop.call_at(self._moved_at + self._limits.first_request_seconds_max, self._look)

    def data_received(self, data: bytes) -> None:
        """Take received bytes and start the requests that are complete."""
        self._moved_at = asyncio.get_running_loop().time()
        self._reader.feed(data)
        self._begin_requests()

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the requests in progress, because their responses can no longer be sent."""
        del exc
        self._is_ending = True
        if self._timer is not None:
            self._timer.cancel()
        self._service.gone(self._client)
        self._budget.forget(self._begin_reserved)
        self._budget.give_back(self._reserved)
        self._reserved = 0
        while self._under_way:
            each = self._under_way.popleft()
            each.task.cancel()
            self._drop(each)
        self._closed(self)

    def pause_writing(self) -> None:
        """Send no more responses while the client does not read."""
        self._can_write = False
        self._set_timer(self._moved_at + self._limits.reader_stall_seconds_max)
        self._note_waiting()
        self._balance()

    def resume_writing(self) -> None:
        """Continue to send responses."""
        self._can_write = True
        self._send_answers()

    # -- end

    def end(self) -> None:
        """Start no further request, and close the connection after the last response."""
        self._is_ending = True
        self._balance()
        if not self._under_way:
            self._close()

    def abort(self) -> None:
        """Close the connection at once."""
        if self._transport is not None:
            self._transport.abort()

    # -- requests

    def _begin_requests(self) -> None:
        try:
            while self._may_begin:
                self._reader.is_limited = not self._client.is_known
                size = self._reader.announced_bytes()
                if size is None or not self._reserve(size):
                    break
                frame = self._reader.next_frame()
                if frame is None:
                    self._note_incomplete()
                    break
                self._begin(frame)
        except UndecodableError as error:
            self._refuse(error)
        self._balance()

    @property
    def _may_begin(self) -> bool:
        return (
            not self._is_ending
            and not self._waits_for_memory
            and self._can_write
            and len(self._under_way) < REQUESTS_MAX
        )

    def _reserve(self, size: int) -> bool:
        """Return whether the memory for the arriving request is reserved; if not, wait for the memory."""
        if self._reserved or size <= SMALL_FRAME_BYTES:
            return True
        if self._budget.take(size, self._begin_reserved):
            self._reserved = size
            return True
        self._waits_for_memory = True
        return False

    def _begin_reserved(self) -> None:
        """Continue with the request for which memory has now been reserved."""
        self._waits_for_memory = False
        self._reserved = self._reader.announced_bytes() or 0
        self._moved_at = asyncio.get_running_loop().time()
        self._begin_requests()

    def _note_incomplete(self) -> None:
        if self._frame_since is None:
            self._frame_since = self._moved_at
            self._set_timer(self._deadline())

    def _begin(self, frame: Frame) -> None:
        self._has_request = True
        self._frame_since = None
        self._note_client()
        task = asyncio.get_running_loop().create_task(self._run(frame), name="kafka-request")
        self._under_way.append(_UnderWay(task, self._reserved))
        self._reserved = 0
        task.add_done_callback(self._done)

    async def _run(self, frame: Frame) -> Answer | None:
        return await self._service.serve(frame, self._client)

    def _done(self, task: asyncio.Task[Answer | None]) -> None:
        del task
        self._send_answers()
        self._note_waiting()

    def _send_answers(self) -> None:
        """Send the responses that are next in order."""
        while self._under_way and self._under_way[0].task.done() and self._can_write:
            each = self._under_way[0]
            if each.task.cancelled() or (error := each.task.exception()) is not None:
                self._drop(self._under_way.popleft())
                self._fail(None if each.task.cancelled() else error)
                return
            answer = each.task.result()
            self._note_client()
            if answer is not None and not self._send(each, answer):
                return
            self._drop(self._under_way.popleft())
            if answer is not None and answer.closes:
                self._close()
                return
        if self._is_ending and not self._under_way:
            self._close()
        else:
            self._begin_requests()

    def _note_client(self) -> None:
        client = self._client
        if client.is_known is not self._noted_as:
            self._noted_as = client.is_known
            self._noted((client.address, str(client.port)), client.is_known)

    def _send(self, each: _UnderWay, answer: Answer) -> bool:
        """Pass a response to the socket, from its next piece, until the client does not read.

        Return whether the response needs no more memory: nearly all of its bytes have left the broker, or none will.
        """
        transport = self._transport
        assert transport is not None, "a request came over a transport"
        if each.pieces is None:
            each.pieces = _pieces(answer.buffers)
        for piece in each.pieces:
            if transport.is_closing():
                return True
            transport.writelines(piece)
            self._moved_at = asyncio.get_running_loop().time()
            if not self._can_write:
                return False
        return True

    def _note_waiting(self) -> None:
        """Let the connection be closed if others need the memory of responses that are ready but not sent."""
        for each in self._under_way:
            if each.task.done() and not each.task.cancelled() and each.task.exception() is None:
                answer = each.task.result()
                if answer is not None:
                    answer.waits(self.abort)

    def _drop(self, each: _UnderWay) -> None:
        """Release the resources of a request and its response, even if the request has not ended yet."""
        self._budget.give_back(each.reserved)
        each.task.add_done_callback(_release)

    def _fail(self, error: BaseException | None) -> None:
        """Close the connection, because a request cannot be answered."""
        if isinstance(error, UndecodableError | CloseConnection):
            self._refuse(error)
            return
        self._close()
        if error is not None:
            raise error

    def _refuse(self, error: UndecodableError | CloseConnection) -> None:
        _log.info("kafka connection closed", client=self._client.address, reason=str(error))
        self._close()

    def _close(self) -> None:
        self._is_ending = True
        if self._transport is not None:
            self._transport.close()

    def _balance(self) -> None:
        """Read from the socket if another request may begin; otherwise stop reading."""
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        wants = self._may_begin
        if wants and not self._is_reading:
            self._is_reading = True
            transport.resume_reading()
        elif not wants and self._is_reading:
            self._is_reading = False
            transport.pause_reading()

    # -- time limits

    def _deadline(self) -> float:
        """Return the time at which the connection is closed unless it makes progress."""
        limits, moved = self._limits, self._moved_at
        if not self._can_write:
            return moved + limits.reader_stall_seconds_max
        if not self._has_request:
            # Bytes do not extend the time, so that a stranger cannot keep a connection by sending byte after byte.
            return self._opened_at + limits.first_request_seconds_max
        if self._frame_since is not None:
            return min(self._frame_since + limits.body_seconds_max, moved + limits.body_idle_seconds_max)
        return moved + limits.idle_seconds_max

    def _look(self) -> None:
        loop = asyncio.get_running_loop()
        deadline = self._deadline()
        # A client is not late while the broker does not read from the connection because of a request in progress or a
        # lack of memory.
        if loop.time() < deadline or (self._can_write and not self._may_begin):
            self._timer = loop.call_at(max(deadline, loop.time() + LOOK_SECONDS_MIN), self._look)
        elif self._can_write and self._under_way and self._frame_since is None:
            self._timer = loop.call_at(loop.time() + self._limits.idle_seconds_max, self._look)
        elif self._can_write and self._has_request and self._frame_since is None:
            self._close()
        else:
            _log.info("kafka connection closed", client=self._client.address, reason="the client is too slow")
            self.abort()

    def _set_timer(self, when: float) -> None:
        """Check the time limits no later than the given time."""
        if self._timer is None or when < self._timer.when():
            if self._timer is not None:
                self._timer.cancel()
            self._timer = asyncio.get_running_loop().call_at(when, self._look)


def _pieces(buffers: Sequence[Buffer]) -> Iterator[Sequence[Buffer]]:
    """Yield the bytes of a response in pieces of at most `PIECE_BYTES_MAX`, without copying them."""
    piece: list[Buffer] = []
    room = PIECE_BYTES_MAX
    for buffer in buffers:
        view = memoryview(buffer)
        while len(view) > room:
            yield [*piece, view[:room]]
            view, piece, room = view[room:], [], PIECE_BYTES_MAX
        piece.append(view)
        room -= len(view)
    yield piece


def _release(task: asyncio.Task[Answer | None]) -> None:
    """Release the resources of a response whose request has ended."""
    if not task.cancelled() and task.exception() is None and (answer := task.result()) is not None:
        answer.sent()
