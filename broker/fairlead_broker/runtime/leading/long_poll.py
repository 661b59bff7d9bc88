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
        self, partitions: Iterable[Watched], seconds: float, disconnected: asyncio.Future[None] | None
    ) -> None:
        """Register with the partitions and wait until the poll is woken or times out.

        `disconnected` is done once the client has disconnected. No task waits for it, because the end of a task would
        delay the answer by two turns of the event loop.
        """
        watched = list(partitions)
        timer = asyncio.get_running_loop().call_later(seconds, self.wake)
        for partition in watched:
            partition.add_poll(self)
        if disconnected is not None:
            disconnected.add_done_callback(self._left)
        try:
            await self._woken
        finally:
            if disconnected is not None:
                disconnected.remove_done_callback(self._left)
            timer.cancel()
            for partition in watched:
                partition.remove_poll(self)

    def _left(self, disconnected: asyncio.Future[None]) -> None:
        del disconnected
        self.wake()
