"""Threads for calls that may block. The threads wake the event loop as rarely as possible.

The runtime has two pools: one appends and reads, one syncs. A standard executor needs a lock, a condition and two
futures for each call, and one wake-up of the loop for each completion; on the produce path, this overhead took a third
of the loop's time. A call to this pool is one queue entry. Short calls of one iteration of the loop share an entry.
Completions that accumulate while the loop is busy share one wake-up.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any, Final, TypeVar

Answer = TypeVar("Answer")

_Call = tuple[Callable[..., Any], tuple[Any, ...], "asyncio.Future[Any]"]
_Completion = tuple["asyncio.Future[Any]", Any, BaseException | None]

SHORT_CALLS_MAX: Final = 8
"""Maximum number of short calls that share a thread; each of them waits until the others are done."""
LONG_CALL_SECONDS: Final = 0.005
"""Average duration of calls above which another thread of a patient pool starts."""
PATIENCE_SECONDS: Final = 0.02
"""Time after which a patient pool decides whether another thread starts."""


class DiskPool:
    """Thread pool for the blocking calls of one event loop; implements `ports.BlockingWork`.

    When a call would have to wait for a thread, another thread starts, up to `threads_max`. A patient pool starts
    another thread only if calls wait and the running calls are long, because threads with many short calls compete for
    the interpreter and take longer than one thread. A pool must be created and closed on the event loop.
    """

    __slots__ = (
        "_calls",
        "_completions",
        "_finished",
        "_idle",
        "_loop",
        "_name",
        "_patience",
        "_patient",
        "_short",
        "_threads",
        "_threads_max",
        "_unfinished",
        "_waking",
    )

    def __init__(self, name: str, threads_max: int, *, patient: bool = False) -> None:
        self._loop = asyncio.get_running_loop()
        self._name = name
        self._patient = patient
        self._patience: asyncio.TimerHandle | None = None
        self._finished = 0
        """Number of calls that have finished since a patient pool last decided about another thread."""
        self._threads_max = threads_max
        self._threads: list[threading.Thread] = []
        self._calls: SimpleQueue[Sequence[_Call] | None] = SimpleQueue()
        """Queue of entries, each with the calls that one thread runs one after the other."""
        self._short: list[_Call] = []
        """Short calls of the current iteration of the loop."""
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
        self._start([(call, arguments, future)])
        return future

    def submit_short(self, call: Callable[..., Answer], *arguments: Any) -> asyncio.Future[Answer]:
        """Start a call that is expected to take less time than the wake-up of a thread; return a future like `submit`.

        Up to `SHORT_CALLS_MAX` short calls of one iteration of the loop run in one thread, and their futures are done
        in the same iteration. Separate threads would compete for the interpreter, which delays the last call.
        """
        future: asyncio.Future[Answer] = self._loop.create_future()
        self._unfinished += 1
        if not self._short:
            self._loop.call_soon(self._start_short)
        self._short.append((call, arguments, future))
        if len(self._short) == SHORT_CALLS_MAX:
            self._start_short()
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
        self._start_short()
        with suppress(Empty):
            while True:
                for _, _, future in self._calls.get_nowait() or ():
                    future.cancel()
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
        self._start_short()
        if self._patience is not None:
            self._patience.cancel()
        for _ in self._threads:
            self._calls.put(None)
        for thread in self._threads:
            thread.join()
        self._threads.clear()

    def _start(self, entry: Sequence[_Call]) -> None:
        if len(self._threads) < min(self._unfinished, self._threads_max):
            if self._threads and self._patient:
                self._be_patient()
            else:
                self._start_thread()
        self._calls.put(entry)

    def _be_patient(self) -> None:
        if self._patience is None:
            self._finished = 0
            self._patience = self._loop.call_later(PATIENCE_SECONDS, self._reconsider)

    def _reconsider(self) -> None:
        """Start another thread if calls wait and the finished calls were long on average."""
        self._patience = None
        if not self._threads or len(self._threads) >= min(self._unfinished, self._threads_max):
            return
        if self._finished * LONG_CALL_SECONDS < len(self._threads) * PATIENCE_SECONDS:
            self._start_thread()
        self._be_patient()

    def _start_short(self) -> None:
        if self._short:
            entry, self._short = self._short, []
            self._start(entry)

    def _start_thread(self) -> None:
        thread = threading.Thread(target=self._work, name=f"{self._name}-{len(self._threads)}")
        self._threads.append(thread)
        thread.start()

    def _work(self) -> None:
        while (entry := self._calls.get()) is not None:
            self._complete([completed(*call) for call in entry])
            del entry

    def _complete(self, completions: Sequence[_Completion]) -> None:
        # The order matters: the completions are appended before the flag is read. The loop clears the flag before it
        # empties the queue. Each completion is either delivered by the running pass over the queue, or finds the flag
        # clear and wakes the loop again.
        self._completions.extend(completions)
        if not self._waking:
            self._waking = True
            self._loop.call_soon_threadsafe(self._deliver)

    def _deliver(self) -> None:
        self._waking = False
        while self._completions:
            future, result, error = self._completions.popleft()
            self._unfinished -= 1
            self._finished += 1
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


def completed(
    call: Callable[..., Any], arguments: tuple[Any, ...], future: asyncio.Future[Any]
) -> _Completion:
    """Run a call and return its future with its result or its exception."""
    try:
        return future, call(*arguments), None
    except BaseException as error:  # noqa: BLE001 - raised again where the future is awaited
        return future, None, error
