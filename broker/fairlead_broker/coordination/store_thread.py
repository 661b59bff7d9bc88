"""Thread that runs the blocking calls of an embedded store, in the order in which they arrive.

Only `embedded` uses this module, which must not depend on what the calls do. A call is one queue entry, and its answer
is one callback on the event loop. An executor with a wrapped future needs two futures, a lock and further steps of the
loop for each call, with which the commit of a small transaction took 5% longer.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from queue import SimpleQueue
from typing import Any, ParamSpec, TypeAlias, TypeVar

from fairlead_broker.coordination.protocol import CoordinationClosed

P = ParamSpec("P")
T = TypeVar("T")

_Entry: TypeAlias = "tuple[asyncio.Future[Any], Callable[[], Any]]"


class StoreThread:
    """Thread of a store. It is created on the event loop that gets the answers."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.get_running_loop()
        self._entries: SimpleQueue[_Entry | None] = SimpleQueue()
        self._is_closed = False
        # The end of the process does not wait for the store of a broker that was not closed: every answered write is
        # durable.
        threading.Thread(target=self._work, name=name, daemon=True).start()

    def submit(self, call: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> asyncio.Future[T]:
        """Queue a call, and return a future with its result.

        A call whose future is cancelled before the call has started does not run. Raises `CoordinationClosed` after
        `close`.
        """
        if self._is_closed:
            msg = "the thread of the coordination store has ended"
            raise CoordinationClosed(msg)
        answer: asyncio.Future[T] = self._loop.create_future()
        self._queue(answer, partial(call, *arguments, **named))
        return answer

    def close(self) -> None:
        """End the thread after the queued calls."""
        self._is_closed = True
        self._entries.put(None)

    def _queue(self, answer: asyncio.Future[Any], call: Callable[[], Any]) -> None:
        self._entries.put((answer, call))

    def _work(self) -> None:
        while (entry := self._entries.get()) is not None:
            self._run(*entry)
            del entry

    def _run(self, answer: asyncio.Future[Any], call: Callable[[], Any]) -> None:
        if answer.cancelled():
            return
        result, error = None, None
        try:
            result = call()
        except BaseException as raised:  # noqa: BLE001 - raised again where the future is awaited
            error = raised
        with suppress(RuntimeError):  # the loop was closed, so nothing waits for the answer
            self._loop.call_soon_threadsafe(_deliver, answer, result, error)


def _deliver(answer: asyncio.Future[T], result: T, error: BaseException | None) -> None:
    if answer.done():
        return
    if error is None:
        answer.set_result(result)
    else:
        answer.set_exception(error)
