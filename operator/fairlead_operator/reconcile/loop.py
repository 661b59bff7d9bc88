"""Work queue, and workers that reconcile the queued keys while this process is the leader.

`WorkQueue` contains each key at most once, with its due time. Only one worker at a time reconciles a key, and a key
that is added during its pass is due again after the pass. When leadership starts, every known key is due once. After
the first pass, each key is due every `resync_seconds` with jitter, so that a missed event has no lasting effect. When
leadership ends, running passes are cancelled: passes are idempotent, and the next leader starts from the observed
state. A failed pass is retried with backoff.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final, Protocol

from fairlead_operator.clock import Chance, Clock
from fairlead_operator.ports import ApiError, Conflict, Key, Reconciler
from fairlead_operator.telemetry import Telemetry

BACKOFF_SECONDS: Final = 1.0
BACKOFF_SECONDS_MAX: Final = 300.0
URGED_BACKOFF_SECONDS: Final = 15.0
"""Maximum backoff of a failing key that is added again because of a change, since the change may fix the failure."""


@dataclass(slots=True)
class _Entry:
    due: float | None = None
    """Due time of the key; None while the key is not queued."""
    running: bool = False
    failures: int = 0
    failed_at: float = 0.0
    ticket: int = 0
    """Number of the key's current entry in the heap; heap entries of the key with other numbers are outdated."""


class WorkQueue:
    """All queued, failing and running keys. `now` must not decrease from call to call."""

    def __init__(self) -> None:
        self._entries: dict[Key, _Entry] = {}
        self._heap: list[tuple[float, int, Key]] = []
        self._tickets = 0

    def add(self, key: Key, now: float, *, delay_seconds: float = 0.0) -> None:
        """Queue the key for the requested time; if the key is queued already, the earlier time applies."""
        entry = self._entries.setdefault(key, _Entry())
        due = now + delay_seconds
        if entry.failures:
            due = max(due, entry.failed_at + min(_backoff(entry.failures), URGED_BACKOFF_SECONDS))
        if entry.due is None or due < entry.due:
            self._schedule(key, entry, due)

    def take(self, now: float) -> Key | None:
        """Return a due key, which counts as running until its pass has ended; None if no key is due."""
        while self._heap:
            due, ticket, key = self._heap[0]
            entry = self._entries.get(key)
            if entry is None or entry.ticket != ticket or entry.due is None or entry.running:
                # The entry is outdated, or the key is running and is scheduled again after its pass.
                heapq.heappop(self._heap)
                continue
            if due > now:
                return None
            heapq.heappop(self._heap)
            entry.due = None
            entry.running = True
            return key
        return None

    def done(self, key: Key, now: float, *, again_seconds: float | None) -> None:
        """Record a successful pass. If `again_seconds` is None, the key is due again only after it is added again."""
        entry = self._entries[key]
        entry.running = False
        entry.failures = 0
        if again_seconds is not None and (entry.due is None or now + again_seconds < entry.due):
            entry.due = now + again_seconds
        if entry.due is None:
            del self._entries[key]
        else:
            self._schedule(key, entry, entry.due)

    def failed(self, key: Key, now: float) -> float:
        """Record a failed pass; return the seconds until the pass is retried."""
        entry = self._entries[key]
        entry.running = False
        entry.failures += 1
        entry.failed_at = now
        pause = _backoff(entry.failures)
        if entry.due is not None:
            # The key was added while its pass was failing.
            pause = min(pause, max(entry.due - now, URGED_BACKOFF_SECONDS))
        self._schedule(key, entry, now + pause)
        return pause

    def abandoned(self, key: Key, now: float) -> None:
        """Record a pass that was cancelled because leadership ended: the key stays due, and no failure is counted."""
        entry = self._entries[key]
        entry.running = False
        self._schedule(key, entry, now)

    def next_due(self) -> float | None:
        """Return the earliest due time in the queue; None if no key is scheduled."""
        while self._heap:
            due, ticket, key = self._heap[0]
            entry = self._entries.get(key)
            if entry is not None and entry.ticket == ticket and entry.due is not None and not entry.running:
                return due
            heapq.heappop(self._heap)
        return None

    def depth(self, now: float) -> int:
        """Return the number of due keys that are not running."""
        return sum(
            1
            for entry in self._entries.values()
            if not entry.running and entry.due is not None and entry.due <= now
        )

    def failing(self, kind: str) -> int:
        """Return the number of keys of the kind whose last pass failed."""
        return sum(1 for key, entry in self._entries.items() if key.kind == kind and entry.failures)

    def _schedule(self, key: Key, entry: _Entry, due: float) -> None:
        self._tickets += 1
        entry.due = due
        entry.ticket = self._tickets
        if not entry.running:
            heapq.heappush(self._heap, (due, self._tickets, key))


def _backoff(failures: int) -> float:
    return float(min(BACKOFF_SECONDS * 2 ** min(failures - 1, 20), BACKOFF_SECONDS_MAX))


WORKERS: Final = 8
"""Number of workers, which mostly wait for answers."""
PASS_SECONDS_MAX: Final = 300.0
"""Timeout of a pass; a pass that takes longer is cancelled and counts as failed."""
JITTER: Final = 0.2
"""Jitter of resyncs as a fraction of their interval."""


class Term(Protocol):
    """Leadership of this process, as seen by the work loop."""

    async def wait_until_leading(self) -> None:
        """Wait until this process may act."""
        ...

    async def wait_until_lost(self) -> None:
        """Wait until this process may no longer act."""
        ...


class WorkLoop:
    """Runs the reconcilers. Implements `ports.WorkSink`, through which the sources of changes add keys."""

    def __init__(
        self,
        reconcilers: Mapping[str, Reconciler],
        *,
        term: Term,
        existing: Callable[[], Iterable[Key]],
        exists: Callable[[Key], bool],
        prepare: Callable[[], Awaitable[None]],
        resync_seconds: float,
        clock: Clock,
        chance: Chance,
        telemetry: Telemetry,
    ) -> None:
        """`prepare` is awaited at the beginning of each term of leadership, before the first pass."""
        self._queue = WorkQueue()
        self._reconcilers = reconcilers
        self._term = term
        self._existing = existing
        self._exists = exists
        self._prepare = prepare
        self._resync_seconds = resync_seconds
        self._clock = clock
        self._chance = chance
        self._telemetry = telemetry
        self._log = telemetry.log
        self._changed = asyncio.Event()
        self._working = False
        telemetry.on_scrape(telemetry.queue_depth, self._depth)
        for kind in reconcilers:
            telemetry.on_scrape(telemetry.queue_failing, partial(self._failing, kind), kind)

    def add(self, key: Key, *, delay_seconds: float = 0.0) -> None:
        """See `WorkSink.add`. A key of a kind without a reconciler is ignored."""
        if key.kind in self._reconcilers:
            self._queue.add(key, self._clock.monotonic(), delay_seconds=delay_seconds)
            self._changed.set()

    async def run(self) -> None:
        """Reconcile during every term of leadership until cancelled."""
        while True:
            await self._term.wait_until_leading()
            await self._prepare()
            for key in self._existing():
                self.add(key)
            self._working = True
            try:
                async with asyncio.TaskGroup() as group:
                    for _ in range(WORKERS):
                        group.create_task(self._worker())
                    group.create_task(self._end_with_term())
            except* _TermEnded:
                self._log.warning("work stopped", reason="no longer the leader")
            finally:
                self._working = False

    def _depth(self) -> int:
        """Return the number of due keys; 0 if another operator leads, since only the leader reconciles keys."""
        return self._queue.depth(self._clock.monotonic()) if self._working else 0

    def _failing(self, kind: str) -> int:
        """Return the number of failing keys of the kind; failures in an earlier term of leadership do not count."""
        return self._queue.failing(kind) if self._working else 0

    async def _end_with_term(self) -> None:
        await self._term.wait_until_lost()
        raise _TermEnded

    async def _worker(self) -> None:
        while True:
            key = await self._next()
            try:
                await self._pass(key)
            except asyncio.CancelledError:
                self._queue.abandoned(key, self._clock.monotonic())
                raise
            # Other workers may wait for the key that this worker was running.
            self._changed.set()

    async def _next(self) -> Key:
        while True:
            self._changed.clear()
            now = self._clock.monotonic()
            key = self._queue.take(now)
            if key is not None:
                # Another worker may find another due key.
                self._changed.set()
                return key
            due = self._queue.next_due()
            try:
                async with asyncio.timeout(None if due is None else max(0.0, due - now)):
                    await self._changed.wait()
            except TimeoutError:
                continue

    async def _pass(self, key: Key) -> None:
        started = self._clock.monotonic()
        try:
            async with asyncio.timeout(PASS_SECONDS_MAX):
                again = await self._reconcilers[key.kind].reconcile(key)
        except Conflict as conflict:
            # Another writer changed the object first. The retry reads the state and plans again, and the conflict is
            # not logged as a warning.
            self._failed(key, started, self._log.info, "conflict", str(conflict))
        except ApiError as error:
            self._failed(key, started, self._log.warning, "failed", str(error))
        except TimeoutError as error:
            self._failed(key, started, self._log.warning, "failed", str(error) or "a deadline passed")
        except Exception as error:  # noqa: BLE001 - an error of one key must not stop other keys
            self._failed(key, started, self._log.exception, "failed", repr(error))
        else:
            self._count(key, started, "ok")
            pause = self._again(key, again)
            self._queue.done(key, self._clock.monotonic(), again_seconds=pause)
            self._log.debug("object reconciled", key=str(key), again_in_seconds=pause)

    def _again(self, key: Key, wanted: float | None) -> float | None:
        if not self._exists(key):
            return wanted
        resync = self._resync_seconds * (1 + JITTER * (self._chance() - 0.5))
        return resync if wanted is None else min(wanted, resync)

    def _failed(self, key: Key, started: float, log: Callable[..., object], result: str, error: str) -> None:
        pause = self._queue.failed(key, self._clock.monotonic())
        self._count(key, started, result)
        log("reconcile failed", key=str(key), result=result, error=error, again_in_seconds=pause)

    def _count(self, key: Key, started: float, result: str) -> None:
        self._telemetry.reconcile_total.labels(key.kind, result).inc()
        self._telemetry.reconcile_seconds.labels(key.kind).observe(self._clock.monotonic() - started)


class _TermEnded(Exception):
    """This process is no longer the leader."""
