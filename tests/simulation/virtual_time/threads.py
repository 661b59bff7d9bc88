"""Calls that threads make in a broker, made on the loop instead, each after a time drawn by chance."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from concurrent.futures import Future
from queue import Empty
from typing import Any

from fairlead_broker.runtime.engine.disk_pool import DiskPool
from virtual_time.life import LIFE


class InlineExecutor:
    """Stands for a `ThreadPoolExecutor` whose threads are always faster than their caller."""

    def __init__(self, *sizes: object, **named: object) -> None:
        """Take the sizes, which do not matter."""

    def submit(self, call: Callable[..., Any], *arguments: Any, **named: Any) -> Future[Any]:
        """Call it at once."""
        future: Future[Any] = Future()
        try:
            future.set_result(call(*arguments, **named))
        except BaseException as error:  # noqa: BLE001 - raised again where the future is awaited
            future.set_exception(error)
        return future

    def map(self, call: Callable[..., Any], *iterables: Any) -> list[Any]:
        """Call it for each at once."""
        return list(map(call, *iterables))

    def shutdown(self, *arguments: object, **named: object) -> None:
        """End nothing."""


def pool_submit(
    chance: random.Random, slow_seconds: Callable[[], float]
) -> Callable[..., asyncio.Future[Any]]:
    """Return what replaces `DiskPool.submit`: the calls of a pool are made in order, but late."""

    def submit(pool: DiskPool, call: Callable[..., Any], *arguments: Any) -> asyncio.Future[Any]:
        life = LIFE.get()
        future: asyncio.Future[Any] = pool._loop.create_future()
        pool._unfinished += 1
        pool._calls.put((call, arguments, future))
        delay = chance.expovariate(5_000) + slow_seconds()
        pool._loop.call_later(delay, make_next, pool, life)
        return future

    def make_next(pool: DiskPool, life: Any) -> None:
        try:
            entry = pool._calls.get_nowait()
        except Empty:
            return
        if entry is None or (life is not None and life.dead):
            return
        call, arguments, future = entry
        try:
            completion = (future, call(*arguments), None)
        except BaseException as error:  # noqa: BLE001 - raised again where the future is awaited
            completion = (future, None, error)
        pool._complete(completion)

    return submit
