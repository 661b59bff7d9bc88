"""The workers: while this process leads, they take keys from the queue and have them reconciled.

One key is with one worker at a time. Everything that was seen is wanted once when leadership begins, and again,
spread out, every `resync_seconds`: what no event told is noticed then. When leadership ends, passes are cut short
where they are; reconcile is idempotent, and the next leader begins with what it sees.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Final, Protocol

from fairlead_operator.clock import Chance, Clock
from fairlead_operator.ports import ApiError, Conflict, Key, Reconciler
from fairlead_operator.reconcile.queue import WorkQueue
from fairlead_operator.telemetry import Telemetry

WORKERS: Final = 8
"""Keys in work at once; a pass mostly waits for answers."""
PASS_SECONDS_MAX: Final = 300.0
"""A pass that takes longer hangs: it is cut short and counts as failed."""
JITTER: Final = 0.2
"""Resyncs are spread over this part of their interval."""


class Term(Protocol):
    """Whether this process may act."""

    async def wait_until_leading(self) -> None:
        """Return when it may."""
        ...

    async def wait_until_lost(self) -> None:
        """Return when it may no longer."""
        ...


class WorkLoop:
    """Runs the reconcilers. Implements `ports.WorkSink` for whoever notices that something changed."""

    def __init__(
        self,
        reconcilers: Mapping[str, Reconciler],
        *,
        term: Term,
        existing: Callable[[], Iterable[Key]],
        exists: Callable[[Key], bool],
        resync_seconds: float,
        clock: Clock,
        chance: Chance,
        telemetry: Telemetry,
    ) -> None:
        self._queue = WorkQueue()
        self._reconcilers = reconcilers
        self._term = term
        self._existing = existing
        self._exists = exists
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
        """See `WorkSink.add`. A key of a kind that nobody reconciles is ignored."""
        if key.kind in self._reconcilers:
            self._queue.add(key, self._clock.monotonic(), delay_seconds=delay_seconds)
            self._changed.set()

    async def run(self) -> None:
        """Work, term after term, for ever."""
        while True:
            await self._term.wait_until_leading()
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
        """Keys that wait. Those of a follower are the leader's work, which it may have done by now."""
        return self._queue.depth(self._clock.monotonic()) if self._working else 0

    def _failing(self, kind: str) -> int:
        """Keys of the kind that fail; what failed in an earlier term may be well by now."""
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
            # Others may wait for a key that this one held back.
            self._changed.set()

    async def _next(self) -> Key:
        while True:
            self._changed.clear()
            now = self._clock.monotonic()
            key = self._queue.take(now)
            if key is not None:
                # Another worker may find the next one.
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
            # Somebody was faster: read and decide again, which is nobody's fault.
            self._failed(key, started, self._log.info, "conflict", str(conflict))
        except ApiError as error:
            self._failed(key, started, self._log.warning, "failed", str(error))
        except TimeoutError as error:
            self._failed(key, started, self._log.warning, "failed", str(error) or "a deadline passed")
        except Exception as error:  # noqa: BLE001 - whatever one key brings up must not stop the others
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
    """Leadership ended."""
