"""Members of a consumer group, which commit the delivered records; a history contains both deliveries and commits."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any, Final, Protocol

from chaos_cluster import pause
from fairlead import Consumer, ConsumerBatch, FairleadError, TopicPartition
from history_recorder import HistoryRecorder
from producing_clients import REFUSED_PAUSE_SECONDS

GROUP: Final = "members"
SESSION_SECONDS: Final = 6
POLL_SECONDS: Final = "1s"


class Addressed(Protocol):
    """A reader's view of the cluster: the addresses of its brokers."""

    @property
    def urls(self) -> list[str]:
        """Return the addresses of all brokers."""


class GroupReader:
    """The SDK's consumer as a member: every batch is recorded and committed before the next batch is read."""

    def __init__(
        self, cluster: Addressed, history: HistoryRecorder, topic: str, group: str = GROUP, **more: Any
    ) -> None:
        self._cluster, self._history, self._topic, self._group = cluster, history, topic, group
        self._more = {"session_timeout": f"{SESSION_SECONDS}s", **more}
        self.stopping = asyncio.Event()
        self.assigned = 0
        """Number of times that each partition was assigned."""

    async def run(self) -> None:
        """Read until stopped, and continue as a new member after an error."""
        while not self.stopping.is_set():
            try:
                await self._read(self._history.process())
            except FairleadError as error:
                self._history.note("note", "ok", member=str(error))
                await pause(REFUSED_PAUSE_SECONDS)

    async def _read(self, process: int) -> None:
        def assigned(partitions: Iterable[TopicPartition]) -> None:
            places = sorted(partitions)
            self.assigned += len(places)
            starts = {f"{place.topic}-{place.partition}": consumer.position(place) for place in places}
            if starts:
                self._history.note("assign", "ok", process=process, keys=starts)

        consumer = Consumer(
            self._cluster.urls,
            group=self._group,
            topics=[self._topic],
            commit="manual",
            on_assigned=assigned,
            request_timeout="5s",
            connect_timeout="2s",
            **self._more,
        )
        async with consumer:
            while not self.stopping.is_set():
                began = self._history.now
                batch = await consumer.next_batch(POLL_SECONDS)
                if batch is not None:
                    await self._take(consumer, process, batch, began)

    async def _take(self, consumer: Consumer, process: int, batch: ConsumerBatch, began: float) -> None:
        key = f"{self._topic}-{batch.partition}"
        records = [[record.offset, (record.value or b"").decode()] for record in batch]
        self._history.note(
            "poll", "ok", process=process, key=key, records=records, began=began, group=self._group
        )
        place = TopicPartition(self._topic, batch.partition)
        epoch = consumer.membership.member_epoch
        number = self._history.begin_commit(process, self._group, key, batch.next_offset, epoch)
        # Whatever the last error was, an earlier attempt to commit may have succeeded.
        outcome = "info"
        try:
            await consumer.commit({place: batch.next_offset})
            outcome = "ok"
        except FairleadError as error:
            self._history.note("note", "ok", commit=str(error))
        finally:
            self._history.note("commit", outcome, process=process, id=number, group=self._group, key=key)
