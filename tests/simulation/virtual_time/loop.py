"""An event loop whose time passes only when no task can run."""

from __future__ import annotations

import asyncio
import contextvars
import itertools
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from virtual_time.life import LIFE, Life

T = TypeVar("T")
_numbers = itertools.count()


class NumberedTask(asyncio.Task[Any]):
    """A task with a number as its hash, so that its place in a set is reproducible."""

    def __init__(self, *arguments: Any, life: Life | None, **named: Any) -> None:
        self._number = next(_numbers)
        self.life = life
        super().__init__(*arguments, **named)

    def __hash__(self) -> int:
        return self._number


class NumberedFuture(asyncio.Future[Any]):
    """A future with a number as its hash."""

    def __init__(self, *, loop: asyncio.AbstractEventLoop) -> None:
        self._number = next(_numbers)
        self.life = LIFE.get()
        super().__init__(loop=loop)

    def __hash__(self) -> int:
        return self._number


async def pass_time(seconds: float) -> None:
    """Sleep for seconds of the loop's time."""
    loop = asyncio.get_running_loop()
    over = loop.create_future()
    timer = loop.call_later(seconds, _set, over)
    try:
        await over
    finally:
        timer.cancel()


def _set(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


class NothingLeft(RuntimeError):
    """Error raised when every task waits and no timer is set."""


class VirtualLoop(asyncio.BaseEventLoop):
    """A loop that runs callbacks and timers in order, without files, sockets and threads."""

    def __init__(self) -> None:
        """Start the loop's clock at 0 seconds."""
        super().__init__()
        global _numbers  # noqa: PLW0603 - each world counts from 0
        _numbers = itertools.count()
        self._now = 0.0
        # The base class asks the selector for outside events, but there are none.
        self._selector = self
        self.set_task_factory(_task_of_a_life)
        self.unexpected: list[dict[str, Any]] = []
        """Uncaught errors of tasks and callbacks of running processes."""
        self.set_exception_handler(self._note)

    def create_future(self) -> asyncio.Future[Any]:
        """Return a future with a number."""
        return NumberedFuture(loop=self)

    def time(self) -> float:
        """Return the seconds since the start of the loop."""
        return self._now

    def select(self, timeout: float | None) -> list[Any]:
        """Advance the time to the next timer."""
        if timeout is None:
            raise NothingLeft
        if timeout > 0:
            self._now += timeout
        return []

    def run_in_executor(  # type: ignore[override]
        self, executor: object, call: Callable[..., T], *arguments: Any
    ) -> asyncio.Future[T]:
        """Run a call in the loop's next turn, instead of in a thread."""
        del executor
        future: asyncio.Future[T] = self.create_future()

        def run() -> None:
            if future.done():
                return
            try:
                future.set_result(call(*arguments))
            except Exception as error:  # noqa: BLE001 - raised again where the future is awaited
                future.set_exception(error)

        self.call_soon(run)
        return future

    def _process_events(self, event_list: list[Any]) -> None:
        assert not event_list

    def _write_to_self(self) -> None:
        """Do nothing, because every caller is on the loop."""

    def _note(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        del loop
        life = _life_of(context)
        if life is None or not life.dead:
            self.unexpected.append(context)


def _task_of_a_life(
    loop: asyncio.AbstractEventLoop,
    work: Coroutine[Any, Any, T],
    context: contextvars.Context | None = None,
) -> asyncio.Task[T]:
    life = LIFE.get() if context is None else context.get(LIFE)
    task = NumberedTask(work, loop=loop, context=context, life=life)
    if life is not None:
        life.adopt(task)
    return task


def _life_of(context: dict[str, Any]) -> Life | None:
    """Return the simulated process of the failed callback, task or future."""
    handle = context.get("handle")
    if handle is not None:
        life: Life | None = handle._context.get(LIFE)
        return life
    return getattr(context.get("task") or context.get("future"), "life", None)
