"""Detection of clients that disconnect while their long polls wait.

Callers: ``fetch``, ``peer_calls`` and ``forwarding``. granian does not cancel the handler of a request whose client has
disconnected. Without this detection, the long poll of a disconnected client would occupy its slot until it times out.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from types import TracebackType
from typing import Any, Self, TypeVar

from fairlead_broker.server.http.asgi import Receive
from fairlead_broker.server.http.body import ClientGone

# Most fetches are answered immediately. Watching every fetch from the start would cost one task each, which is a fifth
# of the time of a small fetch.
WATCH_AFTER_SECONDS = 0.005


T = TypeVar("T")


class DisconnectWatch:
    """Context manager that completes ``gone`` when the client of a fully read request disconnects."""

    __slots__ = ("_receive", "_task", "_timer", "gone")

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._task: asyncio.Task[None] | None = None
        loop = asyncio.get_running_loop()
        self.gone: asyncio.Future[None] = loop.create_future()
        self._timer = loop.call_later(WATCH_AFTER_SECONDS, self._begin)

    def end(self) -> None:
        """End the wait as if the client had disconnected."""
        if not self.gone.done():
            self.gone.set_result(None)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._timer.cancel()
        if self._task is not None:
            self._task.cancel()

    def _begin(self) -> None:
        # The watch owns the task and cancels it when the ``with`` block exits. A task group would slow down every
        # fetch.
        self._task = asyncio.get_running_loop().create_task(self._watch())

    async def _watch(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self.end()


async def unless_gone(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """Return the result of the work; if the client of a fully read request disconnects, cancel the work.

    Raises ClientGone after a disconnect.
    """
    # The function owns the tasks of the work and of the watch; all tasks have ended when the function returns.
    task = asyncio.get_running_loop().create_task(work)
    with DisconnectWatch(receive) as watch:
        try:
            ends: set[asyncio.Future[Any]] = {task, watch.gone}
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                raise ClientGone
            return task.result()
        finally:
            if not task.done():
                task.cancel()
                await asyncio.wait({task})
