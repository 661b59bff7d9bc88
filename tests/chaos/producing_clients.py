"""Clients that produce until they are stopped, and record their requests and answers in a history.

A process sends to one partition. After a request with an unknown outcome, the client continues as a new process.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator
from contextlib import AsyncExitStack, suppress
from typing import TYPE_CHECKING, Final

import msgspec
from pyreqwest.exceptions import PyreqwestError

from chaos_cluster import Answer, ChaosCluster, call, http_client, pause
from fairlead import Delivery, FairleadError, Producer
from fairlead_api.batch.batches import encode, record_batch
from history_recorder import HistoryRecorder

if TYPE_CHECKING:
    from pyreqwest.client import Client

BATCHES: Final = "application/vnd.fairlead.batches"
BURST: Final = 8
"""Number of records that an idempotent process has in flight."""
PAUSE_SECONDS: Final = 0.02
REFUSED_PAUSE_SECONDS: Final = 0.2
REQUEST_SECONDS: Final = 15.0


def round_robin(cluster: ChaosCluster, first: int) -> Iterator[str]:
    """Return all brokers in turn, including dead brokers, as a plain load balancer does."""
    return itertools.islice(itertools.cycle(cluster.urls), first, None)


def outcome_of(error: FairleadError) -> str:
    """Return the outcome of a refused send: certainly not stored, or unknown."""
    effect = getattr(error, "side_effect", None)
    return "fail" if effect is not None and effect.value == "none" else "info"


class SdkProducer:
    """The SDK's producer on some partitions: idempotent with several records in flight, or with single sends."""

    def __init__(
        self,
        cluster: ChaosCluster,
        history: HistoryRecorder,
        topic: str,
        partitions: range,
        *,
        idempotent: bool,
        pause_seconds: float = PAUSE_SECONDS,
    ) -> None:
        self._cluster, self._history, self._topic = cluster, history, topic
        self._partitions = partitions
        self._idempotent = idempotent
        self._pause_seconds = pause_seconds
        self.stopping = asyncio.Event()

    async def run(self) -> None:
        """Produce until stopped."""
        while not self.stopping.is_set():
            async with AsyncExitStack() as stack:
                try:
                    producer = await self._open(stack)
                    await asyncio.gather(*(self._produce(producer, each) for each in self._partitions))
                except FairleadError:
                    await pause(REFUSED_PAUSE_SECONDS)

    async def _open(self, stack: AsyncExitStack) -> Producer:
        more = {} if self._idempotent else {"retries_max": 0, "idempotence": False, "linger_ms": 0}
        producer = Producer(
            self._cluster.urls,
            delivery_timeout="40s",
            request_timeout="10s",
            connect_timeout="2s",
            **more,  # type: ignore[arg-type]
        )
        await producer.start()
        # The delivery of each record has already reported its failure.
        stack.push_async_callback(_close, producer)
        return producer

    async def _produce(self, producer: Producer, partition: int) -> None:
        process = self._history.process()
        while not self.stopping.is_set():
            burst: list[tuple[int, Delivery]] = []
            for _ in range(BURST if self._idempotent else 1):
                number, (value,) = self._history.begin_send(process, f"{self._topic}-{partition}")
                try:
                    delivery = await producer.send(self._topic, value.encode(), partition=partition)
                except FairleadError:
                    self._history.end_send(process, number, "fail")
                    raise
                burst.append((number, delivery))
            kinds = [await self._settle(process, number, delivery) for number, delivery in burst]
            if "info" in kinds:
                process = self._history.process()
            await pause(self._pause_seconds if set(kinds) == {"ok"} else REFUSED_PAUSE_SECONDS)

    async def _settle(self, process: int, number: int, delivery: Delivery) -> str:
        try:
            told = await delivery
        except FairleadError as error:
            kind = outcome_of(error)
            self._history.end_send(process, number, kind)
            return kind
        # A duplicate whose offset is forgotten is acknowledged without an offset.
        if told.offset < 0:
            self._history.end_send(process, number, "info")
            return "info"
        self._history.end_send(process, number, "ok", offset=told.offset)
        return "ok"


async def _close(producer: Producer) -> None:
    with suppress(FairleadError, ExceptionGroup):
        await producer.close()


class PlainProducer:
    """Sends plain requests to one broker after another, each request once.

    A record without an answer may or may not be stored.
    """

    def __init__(self, cluster: ChaosCluster, history: HistoryRecorder, topic: str, partition: int) -> None:
        self._history = history
        self._key = f"{topic}-{partition}"
        self._path = f"/v1/topics/{topic}/partitions/{partition}/records?acks=all&timeout_ms=8000"
        self._urls = round_robin(cluster, partition % len(cluster.urls))
        self.stopping = asyncio.Event()

    async def run(self) -> None:
        """Produce until stopped."""
        process, count = self._history.process(), itertools.count()
        async with http_client() as client:
            while not self.stopping.is_set():
                values = [f"{self._key}/{process}.{next(count)}" for _ in range(1 + next(count) % 3)]
                number, _ = self._history.begin_send(process, self._key, values)
                kind = await self._send(client, process, number, values)
                if kind == "info":
                    process = self._history.process()
                await pause(PAUSE_SECONDS if kind == "ok" else REFUSED_PAUSE_SECONDS)

    async def _send(self, client: Client, process: int, number: int, values: list[str]) -> str:
        body = encode(record_batch([each.encode() for each in values], default_timestamp_us=0)).to_bytes()
        headers = {"content-type": BATCHES}
        try:
            url = next(self._urls) + self._path
            answer = await call(client, "POST", url, body, headers=headers, seconds=REQUEST_SECONDS)
        except PyreqwestError:
            self._history.end_send(process, number, "info")
            return "info"
        if answer.status == 200:
            self._history.end_send(process, number, "ok", offset=answer.json["base_offset"])
            return "ok"
        kind = "fail" if _side_effect(answer) == "none" else "info"
        self._history.end_send(process, number, kind, code=_code(answer), said=answer.body.decode())
        return kind


def _side_effect(answer: Answer) -> str:
    with suppress(msgspec.DecodeError):
        return str(answer.json.get("side_effect"))
    return "maybe"


def _code(answer: Answer) -> str:
    with suppress(msgspec.DecodeError):
        return str(answer.json.get("code"))
    return str(answer.status)
