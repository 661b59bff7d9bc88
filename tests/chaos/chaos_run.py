"""A run: a cluster under load and faults.

At the end of a run the faults are healed, all records are read, and the history is judged.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Final, Protocol

from chaos_cluster import Answer, ChaosCluster, call, chaos_cluster, http_client, pause
from fairlead_api.bodies.metadata import PartitionMetadata
from history_checker import Report, check
from history_recorder import HistoryRecorder
from producing_clients import PlainProducer, SdkProducer
from reading_clients import Asker, PlainReader, SdkReader, read_everything

TOPIC: Final = "chaos"
PARTITIONS: Final = 4
SETTLE_SECONDS: Final = 90.0
ACKNOWLEDGED_MIN: Final = 100


class Producers(StrEnum):
    """Kind of producers in a history."""

    IDEMPOTENT = "idempotent"
    """Idempotent producers with retries."""
    ONCE = "once"
    """Producers without idempotence and retries: each request is sent once."""

    @property
    def settings(self) -> dict[str, bool]:
        """Return the settings for the checker."""
        return {"idempotence": self is Producers.IDEMPOTENT, "retries": self is Producers.IDEMPOTENT}


class Client(Protocol):
    """Client that works until it is stopped."""

    stopping: asyncio.Event

    async def run(self) -> None:
        """Run until stopped."""


@dataclass(slots=True)
class ChaosRun:
    """A cluster, its load and its history."""

    cluster: ChaosCluster
    history: HistoryRecorder
    partitions: int = PARTITIONS
    producers: Producers = Producers.IDEMPOTENT
    clients: list[Client] = field(default_factory=list)
    faults: dict[str, int] = field(default_factory=dict)
    """Number of times that each fault took effect."""
    unsettled: str = ""
    """Reason why the cluster did not recover; empty if the cluster recovered."""
    _tasks: list[asyncio.Task[None]] = field(default_factory=list)

    async def create_replicated_topic(self, mode: str = "isr", **config: object) -> None:
        """Create a topic whose records are on two replicas before they are acknowledged, or on three of five."""
        if mode == "isr":
            await self.create_topic(min_insync_replicas=2, **config)
        else:
            await self.create_topic(len(self.cluster.nodes), replication_mode=mode, **config)

    async def create_topic(self, replicas: int = 3, **config: object) -> None:
        """Create the topic, on up to three brokers, and wait for its leaders."""
        body: dict[str, Any] = {
            "name": TOPIC,
            "partitions": self.partitions,
            "replication_factor": min(replicas, len(self.cluster.nodes)),
            "config": {key.replace("_", "."): value for key, value in config.items()},
        }
        async with http_client() as client:
            answer = await call(client, "POST", f"{self.cluster.urls[0]}/v1/topics", body)
            assert answer.status in {200, 201}, answer.body
        await self.cluster.wait_for_partitions(TOPIC, lambda each: each.leader is not None)

    def usual_load(self) -> None:
        """Start producers for the guarantee of the history, readers, and a client that requests log ends.

        Each history checks one guarantee. With idempotence and retries, every record is stored exactly once. Without
        idempotence and retries, a write without an answer is stored once or not at all.
        """
        cluster, history = self.cluster, self.history
        everywhere = range(self.partitions)
        if self.producers is Producers.IDEMPOTENT:
            self.start(
                SdkProducer(cluster, history, TOPIC, everywhere, idempotent=True),
                SdkProducer(cluster, history, TOPIC, everywhere, idempotent=True),
            )
        else:
            self.start(
                SdkProducer(cluster, history, TOPIC, everywhere, idempotent=False),
                *(PlainProducer(cluster, history, TOPIC, each) for each in everywhere),
            )
        self.start(
            SdkReader(cluster, history, TOPIC, self.partitions),
            *(PlainReader(cluster, history, TOPIC, each) for each in everywhere[:2]),
            Asker(cluster, history, TOPIC, self.partitions),
        )

    def start(self, *clients: Client) -> None:
        """Start clients."""
        for client in clients:
            self.clients.append(client)
            self._tasks.append(asyncio.create_task(client.run()))

    async def work(self, seconds: float) -> None:
        """Continue the load for `seconds`; raise the error of a client that failed."""
        if not self._tasks:
            await pause(seconds)
            return
        done, _ = await asyncio.wait(self._tasks, timeout=seconds, return_when=asyncio.FIRST_EXCEPTION)
        for task in done:
            task.result()

    async def wait_for_acknowledgements(self, count: int, seconds: float = 30.0) -> None:
        """Wait until `count` more sends are acknowledged; raise `TimeoutError` if that takes too long."""
        before = self.history.count("send", "ok")
        async with asyncio.timeout(seconds):
            while self.history.count("send", "ok") < before + count:
                await self.work(0.1)

    def count(self, fault: str) -> None:
        """Count a fault that took effect."""
        self.faults[fault] = self.faults.get(fault, 0) + 1
        self.history.note("note", "ok", fault=fault)

    async def partition(self, number: int = 0) -> PartitionMetadata:
        """Return the description of a partition."""
        return (await self.cluster.partitions(TOPIC))[number]

    async def finish(self) -> Report:
        """Heal all faults, end the load, wait for the cluster's recovery, read all records and judge the history."""
        await self.cluster.heal()
        self.history.note("heal", "ok")
        await self.work(2.0)
        await self.stop_clients()
        await self._settle()
        await read_everything(self.cluster, self.history, TOPIC, self.partitions)
        return check(self.history.events)

    async def stop_clients(self, *kinds: type) -> None:
        """Stop every client, or the clients of some kinds, once their requests are answered."""
        chosen = [
            (client, task)
            for client, task in zip(self.clients, self._tasks, strict=True)
            if not kinds or isinstance(client, kinds)
        ]
        for client, _ in chosen:
            client.stopping.set()
        tasks = [task for _, task in chosen]
        done, late = await asyncio.wait(tasks, timeout=60) if tasks else (set(), set())
        for task in late:
            task.cancel()
        for task in done:
            task.result()
        for client, task in chosen:
            self.clients.remove(client)
            self._tasks.remove(task)
        assert not late, f"clients hang: {late}"

    async def _settle(self) -> None:
        """Wait until every partition has a leader and every replica is in sync, as must happen after the faults."""
        try:
            await self.cluster.wait_for_partitions(
                TOPIC,
                lambda each: each.leader is not None and set(each.isr) == set(each.replicas),
                SETTLE_SECONDS,
            )
        except TimeoutError as error:
            self.unsettled = str(error)


@asynccontextmanager
async def chaos_run(
    folder: Path,
    size: int = 3,
    *,
    producers: Producers = Producers.IDEMPOTENT,
    partitions: int = PARTITIONS,
    etcd_members: int = 1,
    settings: Mapping[str, Any] | None = None,
    environment: Mapping[str, str] | None = None,
    relayed: bool = True,
) -> AsyncIterator[ChaosRun]:
    """Run a cluster for one history."""
    workload = {"acks": "all", **producers.settings, **(settings or {})}
    cluster_run = chaos_cluster(
        folder, size, etcd_members=etcd_members, environment=environment, relayed=relayed
    )
    async with cluster_run as cluster:
        run = ChaosRun(cluster, HistoryRecorder(workload), partitions, producers)
        try:
            yield run
        finally:
            for client in run.clients:
                client.stopping.set()
            for task in run._tasks:
                task.cancel()
            await asyncio.gather(*run._tasks, return_exceptions=True)
            run.history.write(folder / "history.jsonl")


async def post(run: ChaosRun, path: str, body: object) -> Answer:
    """Send a change of the topic to any broker, and retry the request for up to 20 s until it succeeds."""
    async with asyncio.timeout(20), http_client() as client:
        for node in itertools.cycle(run.cluster.nodes):
            if node in run.cluster.alive():
                answer = await call(client, "POST", f"{node.url}{path}", body)
                if answer.status < 300:
                    return answer
                assert answer.status in {421, 503, 504, 409}, answer.body
            await pause(0.2)
    raise AssertionError


def assert_good(run: ChaosRun, report: Report) -> None:
    """Fail unless the history is valid, the cluster recovered and the load was large enough."""
    assert (report.verdict, report.anomalies, report.undecided) == ("valid", {}, []), as_document(run, report)
    assert not run.unsettled, run.unsettled
    assert report.acknowledged >= ACKNOWLEDGED_MIN, as_document(run, report)


def as_document(run: ChaosRun, report: Report) -> dict[str, Any]:
    """Return the report of a run: faults that took effect, and the checker's findings."""
    return {
        "faults": run.faults,
        "unsettled": run.unsettled,
        "bytes_held_by_partitions": run.cluster.links.held_bytes,
        **asdict(report),
    }
