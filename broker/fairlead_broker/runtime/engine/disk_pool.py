"""Threads for calls that may block. The threads wake the event loop as rarely as possible.

The runtime has two pools: one appends and reads, one syncs. A standard executor needs a lock, a condition and two
futures for each call, and one wake-up of the loop for each completion; on the produce path, this overhead took a third
of the loop's time. A call to this pool is one queue entry. Completions that accumulate while the loop is busy share one
wake-up.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

Answer = TypeVar("Answer")

_Call = tuple[Callable[..., Any], tuple[Any, ...], "asyncio.Future[Any]"]
_Completion = tuple["asyncio.Future[Any]", Any, BaseException | None]


class DiskPool:
    """Thread pool for the blocking calls of one event loop; implements `ports.BlockingWork`.

    When a call would have to wait for a thread, another thread starts, up to `threads_max`. A pool must be created and
    closed on the event loop.
    """

    __slots__ = (
        "_calls",
        "_completions",
        "_idle",
        "_loop",
        "_name",
        "_threads",
        "_threads_max",
        "_unfinished",
        "_waking",
    )

    def __init__(self, name: str, threads_max: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._name = name
        self._threads_max = threads_max
        self._threads: list[threading.Thread] = []
        self._calls: SimpleQueue[_Call | None] = SimpleQueue()
        self._completions: deque[_Completion] = deque()
        self._unfinished = 0
        self._waking = False
        self._idle: list[asyncio.Future[None]] = []

    @property
    def is_busy(self) -> bool:
        """Whether more than half of the threads are busy, or calls wait for a thread."""
        return 2 * self._unfinished > self._threads_max

    def submit(self, call: Callable[..., Answer], *arguments: Any) -> asyncio.Future[Answer]:
        """Start a call and return a future with its result. Cancelling the future does not stop the call."""
        future: asyncio.Future[Answer] = self._loop.create_future()
        self._unfinished += 1
        if len(self._threads) < min(self._unfinished, self._threads_max):
            self._start_thread()
        self._calls.put((call, arguments, future))
        return future

    async def run(self, call: Callable[..., Answer], *arguments: Any) -> Answer:
        """Run one call and return its result."""
        return await self.submit(call, *arguments)

    async def run_all(self, calls: Sequence[Callable[[], Answer]]) -> list[Answer | BaseException]:
        """Run calls in parallel and wait for all of them; the result of a failed call is its exception."""
        answers: list[Answer | BaseException] = []
        for future in [self.submit(call) for call in calls]:
            try:
                answers.append(await future)
            except Exception as error:  # noqa: BLE001 - the caller handles each failure
                answers.append(error)
        return answers

    def drop_queued(self) -> None:
        """Cancel the calls that have not started."""
        with suppress(Empty):
            while True:
                entry = self._calls.get_nowait()
                if entry is not None:
                    entry[2].cancel()
                    self._unfinished -= 1
        if not self._unfinished:
            self._notify_idle()

    async def idle(self) -> None:
        """Wait until no call of the pool is running or queued."""
        while self._unfinished:
            waiter = self._loop.create_future()
            self._idle.append(waiter)
            await waiter

    def close(self) -> None:
        """Finish the queued calls and wait for the threads to end. The call blocks."""
        for _ in self._threads:
            self._calls.put(None)
        for thread in self._threads:
            thread.join()
        self._threads.clear()

    def _start_thread(self) -> None:
        thread = threading.Thread(target=self._work, name=f"{self._name}-{len(self._threads)}")
        self._threads.append(thread)
        thread.start()

    def _work(self) -> None:
        while (entry := self._calls.get()) is not None:
            call, arguments, future = entry
            try:
                completion: _Completion = (future, call(*arguments), None)
            except BaseException as error:  # noqa: BLE001 - raised again where the future is awaited
                completion = (future, None, error)
            del entry, call, arguments, future
            self._complete(completion)
            del completion

    def _complete(self, completion: _Completion) -> None:
        # The order matters: the completion is appended before the flag is read. The loop clears the flag before it
        # empties the queue. Each completion is either delivered by the running pass over the queue, or finds the flag
        # clear and wakes the loop again.
        self._completions.append(completion)
        if not self._waking:
            self._waking = True
            self._loop.call_soon_threadsafe(self._deliver)

    def _deliver(self) -> None:
        self._waking = False
        while self._completions:
            future, result, error = self._completions.popleft()
            self._unfinished -= 1
            if future.done():
                continue
            if error is None:
                future.set_result(result)
            else:
                future.set_exception(error)
        if not self._unfinished:
            self._notify_idle()

    def _notify_idle(self) -> None:
        waiting, self._idle = self._idle, []
        for waiter in waiting:
            if not waiter.done():
                waiter.set_result(None)
