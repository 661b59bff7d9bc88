"""One life of one process: the tasks that end with it."""

from __future__ import annotations

import asyncio
from contextvars import ContextVar
from typing import Any


class Life:
    """What a process has started. It dies as by SIGKILL: nothing that it began afterwards has any effect."""

    def __init__(self, name: str, residence: str = "") -> None:
        """Begin without tasks. `residence`: the boot of the machine, for which written bytes are kept."""
        self.name = name
        self.residence = residence
        self.dead = False
        self._tasks: dict[int, asyncio.Task[Any]] = {}
        self._made = 0

    def adopt(self, task: asyncio.Task[Any]) -> None:
        """End a task with this life."""
        self._made += 1
        number = self._made
        self._tasks[number] = task
        task.add_done_callback(lambda _: self._tasks.pop(number, None))

    def end(self) -> None:
        """Die. The tasks get to know by being cancelled; what they still try is cut off by disk, store and network."""
        self.dead = True
        for task in list(self._tasks.values()):
            # Nobody asks a dead task how it ended.
            task.add_done_callback(_forget)
            task.cancel()


def _forget(task: asyncio.Task[Any]) -> None:
    if not task.cancelled():
        task.exception()


LIFE: ContextVar[Life | None] = ContextVar("life", default=None)
"""The process that runs now; None for the world around them."""
