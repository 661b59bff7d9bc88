"""Reads of committed records over plain HTTP, which are recorded in a history with their last stable offsets."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from pyreqwest.exceptions import PyreqwestError

from chaos_cluster import ChaosCluster, call, http_client, pause
from history_recorder import HistoryRecorder

if TYPE_CHECKING:
    from pyreqwest.client import Client

READ_HEADERS: Final = {"accept": "application/json"}
WAIT_MS: Final = 500
"""Maximum time for which a broker waits for records before it answers a reader that runs throughout."""
CALL_SECONDS: Final = 5.0


class RecordedReads:
    """Readers of some partitions, which a history names by topic and partition: `left-0`."""

    def __init__(
        self, cluster: ChaosCluster, rng: random.Random, history: HistoryRecorder, keys: Sequence[str]
    ) -> None:
        self._cluster = cluster
        self._rng = rng
        self._history = history
        self._keys = keys

    async def watch(self) -> None:
        """Read all partitions until cancelled."""
        async with http_client() as client, asyncio.TaskGroup() as group:
            for key in self._keys:
                group.create_task(self._follow(client, key))

    async def read_all(self, ends: Mapping[str, int]) -> None:
        """Read all partitions up to their ends, as the readers that read everything at the end of the history."""
        async with http_client() as client:
            await asyncio.gather(*(self._follow(client, key, end) for key, end in ends.items()))

    def start(self) -> int:
        """Return the number of a new reader, which reads all partitions from the beginning."""
        process = self._history.process()
        self._history.note("assign", "ok", process=process, keys=dict.fromkeys(self._keys, 0))
        return process

    async def _follow(self, client: Client, key: str, until: int | None = None) -> None:
        """Read a partition, up to an offset; without an offset, until cancelled."""
        process, offset = self._history.process(), 0
        self._history.note("assign", "ok", process=process, keys={key: 0})
        more: dict[str, object] = {} if until is None else {"final": True}
        while until is None or offset < until:
            answer = await self.poll(client, process, key, offset, wait_ms=WAIT_MS, **more)
            if answer is not None:
                offset = answer[0]

    async def poll(
        self, client: Client, process: int, key: str, offset: int, wait_ms: int = 0, **more: object
    ) -> tuple[int, int] | None:
        """Read from an offset once, at any broker; return the next offset and the last stable offset, or None.

        `more`: further entries of the event, such as the transaction that reads.
        """
        topic, partition = key.split("-")
        path = f"/v1/topics/{topic}/partitions/{partition}/records?isolation=read_committed&max_wait_ms={wait_ms}"
        url = f"{self._rng.choice(self._cluster.urls)}{path}&offset={offset}"
        try:
            answer = await call(client, "GET", url, headers=READ_HEADERS, seconds=CALL_SECONDS)
        except (PyreqwestError, TimeoutError):
            return None
        if answer.status not in (200, 204):
            await pause(0.1)
            return None
        position = int(answer.headers["fairlead-next-offset"])
        stable = int(answer.headers["fairlead-last-stable-offset"])
        records = []
        if answer.status == 200:
            records = [[each["offset"], each["value"]] for each in answer.json["records"]]
        if records or "txn" in more:
            self._history.note(
                "poll", "ok", process=process, key=key, records=records, position=position,
                last_stable_offset=stable, **more,
            )  # fmt: skip
        return position, stable
