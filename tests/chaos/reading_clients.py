"""Clients that read records and request log ends during faults, and a client that reads all records afterwards."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

from pyreqwest.exceptions import PyreqwestError

from chaos_cluster import Answer, ChaosCluster, call, http_client, pause
from fairlead import Consumer, FairleadError, TopicPartition
from fairlead.errors import LogTruncatedError
from fairlead_api.batch.batches import decode_records
from fairlead_api.batch.header import iterate_headers
from history_recorder import HistoryRecorder
from producing_clients import BATCHES, REFUSED_PAUSE_SECONDS, round_robin

if TYPE_CHECKING:
    from pyreqwest.client import Client

READ_SECONDS: Final = "3s"
ASK_SECONDS: Final = 0.3


class SdkReader:
    """Reads every partition from the start with the SDK's consumer; after an error, a new consumer continues."""

    def __init__(
        self, cluster: ChaosCluster, history: HistoryRecorder, topic: str, partitions: int, **more: Any
    ) -> None:
        self._cluster, self._history, self._topic = cluster, history, topic
        self._partitions = partitions
        self._more = more
        self._positions = dict.fromkeys(range(partitions), 0)
        self.stopping = asyncio.Event()
        self.truncations: list[LogTruncatedError] = []

    async def run(self) -> None:
        """Read until stopped."""
        while not self.stopping.is_set():
            try:
                await self._read()
            except LogTruncatedError as error:
                self.truncations.append(error)
                self._forget(error)
            except FairleadError as error:
                self._history.note("note", "ok", reader=str(error))
                await pause(REFUSED_PAUSE_SECONDS)

    def _forget(self, error: LogTruncatedError) -> None:
        """Continue at the end of the remaining log; records beyond this end count as never read."""
        end = error.data["end_offset"]
        assert isinstance(end, int), error.data
        self._positions = {partition: min(position, end) for partition, position in self._positions.items()}

    async def _read(self) -> None:
        process = self._history.process()
        async with Consumer(
            self._cluster.urls, request_timeout="5s", connect_timeout="2s", **self._more
        ) as consumer:
            await consumer.assign([TopicPartition(self._topic, each) for each in self._positions])
            for partition, position in self._positions.items():
                if position:
                    await consumer.seek(TopicPartition(self._topic, partition), position)
            starts = {f"{self._topic}-{each}": position for each, position in self._positions.items()}
            self._history.note("assign", "ok", process=process, keys=starts)
            while not self.stopping.is_set():
                began = self._history.now
                batch = await consumer.next_batch(READ_SECONDS)
                if batch is None:
                    continue
                records = [[record.offset, (record.value or b"").decode()] for record in batch]
                key = f"{self._topic}-{batch.partition}"
                self._history.note("poll", "ok", process=process, key=key, records=records, began=began)
                self._positions[batch.partition] = batch.offsets[-1] + 1


class PlainReader:
    """Plain fetches of one partition, from one broker after another."""

    def __init__(self, cluster: ChaosCluster, history: HistoryRecorder, topic: str, partition: int) -> None:
        self._cluster, self._history = cluster, history
        self._topic, self._partition = topic, partition
        self._urls = round_robin(cluster, 0)
        self.stopping = asyncio.Event()

    async def run(self) -> None:
        """Read until stopped."""
        process, position, key = self._history.process(), 0, f"{self._topic}-{self._partition}"
        self._history.note("assign", "ok", process=process, keys={key: 0})
        async with http_client() as client:
            while not self.stopping.is_set():
                began = self._history.now
                got = await fetch(client, next(self._urls), self._topic, self._partition, position)
                if got is None:
                    await pause(REFUSED_PAUSE_SECONDS)
                    continue
                records, position, high_watermark = got
                told = {} if high_watermark is None else {"high_watermark": high_watermark}
                self._history.note(
                    "poll",
                    "ok",
                    process=process,
                    key=key,
                    records=records,
                    began=began,
                    position=position,
                    **told,
                )


class Asker:
    """Requests the end of every partition from one broker after another."""

    def __init__(self, cluster: ChaosCluster, history: HistoryRecorder, topic: str, partitions: int) -> None:
        self._history, self._topic, self._partitions = history, topic, partitions
        self._urls = round_robin(cluster, 1)
        self.stopping = asyncio.Event()

    async def run(self) -> None:
        """Ask until stopped."""
        process = self._history.process()
        async with http_client() as client:
            while not self.stopping.is_set():
                for partition in range(self._partitions):
                    key = f"{self._topic}-{partition}"
                    number = self._history.begin_question(process, key)
                    end = await ask_end(client, next(self._urls), self._topic, partition)
                    told = {} if end is None else {"high_watermark": end}
                    kind = "fail" if end is None else "ok"
                    self._history.note("offsets", kind, process=process, id=number, key=key, **told)
                await pause(ASK_SECONDS)


async def fetch(
    client: Client, url: str, topic: str, partition: int, offset: int
) -> tuple[list[list[object]], int, int | None] | None:
    """Fetch from one broker; return records, next offset and high watermark, or None when the broker refuses."""
    path = f"/v1/topics/{topic}/partitions/{partition}/records?offset={offset}&max_wait_ms=200"
    try:
        answer = await call(client, "GET", url + path, headers={"accept": BATCHES}, seconds=5.0)
    except PyreqwestError:
        return None
    if answer.status not in {200, 204}:
        return None
    found = [
        record
        for at, header in iterate_headers(answer.body)
        for record in decode_records(answer.body[at : at + header.total_bytes])
        if record.offset >= offset
    ]
    records: list[list[object]] = [[each.offset, (each.value or b"").decode()] for each in found]
    position = int(_header(answer, "fairlead-next-offset") or (found[-1].offset + 1 if found else offset))
    high_watermark = _header(answer, "fairlead-high-watermark")
    return records, position, None if high_watermark is None else int(high_watermark)


async def ask_end(client: Client, url: str, topic: str, partition: int) -> int | None:
    """Request the high watermark from one broker; return None if the broker refuses."""
    try:
        answer = await call(
            client, "GET", f"{url}/v1/topics/{topic}/partitions/{partition}/offsets", seconds=5.0
        )
    except PyreqwestError:
        return None
    return int(answer.json["high_watermark"]) if answer.status == 200 else None


def _header(answer: Answer, name: str) -> str | None:
    return next((value for key, value in answer.headers.items() if key.lower() == name), None)


async def read_everything(
    cluster: ChaosCluster, history: HistoryRecorder, topic: str, partitions: int, seconds: float = 60.0
) -> None:
    """Read every partition from its first offset to its end with a new client, and record the end.

    When records are not received in time, the history has no end, and its verdict is unknown.
    """
    process, ends = history.process(), {}
    keys = [f"{topic}-{partition}" for partition in range(partitions)]
    history.note("assign", "ok", process=process, keys=dict.fromkeys(keys, 0))
    deadline = asyncio.get_running_loop().time() + seconds
    urls = round_robin(cluster, 0)
    async with http_client() as client:
        for partition, key in enumerate(keys):
            position, end = 0, None
            while end is None or position < end:
                if asyncio.get_running_loop().time() > deadline:
                    return
                got = await fetch(client, next(urls), topic, partition, position)
                if got is None:
                    await pause(REFUSED_PAUSE_SECONDS)
                    continue
                records, position, _ = got
                told = {"records": records, "position": position, "final": True}
                history.note("poll", "ok", process=process, key=key, **told)
                if not records:
                    end = await ask_end(client, next(urls), topic, partition)
            ends[key] = end
    history.note("end", "ok", keys=ends)
