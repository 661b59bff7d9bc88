"""Coordination with etcd's semantics inside the broker's process, in a SQLite file, for clusters on one machine.

`wiring` uses the embedded store for a broker without `--etcd` and for `dev up`. One thread accesses the file and
the leases, in the order of the calls, while callers wait on the event loop. Watches read from the history, so a
slow watch uses no memory and no watch can miss an event.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, ParamSpec, Self, TypeVar

import structlog

from fairlead_api.identifiers import Revision
from fairlead_broker.clock import Clock
from fairlead_broker.coordination.embedded_history import EventChunk, History
from fairlead_broker.coordination.embedded_leases import Leases
from fairlead_broker.coordination.protocol import (
    PAGE_KEYS_MAX,
    CoordinationClosed,
    CoordinationError,
    Lease,
    Page,
    WatchBatch,
    check_transaction,
)
from fairlead_broker.coordination.store_thread import StoreThread
from fairlead_broker.registry.store_writes import (
    Compare,
    LeaseId,
    Operation,
    TransactionResult,
)

STALL_SECONDS: Final = 1.0
"""Timer delay in seconds above which the process is considered stalled (stopped, swapped, suspended), so that its
keep-alives are late. After a stall, all leases restart at their full time to live, as in etcd after a leader change.
"""
EXPIRY_RETRY_SECONDS: Final = 1.0
"""Seconds between attempts to end leases while the disk is full."""
_CLOSED: Final = "this client of the coordination store was closed"

_log = structlog.get_logger("fairlead.coordination")

P = ParamSpec("P")
T = TypeVar("T")


class EmbeddedCoordination:
    """A client of an embedded store, with the interface `protocol.Coordination`."""

    def __init__(self, store: EmbeddedStore) -> None:
        """Create a client of a store.

        `open` creates the first client of a store, and `connect` creates further clients.
        """
        self._store = store
        self._watches: set[EmbeddedWatch] = set()
        self._closed = False
        store.clients += 1

    @classmethod
    async def open(cls, path: Path, clock: Clock) -> Self:
        """Open the store in a file, which is created if it is missing. The folder of the file must exist.

        Opening the store ends the leases of earlier processes and removes all their keys in one revision. Raises
        a `StoreRefused` (held, inaccessible, damaged, too new) or `CoordinationUnavailable`. The message of each
        error names the next step for the operator.
        """
        return cls(await EmbeddedStore.open(path, clock))

    def connect(self) -> EmbeddedCoordination:
        """Return another client of the same store. The store is closed when its last client is closed."""
        self._check_open()
        return EmbeddedCoordination(self._store)

    async def list(
        self,
        prefix: str,
        *,
        revision: Revision | None = None,
        after: str | None = None,
        limit: int = PAGE_KEYS_MAX,
    ) -> Page:
        """Read the keys under a prefix (see `Coordination.list`)."""
        self._check_open()
        return await self._store.run(
            self._store.history.page, prefix, revision, after, min(limit, PAGE_KEYS_MAX)
        )

    def watch(self, prefix: str, from_revision: Revision) -> EmbeddedWatch:
        """Watch the keys under a prefix (see `Coordination.watch`)."""
        self._check_open()
        watch = EmbeddedWatch(self._store, prefix, from_revision, self._watches.discard)
        self._watches.add(watch)
        return watch

    async def transact(
        self, compares: Sequence[Compare], success: Sequence[Operation], failure: Sequence[Operation] = ()
    ) -> TransactionResult:
        """Apply one branch of a transaction atomically (see `Coordination.transact`)."""
        self._check_open()
        check_transaction(compares, success, failure)
        return await self._store.run(self._store.transact, compares, success, failure)

    async def grant_lease(self, ttl_seconds: int) -> Lease:
        """Grant a lease."""
        self._check_open()
        return await self._store.run(self._store.grant, ttl_seconds)

    async def keep_alive(self, lease: Lease) -> None:
        """Restart the lease's time to live."""
        self._check_open()
        await self._store.run(self._store.keep_alive, lease.lease_id)

    async def revoke(self, lease: Lease) -> None:
        """End a lease and remove its keys."""
        self._check_open()
        await self._store.run(self._store.end_lease, lease.lease_id)

    async def compact(self, revision: Revision) -> None:
        """Drop the history before a revision."""
        self._check_open()
        await self._store.run(self._store.history.compact, revision)

    async def expire_leases(self) -> None:
        """End the leases that have expired according to the injected clock, without waiting for the timer."""
        self._check_open()
        await self._store.run(self._store.expire)

    async def close(self) -> None:
        """Close this client. Closing the last client of a store also closes the file."""
        if self._closed:
            return
        self._closed = True
        for watch in tuple(self._watches):
            watch.close()
        await self._store.release()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()

    def _check_open(self) -> None:
        if self._closed:
            raise CoordinationClosed(_CLOSED)


class EmbeddedWatch:
    """Watch at a position in the history of a store, with the interface `protocol.Watch`."""

    def __init__(
        self,
        store: EmbeddedStore,
        prefix: str,
        from_revision: Revision,
        forget: Callable[[EmbeddedWatch], None],
    ) -> None:
        self._store = store
        self._prefix = prefix
        self._next = from_revision
        self._forget = forget
        self._read: deque[WatchBatch] = deque()
        self._wake = asyncio.Event()
        self._progress_wanted = False
        self._idle = False
        self._cancelled = False
        self._closed = False
        store.watches[self] = None

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> WatchBatch:
        while True:
            if self._closed:
                raise CoordinationClosed(_CLOSED)
            if self._cancelled:
                raise StopAsyncIteration
            if self._read:
                return self._read.popleft()
            self._wake.clear()
            chunk = await self._store.run(self._store.history.events, self._prefix, self._next)
            progress = self._take(chunk)
            if progress is not None:
                return progress
            if not self._read:
                await self._wait()

    async def request_progress(self) -> None:
        """Request a batch without events at the store's revision."""
        self._progress_wanted = True
        self._wake.set()

    async def cancel(self) -> None:
        """End the iteration."""
        self._cancelled = True
        self._end()

    def close(self) -> None:
        """End the iteration with `CoordinationClosed`."""
        self._closed = True
        self._end()

    def notice(self, revision: Revision, changed: Sequence[str]) -> None:
        """Notify the watch of a new revision. A waiting watch skips the revision if no key of its prefix changed.

        If the watch of a quiet prefix did not skip revisions, it would fall behind, and a compaction would remove its
        position from the history.
        """
        concerned = any(key.startswith(self._prefix) for key in changed)
        if self._idle and not concerned and self._next == revision:
            self._next = Revision(revision + 1)
        else:
            self._wake.set()

    def _take(self, chunk: EventChunk) -> WatchBatch | None:
        """Buffer the events that were read. Returns the requested progress batch if no event is left to read."""
        self._next = chunk.next_revision
        self._read.extend(chunk.batches)
        if self._read or not self._progress_wanted:
            return None
        self._progress_wanted = False
        return WatchBatch(chunk.revision, ())

    async def _wait(self) -> None:
        self._idle = True
        try:
            await self._wake.wait()
        finally:
            self._idle = False

    def _end(self) -> None:
        self._store.watches.pop(self, None)
        self._forget(self)
        self._wake.set()


class EmbeddedStore:
    """Embedded store: a thread that owns the file and the leases, and state that only the event loop uses.

    Only the store's thread uses `history` and `leases`. `run` runs the methods `transact`, `grant`, `keep_alive`,
    `end_lease` and `expire` in this thread.
    """

    def __init__(
        self, history: History, thread: StoreThread, clock: Clock, loop: asyncio.AbstractEventLoop
    ) -> None:
        """Create a store with a file that was opened in the store's thread."""
        self._clock = clock
        self._loop = loop
        self._thread = thread
        self._timer: asyncio.TimerHandle | None = None
        self._expiry: asyncio.Handle | None = None
        self.history = history
        self.leases = Leases(history.life)
        self.watches: dict[EmbeddedWatch, None] = {}
        """Open watches, in the order in which they were opened."""
        self.clients = 0

    @classmethod
    async def open(cls, path: Path, clock: Clock) -> Self:
        """Start the store's thread, and open the file in the thread."""
        thread = StoreThread("coordination")
        try:
            history = await thread.submit(History, path)
        except BaseException:
            thread.close()
            raise
        return cls(history, thread, clock, asyncio.get_running_loop())

    async def run(self, call: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
        """Run a call in the store's thread, after all earlier calls.

        A started call continues even if the task that waits for it is cancelled.
        """
        return await self._thread.submit(call, *arguments, **named)

    async def release(self) -> None:
        """Detach a client. The file is closed when the last client is detached."""
        self.clients -= 1
        if self.clients:
            return
        for handle in (self._timer, self._expiry):
            if handle is not None:
                handle.cancel()
        try:
            await asyncio.shield(self.run(self.history.close))
        finally:
            self._thread.close()

    def transact(
        self, compares: Sequence[Compare], success: Sequence[Operation], failure: Sequence[Operation]
    ) -> TransactionResult:
        """Apply a transaction and notify the watches."""
        applied = self.history.transact(compares, success, failure, self.leases)
        self.leases.note(applied.branch)
        self._publish(applied.changed)
        return applied.result

    def grant(self, ttl_seconds: int) -> Lease:
        """Grant a lease."""
        lease = self.leases.grant(ttl_seconds, self._clock.monotonic())
        self._loop.call_soon_threadsafe(self._set_timer, self.leases.next_deadline)
        return lease

    def keep_alive(self, lease_id: LeaseId) -> None:
        """Restart the time to live of a lease. A timer for the old end then finds no expired lease."""
        self.leases.keep_alive(lease_id, self._clock.monotonic())

    def end_lease(self, lease_id: LeaseId) -> None:
        """Remove the keys of a lease in one revision, then remove the lease."""
        changed = self.history.delete(self.leases.keys(lease_id))
        self.leases.drop(lease_id)
        self._publish(changed)

    def expire(self, *, stalled: bool = False) -> None:
        """End the expired leases, or restart all leases if the process was stalled."""
        if stalled:
            self.leases.renew_all(self._clock.monotonic())
        try:
            for lease_id in self.leases.due(self._clock.monotonic()):
                self.end_lease(lease_id)
        except CoordinationError:
            if not self.history.has_failed:
                # The expiry is retried, because a full disk may have space again later.
                again = self._clock.monotonic() + EXPIRY_RETRY_SECONDS
                self._loop.call_soon_threadsafe(self._set_timer, again)
            raise
        self._loop.call_soon_threadsafe(self._set_timer, self.leases.next_deadline)

    def _publish(self, changed: Sequence[str]) -> None:
        """Schedule the notification of the watches; it runs before the caller gets the result of its call."""
        if changed:
            self._loop.call_soon_threadsafe(self._notify, self.history.revision, changed)

    def _notify(self, revision: Revision, changed: Sequence[str]) -> None:
        for watch in tuple(self.watches):
            watch.notice(revision, changed)

    def _set_timer(self, deadline: float | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if deadline is not None and self.clients:
            self._timer = self._loop.call_later(max(0.0, deadline - self._clock.monotonic()), self._fire)

    def _fire(self) -> None:
        assert self._timer is not None, "the timer that fired was set"
        late = self._loop.time() - self._timer.when()
        self._timer = None
        # The expiry is deferred to the next turn of the event loop, so that delayed keep-alives whose timers were due
        # earlier run before the expiry.
        self._expiry = self._loop.call_soon(self._begin_expiry, late > STALL_SECONDS)

    def _begin_expiry(self, stalled: bool) -> None:
        self._expiry = None
        self._thread.submit(self.expire, stalled=stalled).add_done_callback(_report)


def _report(done: asyncio.Future[None]) -> None:
    """Log an error in an expiry that the timer started. After a failure of the store, later calls raise the error."""
    try:
        done.result()
    except CoordinationError as error:
        _log.warning("leases not expired", reason=str(error))
