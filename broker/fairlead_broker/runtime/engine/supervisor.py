"""Owner of the runtime's tasks, and of tasks beside a partition's own task.

All tasks live in one TaskGroup inside one owner task. A task that raises an unexpected exception ends the group and
with it the broker: a broker that partly works would keep leaderships that it does not serve.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final

AGAIN_SECONDS: Final = 5.0
"""Time for a task to end before it is cancelled once more."""


class Supervisor:
    """Starts tasks, ends them all, and reports the first failure."""

    __slots__ = ("_end", "_group", "_opened", "_owner", "_tasks", "failure")

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self._group = asyncio.TaskGroup()
        self._opened: asyncio.Future[None] = loop.create_future()
        self._end = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._owner: asyncio.Task[None] | None = None
        self.failure: asyncio.Future[BaseException] = loop.create_future()
        """Future that gets the exception of the first failed task."""

    async def start(self) -> None:
        """Open the group; tasks may be spawned from here on."""
        # The owner of every other task: kept here, awaited by `stop`.
        self._owner = asyncio.create_task(self._own(), name="supervisor")  # noqa: TID251
        await self._opened

    def spawn(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        """Start a task. It may end or be cancelled; if it raises, the broker fails."""
        task = self._group.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def stop(self) -> None:
        """Cancel the running tasks and wait for them."""
        self._end.set()
        if self._owner is not None:
            await self._owner

    async def _own(self) -> None:
        try:
            async with self._group:
                self._opened.set_result(None)
                await self._end.wait()
                while self._tasks:
                    for task in tuple(self._tasks):
                        task.cancel()
                    # A cancellation is lost if a timeout expires at the same moment: cancel again.
                    await asyncio.wait(tuple(self._tasks), timeout=AGAIN_SECONDS)
        except BaseExceptionGroup as failures:
            if not self.failure.done():
                self.failure.set_result(failures.exceptions[0])


class SideWork:
    """Tasks that are dropped when they end."""

    __slots__ = ("_spawn", "_tasks")

    def __init__(self, spawn: Callable[[Coroutine[Any, Any, None], str], asyncio.Task[None]]) -> None:
        """`spawn` starts a task of the broker, under a name."""
        self._spawn = spawn
        self._tasks: set[asyncio.Task[None]] = set()

    def __bool__(self) -> bool:
        return bool(self._tasks)

    def begin(self, work: Coroutine[Any, Any, None], name: str) -> None:
        """Start one piece of work."""
        task = self._spawn(work, name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def over(self) -> None:
        """Wait until all present tasks have ended. Raises an exception of one of them."""
        tasks = tuple(self._tasks)
        if tasks:
            # Not awaited one by one: after a failure they are cancelled, which is not our cancellation.
            await asyncio.wait(tasks)
        for task in tasks:
            if not task.cancelled():
                task.result()
