"""Calls to a broker's threads, which run on the loop after random delays."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from queue import Empty
from typing import Any

from fairlead_broker.coordination.store_thread import StoreThread
from fairlead_broker.runtime.engine.disk_pool import DiskPool, completed
from virtual_time.life import LIFE


class InlineExecutor:
    """A replacement of `ThreadPoolExecutor` whose threads are always faster than their caller."""

    def __init__(self, *sizes: object, **named: object) -> None:
        """Accept the sizes of a pool, which have no effect."""

    def submit(self, call: Callable[..., Any], *arguments: Any, **named: Any) -> Future[Any]:
        """Run a call immediately, in this thread."""
        future: Future[Any] = Future()
        try:
            future.set_result(call(*arguments, **named))
        except BaseException as error:  # noqa: BLE001 - raised again where the future is awaited
            future.set_exception(error)
        return future

    def map(self, call: Callable[..., Any], *iterables: Any) -> list[Any]:
        """Run a call for each item immediately, in this thread."""
        return list(map(call, *iterables))

    def shutdown(self, *arguments: object, **named: object) -> None:
        """Do nothing."""


class InlineStoreThread(StoreThread):
    """A replacement of the thread of an embedded store that is always faster than its caller."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.get_running_loop()
        self._is_closed = False

    def close(self) -> None:
        """Accept no further calls."""
        self._is_closed = True

    def _queue(self, answer: asyncio.Future[Any], call: Callable[[], Any]) -> None:
        self._run(answer, call)


def pool_start(chance: random.Random, slow_seconds: Callable[[], float]) -> Callable[..., None]:
    """Return the replacement of `DiskPool._start`, which runs the entries of a pool's queue in order after a delay."""

    def start(pool: DiskPool, entry: Sequence[Any]) -> None:
        life = LIFE.get()
        pool._calls.put(entry)
        delay = chance.expovariate(5_000) + slow_seconds()
        pool._loop.call_later(delay, make_next, pool, life)

    def make_next(pool: DiskPool, life: Any) -> None:
        try:
            entry = pool._calls.get_nowait()
        except Empty:
            return
        if entry is None or (life is not None and life.dead):
            return
        pool._complete([completed(*call) for call in entry])

    return start
