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
    """Context manager that sets ``gone`` when the client of a fully read request disconnects."""

    __slots__ = ("_receive", "_task", "_timer", "gone")

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._task: asyncio.Task[None] | None = None
        self.gone = asyncio.Event()
        self._timer = asyncio.get_running_loop().call_later(WATCH_AFTER_SECONDS, self._begin)

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
        self.gone.set()


async def unless_gone(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """Return the result of the work; if the client of a fully read request disconnects, cancel the work.

    Raises ClientGone after a disconnect.
    """
    # The function owns the tasks of the work and of the watch; all tasks have ended when the function returns.
    task = asyncio.get_running_loop().create_task(work)
    with DisconnectWatch(receive) as watch:
        leaving = asyncio.get_running_loop().create_task(watch.gone.wait())
        try:
            await asyncio.wait({task, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                raise ClientGone
            return task.result()
        finally:
            leaving.cancel()
            if not task.done():
                task.cancel()
                await asyncio.wait({task})
