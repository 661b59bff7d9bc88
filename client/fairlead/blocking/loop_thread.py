"""An event loop in a thread of its own, and calls into it from any other thread.

The ground of every blocking client. Must not know what is called.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from fairlead.errors import ClosedError

T = TypeVar("T")


class LoopThread:
    """Runs from `start` to `stop`. The thread is a daemon: a program that forgets to close still ends."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    @property
    def running(self) -> bool:
        """Whether calls can be made."""
        return self._loop is not None

    @property
    def is_current(self) -> bool:
        """Whether the caller is on the loop, where nothing may wait for it."""
        return threading.current_thread() is self._thread

    def start(self) -> None:
        """Begin; once."""
        started = threading.Event()
        self._thread = threading.Thread(target=self._run_loop, args=(started,), name=self._name, daemon=True)
        self._thread.start()
        started.wait()

    def run(self, work: Coroutine[Any, Any, T], timeout: float | None = None) -> T:
        """Have a coroutine run and return what it returns; given up where the caller is interrupted.

        `timeout` in seconds; raises TimeoutError at its end. Raises `ClosedError` outside of `start` and `stop`.
        """
        loop = self._loop
        if loop is None:
            work.close()
            raise _not_open(self._name)
        assert not self.is_current, "a blocking call on the loop would wait for itself"
        future = asyncio.run_coroutine_threadsafe(work, loop)
        try:
            return future.result(timeout)
        except BaseException:
            # An interrupt or the timeout; what has ended by itself cannot be cancelled any more.
            future.cancel()
            raise

    def soon(self, call: Callable[[], None]) -> None:
        """Have the loop make a call. Raises `ClosedError` like `run`."""
        loop = self._loop
        if loop is None:
            raise _not_open(self._name)
        loop.call_soon_threadsafe(call)

    def stop(self) -> None:
        """End the loop and the thread; what still runs is cancelled."""
        loop, self._loop = self._loop, None
        if loop is not None and self._thread is not None:
            loop.call_soon_threadsafe(loop.stop)
            self._thread.join()

    def _run_loop(self, started: threading.Event) -> None:
        with asyncio.Runner() as runner:
            self._loop = loop = runner.get_loop()
            loop.call_soon(started.set)
            loop.run_forever()


def known(outcome: Coroutine[Any, Any, T]) -> T:
    """Return what a coroutine returns, or raise what it raises, that has nothing to wait for and needs no loop."""
    try:
        outcome.send(None)
    except StopIteration as ended:
        result: T = ended.value
        return result
    raise AssertionError("it waits")


def _not_open(name: str) -> ClosedError:
    return ClosedError(name, "inside `with`, or between start() and close()")
