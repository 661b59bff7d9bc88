"""A fetch that waits for bytes in any of its partitions.

Each partition reports how many bytes the high watermark has passed, and the poll wakes when they suffice; nothing is
polled in a loop. An idle long poll costs one future and one timer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Protocol


class Watched(Protocol):
    """A partition as a long poll sees it."""

    def add_poll(self, poll: LongPoll) -> None:
        """Report moves of the high watermark to the poll from now on."""
        ...

    def remove_poll(self, poll: LongPoll) -> None:
        """Stop reporting to the poll."""
        ...


class LongPoll:
    """One waiting fetch."""

    __slots__ = ("_missing_bytes", "_woken")

    def __init__(self, missing_bytes: int) -> None:
        self._missing_bytes = missing_bytes
        self._woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def advanced(self, nbytes: int) -> None:
        """Count bytes that a partition can serve in addition."""
        self._missing_bytes -= nbytes
        if self._missing_bytes <= 0:
            self.wake()

    def wake(self) -> None:
        """End the wait now: enough bytes are available, the partition or the broker ends, or the caller is gone."""
        if not self._woken.done():
            self._woken.set_result(None)

    async def wait(
        self, partitions: Iterable[Watched], seconds: float, disconnected: asyncio.Event | None
    ) -> None:
        """Wait at the partitions until woken, or for at most this many seconds."""
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
