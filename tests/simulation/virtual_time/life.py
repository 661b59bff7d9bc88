"""A simulated process, and the tasks that end with it."""

from __future__ import annotations

import asyncio
from contextvars import ContextVar
from typing import Any


class Life:
    """The tasks of a process, which ends as if by SIGKILL: its later operations have no effect."""

    def __init__(self, name: str, residence: str = "") -> None:
        """Start without tasks; `residence` names the boot of the machine, during which written bytes are kept."""
        self.name = name
        self.residence = residence
        self.dead = False
        self._tasks: dict[int, asyncio.Task[Any]] = {}
        self._made = 0

    def adopt(self, task: asyncio.Task[Any]) -> None:
        """End a task when this process ends."""
        self._made += 1
        number = self._made
        self._tasks[number] = task
        task.add_done_callback(lambda _: self._tasks.pop(number, None))

    def end(self) -> None:
        """End the process: its tasks are cancelled, and disk, store and network ignore their further operations."""
        self.dead = True
        for task in list(self._tasks.values()):
            # The result of a cancelled task is not read.
            task.add_done_callback(_forget)
            task.cancel()


def _forget(task: asyncio.Task[Any]) -> None:
    if not task.cancelled():
        task.exception()


LIFE: ContextVar[Life | None] = ContextVar("life", default=None)
"""Simulated process that runs the current task, or None for a task outside simulated processes."""
