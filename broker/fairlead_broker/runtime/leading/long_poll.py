"""Long poll: a fetch that waits until its partitions have enough bytes.

Each partition reports the number of bytes by which its high watermark has advanced. The poll wakes when enough bytes
are available, without a polling loop. An idle long poll costs one future and one timer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Protocol


class Watched(Protocol):
    """Interface through which a long poll watches a partition."""

    def add_poll(self, poll: LongPoll) -> None:
        """Register a long poll that is notified of later advances of the high watermark."""
        ...

    def remove_poll(self, poll: LongPoll) -> None:
        """Unregister a long poll."""
        ...


class LongPoll:
    """A waiting fetch."""

    __slots__ = ("_missing_bytes", "_woken", "committed")

    def __init__(self, missing_bytes: int, *, committed: bool = False) -> None:
        self._missing_bytes = missing_bytes
        self.committed = committed
        """Whether the fetch waits for the last stable offset instead of the high watermark."""
        self._woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def advanced(self, nbytes: int) -> None:
        """Record that a partition can serve more bytes."""
        self._missing_bytes -= nbytes
        if self._missing_bytes <= 0:
            self.wake()

    def wake(self) -> None:
        """End the wait.

        The wait ends when enough bytes exist, a partition or the broker closes, or the client has disconnected.
        """
        if not self._woken.done():
            self._woken.set_result(None)

    async def wait(
        self, partitions: Iterable[Watched], seconds: float, disconnected: asyncio.Event | None
    ) -> None:
        """Register with the partitions and wait until the poll is woken or times out."""
        watched = list(partitions)
        timer = asyncio.get_running_loop().call_later(seconds, self.wake)
        for partition in watched:
            partition.add_poll(self)
        try:
            if disconnected is None:
                await self._woken
            else:
                await self._until_woken_or(disconnected)
        finally:
            timer.cancel()
            for partition in watched:
                partition.remove_poll(self)

    async def _until_woken_or(self, disconnected: asyncio.Event) -> None:
        async with asyncio.TaskGroup() as group:
            watcher = group.create_task(self._wake_at(disconnected))
            await self._woken
            watcher.cancel()

    async def _wake_at(self, disconnected: asyncio.Event) -> None:
        await disconnected.wait()
        self.wake()
