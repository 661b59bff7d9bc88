"""A watch that survives broken streams: it continues on another member at the next revision, without gaps or repeats.

`client` creates watches. One task reads the stream into a bounded buffer, so that a cancelled or slow reader neither
breaks the stream nor fills the memory. etcd orders all events by revision and keeps them until they are compacted, so
the watch continues at exactly the next revision. If the next revision is compacted, the watch ends with `Compacted`,
and its owner must list the keys again.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final, NoReturn, Self

import grpc
import structlog

from fairlead_api.identifiers import Revision
from fairlead_broker.coordination.etcd import etcd_pb2 as messages
from fairlead_broker.coordination.etcd.calls import WATCH
from fairlead_broker.coordination.etcd.failures import BREAKS, StreamBroken, judge
from fairlead_broker.coordination.etcd.member import Member, Metadata
from fairlead_broker.coordination.etcd.members import CLOSED, Members
from fairlead_broker.coordination.etcd.progress import ProgressRequests
from fairlead_broker.coordination.etcd.translation import key_range, watch_batches
from fairlead_broker.coordination.protocol import (
    Compacted,
    CoordinationClosed,
    CoordinationUnavailable,
    WatchBatch,
)

BUFFERED_BATCHES_MAX: Final = 256
"""Maximum number of revisions that are buffered for a slow reader. While the buffer is full, the stream is not read and
etcd keeps the events.
"""
REOPEN_SECONDS: Final = 0.05
"""Seconds before a broken stream is opened again, in case a member ends each stream immediately."""
ENDED: Final = "the stream was ended"
SILENT: Final = "it does not report its progress"
PROGRESS_REQUEST: Final = messages.WatchRequest(progress_request=messages.WatchProgressRequest())

_log = structlog.get_logger("fairlead.coordination")

_Stream = grpc.aio.StreamStreamCall[messages.WatchRequest, messages.WatchResponse]


class EtcdWatch:
    """Watch at a position in etcd's history, with the interface `protocol.Watch`."""

    def __init__(
        self,
        members: Members,
        prefix: str,
        from_revision: Revision,
        forget: Callable[[EtcdWatch], None],
    ) -> None:
        loop = asyncio.get_running_loop()
        self._members = members
        self._prefix = prefix
        self._next = Revision(max(1, from_revision))
        """Next revision to be delivered."""
        self._oldest: Revision | None = None
        """Oldest readable revision, if etcd has reported it."""
        self._forget = forget
        self._buffer: deque[WatchBatch] = deque()
        self._fragments: list[messages.Event] = []
        self._progress = ProgressRequests(members.patience.silence_seconds)
        self._news = asyncio.Event()
        """Event that is set when the buffer has a new batch or the watch ends."""
        self._room = asyncio.Event()
        self._bell: asyncio.Future[None] = loop.create_future()
        """Future that wakes the reading task to send a progress request."""
        self._failure: BaseException | None = None
        self._cancelled = False
        self._task = loop.create_task(self._run(), name=f"etcd watch of {prefix}")
        self._task.add_done_callback(self._ended)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> WatchBatch:
        while True:
            if self._cancelled:
                raise StopAsyncIteration
            if self._members.closed:
                raise CoordinationClosed(CLOSED)
            if self._buffer:
                self._room.set()
                return self._buffer.popleft()
            if self._failure is not None:
                raise self._failure
            self._news.clear()
            await self._news.wait()

    async def request_progress(self) -> None:
        """Request a batch without events at the store's revision."""
        self._progress.wish()
        if not self._bell.done():
            self._bell.set_result(None)

    async def cancel(self) -> None:
        """End the iteration and the stream."""
        self._cancelled = True
        await self.close()

    async def close(self) -> None:
        """End the stream."""
        self._forget(self)
        self._task.cancel()
        self._news.set()
        await asyncio.wait([self._task])

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._forget(self)
        if task.cancelled():
            self._failure = CoordinationUnavailable(
                f"the watch of {self._prefix} ended because its connection was closed"
            )
        else:
            self._failure = task.exception()
        self._news.set()

    async def _run(self) -> None:
        """Read the watch's stream, and open a new stream when it breaks. Raises the error that ends the watch."""
        while True:
            member, stream = await self._members.run(self._open)
            try:
                await self._follow(member, stream)
            except BREAKS as error:
                reason = judge(error).reason
            finally:
                stream.cancel()
            self._fragments.clear()
            _log.info(
                "watch reopened at another member",
                prefix=self._prefix,
                member=member.url,
                reason=reason,
                revision=self._next,
            )
            # The pause limits the rate of requests to a member that ends every stream immediately.
            await asyncio.sleep(REOPEN_SECONDS)  # noqa: TID251

    async def _open(self, member: Member, metadata: Metadata, limit_seconds: float) -> tuple[Member, _Stream]:
        """Create the watch at one member, and wait until the member confirms it."""
        stream = member.stream(WATCH, metadata)
        try:
            async with asyncio.timeout(limit_seconds):
                await stream.write(self._create_request())
                response = await stream.read()
            if not isinstance(response, messages.WatchResponse):
                raise StreamBroken(ENDED)
            self._members.check_cluster(member, response)
            if response.canceled:
                raise StreamBroken(self._cancel_reason(response))
        except BaseException:
            stream.cancel()
            raise
        return member, stream

    def _create_request(self) -> messages.WatchRequest:
        """Return a request for a watch that starts one revision before the next revision to deliver.

        etcd reports the progress of a watch only when the store has reached the watch's first revision. The watch
        therefore starts one revision earlier: a watch that is created right after a list can then request progress
        immediately. Events of the earlier revision are left out.
        """
        key, range_end = key_range(self._prefix)
        start = max(1, self._next - 1)
        if self._oldest is not None and start < self._oldest <= self._next:
            start = self._oldest
        return messages.WatchRequest(
            create_request=messages.WatchCreateRequest(
                key=key, range_end=range_end, start_revision=start, fragment=True
            )
        )

    async def _follow(self, member: Member, stream: _Stream) -> NoReturn:
        """Read a stream until it breaks. Raises one of `BREAKS`, or the error that ends the watch."""
        loop = asyncio.get_running_loop()
        self._progress.begin(loop.time())
        reading = loop.create_task(stream.read())
        try:
            while True:
                if self._bell.done():
                    self._bell = loop.create_future()
                waiting = max(0.0, self._progress.due_at() - loop.time())
                await asyncio.wait((reading, self._bell), timeout=waiting, return_when="FIRST_COMPLETED")
                if reading.done():
                    self._progress.on_response(loop.time())
                    await self._take(member, _response(reading))
                    reading = loop.create_task(stream.read())
                elif self._progress.is_silent(loop.time()):
                    raise StreamBroken(SILENT)
                elif loop.time() >= self._progress.due_at():
                    self._progress.send(loop.time())
                    async with asyncio.timeout(self._members.patience.attempt_seconds):
                        await stream.write(PROGRESS_REQUEST)
        finally:
            stream.cancel()
            await _finish(reading)

    async def _take(self, member: Member, response: messages.WatchResponse) -> None:
        """Buffer the received events. Raises `Compacted`, and `StreamBroken` if the watch needs a new stream."""
        self._members.check_cluster(member, response)
        if response.canceled:
            raise StreamBroken(self._cancel_reason(response))
        self._fragments.extend(response.events)
        if response.fragment:
            return
        if self._fragments:
            self._buffer.extend(watch_batches(self._fragments, self._next))
            self._next = Revision(max(self._next, self._fragments[-1].kv.mod_revision + 1))
            self._fragments.clear()
        elif not response.created:
            self._next = Revision(max(self._next, response.header.revision + 1))
            if self._progress.fulfils_wish():
                self._buffer.append(WatchBatch(Revision(response.header.revision), ()))
        self._news.set()
        while len(self._buffer) >= BUFFERED_BATCHES_MAX:
            self._room.clear()
            await self._room.wait()

    def _cancel_reason(self, response: messages.WatchResponse) -> str:
        """Return etcd's reason for the cancelled watch. Raises `Compacted` if events were lost."""
        if response.compact_revision:
            if response.compact_revision > self._next:
                raise Compacted(Revision(response.compact_revision))
            # The events of the compacted revisions were already delivered.
            self._oldest = Revision(response.compact_revision)
        return response.cancel_reason or "etcd cancelled it"


def _response(reading: asyncio.Task[messages.WatchResponse | grpc.aio.EOFType]) -> messages.WatchResponse:
    """Return the response that a task has read. Raises one of `BREAKS`."""
    if reading.cancelled():
        # Closing the connection cancelled the stream, but not this task.
        raise StreamBroken(ENDED)
    response = reading.result()
    if not isinstance(response, messages.WatchResponse):
        raise StreamBroken(ENDED)
    return response


async def _finish(reading: asyncio.Task[messages.WatchResponse | grpc.aio.EOFType]) -> None:
    """Wait for the task of a cancelled stream, and retrieve the task's error."""
    await asyncio.wait([reading])
    if not reading.cancelled():
        reading.exception()
