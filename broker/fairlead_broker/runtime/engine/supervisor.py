"""Owner of the runtime's tasks, and of side tasks that run in addition to a partition's own task.

All tasks run in one TaskGroup inside one owner task. An unexpected exception of a task stops the group and the broker:
otherwise a partly failed broker would remain the leader of partitions that it no longer serves.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final

AGAIN_SECONDS: Final = 5.0
"""Number of seconds after which a cancelled task that has not ended is cancelled again."""


class Supervisor:
    """Task group that starts tasks, stops all of them, and reports the first failure."""

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
        """Open the task group, so that `spawn` can start tasks."""
        # The owner task runs every other task. `stop` awaits the owner task.
        self._owner = asyncio.create_task(self._own(), name="supervisor")  # noqa: TID251
        await self._opened

    def spawn(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        """Start a task. The task may return or be cancelled; if the task raises an exception, the broker fails."""
        task = self._group.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def stop(self) -> None:
        """Cancel the running tasks and wait until they have ended."""
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
                    # A cancellation is lost if a timeout of the task expires at the same moment. Tasks that have not
                    # ended after a pause are therefore cancelled again.
                    await asyncio.wait(tuple(self._tasks), timeout=AGAIN_SECONDS)
        except BaseExceptionGroup as failures:
            if not self.failure.done():
                self.failure.set_result(failures.exceptions[0])


class SideWork:
    """Set of running tasks; tasks that end are removed from the set."""

    __slots__ = ("_spawn", "_tasks")

    def __init__(self, spawn: Callable[[Coroutine[Any, Any, None], str], asyncio.Task[None]]) -> None:
        """`spawn` starts a named task of the broker."""
        self._spawn = spawn
        self._tasks: set[asyncio.Task[None]] = set()

    def __bool__(self) -> bool:
        return bool(self._tasks)

    def begin(self, work: Coroutine[Any, Any, None], name: str) -> None:
        """Start a task."""
        task = self._spawn(work, name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def over(self) -> None:
        """Wait until all current tasks have ended. Raises the exception of a failed task."""
        tasks = tuple(self._tasks)
        if tasks:
            # The tasks are not awaited one by one: a failure cancels the other tasks, and awaiting a cancelled task
            # would raise `CancelledError` here.
            await asyncio.wait(tasks)
        for task in tasks:
            if not task.cancelled():
                task.result()
