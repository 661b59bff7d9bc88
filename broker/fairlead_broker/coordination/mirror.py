"""A copy of the keys under `meta/`, which a list and a watch keep up to date.

The runtime creates and runs the mirror, and all packages of the broker read the mirror. All events of a revision are
applied before any listener runs. If the watch can no longer be trusted (cancelled, broken, silent, compacted), the
mirror lists all keys again at one revision, compares them with the known keys, and watches from the next revision
(protocol section 3, rule 5). The mirror may lag behind the store, so a decision based on the mirror is valid only if
its compare-and-set succeeds.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeAlias

import structlog

from fairlead_api.identifiers import Revision
from fairlead_broker.coordination.protocol import (
    Compacted,
    Coordination,
    CoordinationClosed,
    CoordinationUnavailable,
    PutEvent,
    Watch,
    WatchBatch,
)
from fairlead_broker.registry.keys import Keys
from fairlead_broker.registry.metadata import Change, ClusterMetadata
from fairlead_broker.registry.store_writes import KeyValue

SILENCE_SECONDS: Final = 30.0
"""Seconds of silence after which the mirror requests progress from the watch. If the watch does not answer within
another such period, the mirror replaces the watch.
"""
PROGRESS_SECONDS: Final = 1.0
"""Seconds between progress requests while a caller waits for a revision."""
RETRY_SECONDS: Final = (0.1, 0.2, 0.5, 1.0, 2.0)
"""Seconds between attempts to list the keys while the store does not answer. After the listed pauses, the last pause is
repeated.
"""

_log = structlog.get_logger("fairlead.coordination")


@dataclass(frozen=True, slots=True)
class MirrorUpdate:
    """Changes to the mirror at one revision, or at several revisions if the keys were listed again."""

    revision: Revision
    changes: tuple[Change, ...]


Listener: TypeAlias = Callable[[MirrorUpdate], None]


class Mirror:
    """Metadata that is kept up to date with the store. Call `load`, then `run` in a task.

    `load` and `run` may raise `RecordUnreadable`.
    """

    def __init__(
        self, coordination: Coordination, keys: Keys, *, silence_seconds: float = SILENCE_SECONDS
    ) -> None:
        self.metadata = ClusterMetadata(keys)
        """Records of the store at the revision `metadata.revision`."""
        self._coordination = coordination
        self._prefix = keys.meta
        self._silence_seconds = silence_seconds
        self._known: dict[str, Revision] = {}
        self._listeners: list[Listener] = []
        self._waiters: set[tuple[int, asyncio.Future[None]]] = set()
        self._watch: Watch | None = None

    def subscribe(self, listener: Listener) -> Callable[[], None]:
        """Call a function with every update on the event loop, and return a function that unsubscribes it.

        A listener must not block and must not raise, because an exception ends the mirror.
        """
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    async def load(self) -> None:
        """List all keys, and apply the differences from the known keys."""
        listed: dict[str, KeyValue] = {}
        page = await self._coordination.list(self._prefix)
        listed.update((item.key, item) for item in page.items)
        while page.next is not None:
            page = await self._coordination.list(self._prefix, revision=page.revision, after=page.next)
            listed.update((item.key, item) for item in page.items)
        if page.revision < self.metadata.revision:
            # The answer comes from a member that lags behind, so the known keys are newer than the listed keys.
            return
        changed: dict[str, KeyValue | None] = dict.fromkeys(self._known.keys() - listed.keys())
        changed.update(
            (key, item) for key, item in listed.items() if self._known.get(key) != item.mod_revision
        )
        self._apply(page.revision, changed)

    async def run(self) -> None:
        """Apply changes from the store until cancelled. Raises `CoordinationClosed` when the client is closed."""
        try:
            while True:
                await self._follow()
                await self._load_again()
        finally:
            self._fail_waiters()

    async def wait_for(self, revision: int) -> None:
        """Return when all revisions up to this one are applied and every listener has been called.

        `run` must be running. Raises `CoordinationUnavailable` if `run` ends before the mirror reaches the revision.
        """
        if self.metadata.revision >= revision:
            return
        waiter = (revision, asyncio.get_running_loop().create_future())
        self._waiters.add(waiter)
        try:
            while not waiter[1].done():
                if self._watch is not None:
                    await self._watch.request_progress()
                await asyncio.wait([waiter[1]], timeout=PROGRESS_SECONDS)
            waiter[1].result()
        finally:
            self._waiters.discard(waiter)
            if waiter[1].done():
                # The caller was cancelled when the mirror ended, so the error is not raised.
                waiter[1].exception()

    async def _follow(self) -> None:
        """Apply events of the watch until the watch can no longer be trusted."""
        self._watch = self._coordination.watch(self._prefix, Revision(self.metadata.revision + 1))
        try:
            while batch := await self._next_batch(self._watch):
                self._take(batch)
            _log.warning("watch is silent, restarting it", revision=self.metadata.revision)
        except CoordinationClosed:
            raise
        except (Compacted, CoordinationUnavailable) as error:
            _log.warning("watch ended, restarting it", reason=str(error), revision=self.metadata.revision)
        finally:
            watch, self._watch = self._watch, None
            await watch.cancel()

    async def _next_batch(self, watch: Watch) -> WatchBatch | None:
        """Return the next batch, or None if the watch has ended or stays silent after a progress request."""
        try:
            async with asyncio.timeout(self._silence_seconds):
                return await anext(watch, None)
        except TimeoutError:
            await watch.request_progress()
        try:
            async with asyncio.timeout(self._silence_seconds):
                return await anext(watch, None)
        except TimeoutError:
            return None

    async def _load_again(self) -> None:
        attempt = 0
        while True:
            try:
                await self.load()
            except CoordinationClosed:
                raise
            except (Compacted, CoordinationUnavailable) as error:
                _log.warning("registry not listed, retrying", reason=str(error), attempt=attempt)
                # No event announces that the store answers again, so only another attempt can detect an answer.
                await asyncio.sleep(RETRY_SECONDS[min(attempt, len(RETRY_SECONDS) - 1)])  # noqa: TID251
                attempt += 1
            else:
                return

    def _take(self, batch: WatchBatch) -> None:
        if batch.revision <= self.metadata.revision:
            return
        self._apply(
            batch.revision,
            {
                event.item.key if isinstance(event, PutEvent) else event.key: (
                    event.item if isinstance(event, PutEvent) else None
                )
                for event in batch.events
            },
        )

    def _apply(self, revision: Revision, changed: dict[str, KeyValue | None]) -> None:
        changes = self.metadata.apply(revision, changed)
        for key, item in changed.items():
            if item is None:
                self._known.pop(key, None)
            else:
                self._known[key] = item.mod_revision
            if key in self.metadata.unreadable_partitions:
                reason = self.metadata.unreadable_partitions[key]
                _log.error(
                    "partition record cannot be read; the partition is offline", key=key, reason=reason
                )
        if changes:
            for listener in tuple(self._listeners):
                listener(MirrorUpdate(revision, changes))
        for wanted, waiter in self._waiters:
            if wanted <= revision and not waiter.done():
                waiter.set_result(None)

    def _fail_waiters(self) -> None:
        for wanted, waiter in self._waiters:
            if not waiter.done():
                message = f"the mirror ended before revision {wanted}"
                waiter.set_exception(CoordinationUnavailable(message))
