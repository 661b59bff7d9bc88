"""Calls to leaders that end without an answer when another broker leads their partitions.

A broker whose machine is cut off, or whose process is paused, keeps its connections and never answers, while the
cluster elects other leaders. The sender and the fetcher therefore call leaders through this module: if an answer takes
longer than expected, the module asks another broker for metadata, and ends the call when the metadata shows another
leader. A slow leader that still leads is never given up early. The module must not depend on the meaning of the calls.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from fairlead.connection.metadata import MetadataCache
from fairlead.connection.transport import Answer, Call, Transport
from fairlead.errors import FairleadError, UnreachableError

DOUBT_SECONDS: Final = 1.0
"""Seconds without an answer after which the metadata is checked. Answers rarely take longer, because an overloaded
broker refuses requests instead."""

CHECK_SECONDS: Final = 0.25
"""Seconds between two checks, which delay the next attempt by half of this time on average."""


class LeaderCalls:
    """Calls of one client to the leaders of partitions."""

    def __init__(self, transport: Transport, metadata: MetadataCache) -> None:
        self._transport = transport
        self._metadata = metadata

    async def send(
        self, call: Call, leader: str, places: Sequence[tuple[str, int]], *, wait_seconds: float = 0.0
    ) -> Answer:
        """Send a call once to the leader of partitions, given as pairs of topic and partition.

        `wait_seconds` is the time for which the leader may delay its answer on purpose. Raises the errors of
        `Transport.send`, and `UnreachableError` if the call was ended because another broker leads the partitions.
        """
        loop = asyncio.get_running_loop()
        watch: asyncio.Task[None] | None = None

        def begin_watch() -> None:
            """Watch the metadata in a task, which only an overdue call needs."""
            nonlocal watch
            watch = loop.create_task(self._watch(leader, places, limit), name=f"doubt about {leader}")

        begun = loop.time()
        try:
            async with asyncio.timeout(None) as limit:
                timer = loop.call_later(wait_seconds + DOUBT_SECONDS, begin_watch)
                try:
                    return await self._transport.send(call, leader)
                finally:
                    timer.cancel()
                    if watch is not None:
                        watch.cancel()
        except TimeoutError as error:
            cause = f"no answer within {loop.time() - begun:.1f} s, and another broker leads"
            raise UnreachableError(call.subject, {leader: cause}, sent=True) from error

    async def _watch(self, leader: str, places: Sequence[tuple[str, int]], limit: asyncio.Timeout) -> None:
        """Refresh the metadata until another broker leads the partitions, then end the call."""
        while True:
            self._transport.doubt(leader)
            with suppress(FairleadError):
                await self._metadata.refresh()
            if self._is_replaced(leader, places):
                break
            await asyncio.sleep(CHECK_SECONDS)  # noqa: TID251 - the pause before the next check
        limit.reschedule(asyncio.get_running_loop().time())

    def _is_replaced(self, leader: str, places: Sequence[tuple[str, int]]) -> bool:
        """Return whether the broker leads none of the partitions, and at least one has another leader."""
        leaders = {self._metadata.picture.leader(*place) for place in places}
        return leader not in leaders and leaders != {None}
