"""Work of one owner that goes on beside it, and that it can wait for.

For `hosted_partitions`, whose one task must hold up no role while a log is recovered or files are deleted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any


class SideWork:
    """Tasks that are forgotten as they end."""

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
        """Wait until all that goes on now has ended. Raises what one of them has raised."""
        tasks = tuple(self._tasks)
        if tasks:
            # Not awaited one by one: after a failure they are cancelled, which is not our cancellation.
            await asyncio.wait(tasks)
        for task in tasks:
            if not task.cancelled():
                task.result()
