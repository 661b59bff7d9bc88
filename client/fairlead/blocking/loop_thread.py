"""An event loop in a separate thread, and calls into the loop from any other thread.

Every blocking client is based on this module. The module must not depend on the coroutines that it runs.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from fairlead.errors import ClosedError

T = TypeVar("T")


class LoopThread:
    """An event loop that runs from `start` to `stop`.

    The thread is a daemon: a program that never calls `stop` still exits.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._process: int | None = None
        """Id of the process in which the thread runs; a fork copies the loop, but not the thread."""
        self._handing_over = threading.RLock()
        """Lock held by `stop` and while work is submitted, so that the loop still starts all work submitted before
        `stop`. The lock is reentrant, because a signal handler may call `stop` while its thread holds the lock."""

    @property
    def running(self) -> bool:
        """Whether the event loop accepts calls."""
        return self._loop is not None and self._process == os.getpid()

    @property
    def is_current(self) -> bool:
        """Whether the caller runs on the event loop, where a blocking call would deadlock."""
        return threading.current_thread() is self._thread

    def start(self) -> None:
        """Start the thread and wait until its loop runs."""
        started = threading.Event()
        self._process = os.getpid()
        self._thread = threading.Thread(target=self._run_loop, args=(started,), name=self._name, daemon=True)
        self._thread.start()
        started.wait()

    def check_open(self) -> None:
        """Raise `ClosedError` if no call can be made."""
        if self._loop is None:
            raise _not_open(self._name)
        if not self.running:
            raise ClosedError(self._name, "in the process that opened it, not in a fork of that process")

    def run(self, work: Coroutine[Any, Any, T], timeout: float | None = None) -> T:
        """Run a coroutine on the loop and return its result; cancel the coroutine if the caller is interrupted.

        Raises TimeoutError after `timeout` seconds. Raises `ClosedError` before `start` and after `stop`, if `stop`
        interrupts the coroutine, and in a fork of the process that started the thread.
        """
        assert not self.is_current, "a blocking call on the event loop would deadlock"
        future, loop = self._submit(work)
        try:
            return future.result(timeout)
        except concurrent.futures.CancelledError as error:
            if self._loop is loop:
                raise
            raise _not_open(self._name) from error
        except BaseException:
            # The wait was interrupted or timed out. If the coroutine has already ended, `cancel` has no effect.
            future.cancel()
            raise

    async def run_from_loop(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the loop and return its result to the caller, which runs on any event loop.

        A cancelled caller cancels the coroutine. Raises `ClosedError` in the same cases as `run`.
        """
        future, loop = self._submit(work)
        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError as error:
            if self._loop is loop:
                raise
            raise _not_open(self._name) from error

    def soon(self, call: Callable[[], None]) -> None:
        """Call a function on the event loop. Raises `ClosedError` in the same cases as `run`."""
        self.check_open()
        with self._handing_over:
            self.check_open()
            assert self._loop is not None, "the thread of the event loop is running"
            self._loop.call_soon_threadsafe(call)

    def stop(self) -> None:
        """Stop the loop and the thread; running coroutines are cancelled."""
        with self._handing_over:
            loop, self._loop = self._loop, None
            if loop is not None:
                loop.call_soon_threadsafe(loop.stop)
        if loop is not None and self._thread is not None:
            self._thread.join()

    def _submit(
        self, work: Coroutine[Any, Any, T]
    ) -> tuple[concurrent.futures.Future[T], asyncio.AbstractEventLoop]:
        """Start a coroutine on the loop; return its future and the loop."""
        try:
            # The check precedes the lock, because in a fork a thread that was not copied may hold the lock.
            self.check_open()
            with self._handing_over:
                self.check_open()
                loop = self._loop
                assert loop is not None, "the thread of the event loop is running"
                return asyncio.run_coroutine_threadsafe(work, loop), loop
        except ClosedError:
            work.close()
            raise

    def _run_loop(self, started: threading.Event) -> None:
        with asyncio.Runner() as runner:
            self._loop = loop = runner.get_loop()
            loop.call_soon(started.set)
            loop.run_forever()


def known(outcome: Coroutine[Any, Any, T]) -> T:
    """Return the result of a coroutine that never waits and needs no event loop, or raise its error."""
    try:
        outcome.send(None)
    except StopIteration as ended:
        result: T = ended.value
        return result
    raise AssertionError("it waits")


def _not_open(name: str) -> ClosedError:
    return ClosedError(name, "inside `with`, or between start() and close()")
