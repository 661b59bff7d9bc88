"""Which key is reconciled next. Synchronous, no clock: time is an argument, so a test is its own time.

A key is wanted at a moment, once, however often it was asked for; while a worker has it, it is not given out again,
and what was asked meanwhile is done afterwards. A key that fails comes back after a pause that doubles, up to five
minutes; other keys do not wait for it. A change that asks for it meanwhile is served at once only when the pause is
short, for most changes are the failing one's own.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from typing import Final

from fairlead_operator.ports import Key

BACKOFF_SECONDS: Final = 1.0
BACKOFF_SECONDS_MAX: Final = 300.0
URGED_BACKOFF_SECONDS: Final = 15.0
"""A failing key that is asked for again waits no longer than this: what was asked may be the repair."""


@dataclass(slots=True)
class _Entry:
    due: float | None = None
    """When it is wanted; None while nobody asks."""
    running: bool = False
    failures: int = 0
    failed_at: float = 0.0
    ticket: int = 0
    """Tells the one place in the heap that counts from older ones."""


class WorkQueue:
    """All keys that are wanted, failing, or in work. `now` never goes back from call to call."""

    def __init__(self) -> None:
        self._entries: dict[Key, _Entry] = {}
        self._heap: list[tuple[float, int, Key]] = []
        self._tickets = 0

    def add(self, key: Key, now: float, *, delay_seconds: float = 0.0) -> None:
        """Want the key at that time; the earliest time asked for counts."""
        entry = self._entries.setdefault(key, _Entry())
        due = now + delay_seconds
        if entry.failures:
            due = max(due, entry.failed_at + min(_backoff(entry.failures), URGED_BACKOFF_SECONDS))
        if entry.due is None or due < entry.due:
            self._schedule(key, entry, due)

    def take(self, now: float) -> Key | None:
        """A key whose time has come, which is then in work until `done`; None when there is none."""
        while self._heap:
            due, ticket, key = self._heap[0]
            entry = self._entries.get(key)
            if entry is None or entry.ticket != ticket or entry.due is None or entry.running:
                # Old, or to be scheduled again when its worker is done.
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
        """A pass succeeded; wanted again after that time, or (None) only when asked for."""
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
        """A pass failed; the seconds until it is tried again."""
        entry = self._entries[key]
        entry.running = False
        entry.failures += 1
        entry.failed_at = now
        pause = _backoff(entry.failures)
        if entry.due is not None:
            # Somebody asked for it while it was failing.
            pause = min(pause, max(entry.due - now, URGED_BACKOFF_SECONDS))
        self._schedule(key, entry, now + pause)
        return pause

    def abandoned(self, key: Key, now: float) -> None:
        """A pass was cut short (this process no longer leads): wanted still, and nobody's fault."""
        entry = self._entries[key]
        entry.running = False
        self._schedule(key, entry, now)

    def next_due(self) -> float | None:
        """When `take` will have something, unless `add` or `done` comes first; None for not before."""
        while self._heap:
            due, ticket, key = self._heap[0]
            entry = self._entries.get(key)
            if entry is not None and entry.ticket == ticket and entry.due is not None and not entry.running:
                return due
            heapq.heappop(self._heap)
        return None

    def depth(self, now: float) -> int:
        """Keys whose time has come and that no worker has."""
        return sum(
            1
            for entry in self._entries.values()
            if not entry.running and entry.due is not None and entry.due <= now
        )

    def failing(self, kind: str) -> int:
        """Keys of the kind whose last pass failed."""
        return sum(1 for key, entry in self._entries.items() if key.kind == kind and entry.failures)

    def _schedule(self, key: Key, entry: _Entry, due: float) -> None:
        self._tickets += 1
        entry.due = due
        entry.ticket = self._tickets
        if not entry.running:
            heapq.heappush(self._heap, (due, self._tickets, key))


def _backoff(failures: int) -> float:
    return float(min(BACKOFF_SECONDS * 2 ** min(failures - 1, 20), BACKOFF_SECONDS_MAX))
