"""Brokers in separate processes with a real etcd, restarts with changed settings, and a load on the brokers."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from broker_process import BrokerProcess
from etcd_cluster import EtcdCluster, etcd_cluster, free_ports
from fairlead import Consumer, Producer
from waiting import until

LEASE_SECONDS: Final = 30
"""Lease of each broker, longer than a busy machine may delay a renewal. A broker that stops ends its lease itself."""
TOPIC: Final = "flights"
RECORDS_A_STEP: Final = 50
STEP_SECONDS_MAX: Final = 90.0


@dataclass(slots=True)
class Node:
    """One broker with its ports."""

    number: int
    process: BrokerProcess
    plain: int
    secure: int
    peer: int
    ops: int

    def listen(self, data: str, peer: str = "http") -> None:
        """Set the schemes of the listeners for the next start; `data` may name both schemes, separated by a comma."""
        ports = {"http": self.plain, "https": self.secure}
        addresses = ",".join(f"{scheme}://127.0.0.1:{ports[scheme]}" for scheme in data.split(","))
        self.process.listeners = (
            addresses,
            f"{peer}://127.0.0.1:{self.peer}",
            f"http://127.0.0.1:{self.ops}",
        )


@dataclass(slots=True)
class Processes:
    """A cluster of processes."""

    etcd: EtcdCluster
    nodes: list[Node] = field(default_factory=list)
    restarts: int = 0
    """Number of planned restarts of brokers."""

    def bootstrap(self, scheme: str) -> list[str]:
        """Return the addresses of one scheme."""
        return [
            f"{scheme}://127.0.0.1:{node.plain if scheme == 'http' else node.secure}" for node in self.nodes
        ]

    def set(self, **environment: str | None) -> None:
        """Set variables of the next start; None removes a variable."""
        for node in self.nodes:
            for name, value in environment.items():
                if value is None:
                    node.process.environment.pop(f"FAIRLEAD_{name.upper()}", None)
                else:
                    node.process.environment[f"FAIRLEAD_{name.upper()}"] = value

    async def start(self) -> None:
        """Start all brokers; the first broker creates the cluster."""
        for node in self.nodes:
            await asyncio.to_thread(node.process.start)

    async def roll(self, *loads: Load, data: str, peer: str) -> None:
        """Restart the brokers one by one with the given schemes for their listeners, while the loads run."""
        for node in self.nodes:
            assert await asyncio.to_thread(node.process.stop, 60) == 0
            node.listen(data, peer)
            await asyncio.to_thread(node.process.start)
            self.restarts += 1
            for load in loads:
                await load.goes_on()

    def look_at_files(self) -> None:
        """Make every broker check its certificates immediately."""
        for node in self.nodes:
            os.kill(node.process.pid, signal.SIGHUP)


@asynccontextmanager
async def processes(
    folder: Path, data: str, peer: str, *, brokers: int = 3, **environment: str
) -> AsyncIterator[Processes]:
    """Run brokers with the given listener schemes and settings."""
    ports = free_ports()
    async with etcd_cluster(folder / "etcd") as etcd:
        cluster = Processes(etcd)
        for number in range(brokers):
            process = BrokerProcess(
                folder / f"broker-{number}",
                {"FAIRLEAD_LEASE_SECONDS": str(LEASE_SECONDS)},
                arguments=("--id", str(number), "--etcd", etcd.urls[0]),
            )
            node = Node(number, process, next(ports), next(ports), next(ports), next(ports))
            node.listen(data, peer)
            cluster.nodes.append(node)
        cluster.set(**environment)
        try:
            await cluster.start()
            yield cluster
        finally:
            for node in cluster.nodes:
                await asyncio.to_thread(node.process.kill)


class Load:
    """A producer with acks=all and a member of a group, which run while the cluster changes.

    A send, or a call by the consumer, that fails permanently fails the test.
    """

    def __init__(self, name: str, bootstrap: list[str], **arguments: Any) -> None:
        """`arguments`: credentials of the clients."""
        self.name = name
        self._bootstrap = bootstrap
        self._arguments = arguments
        self._done = asyncio.Event()
        self.sent: list[bytes] = []
        self.read: set[bytes] = set()

    async def run(self) -> None:
        """Produce and consume until the load ends and every acknowledged record is read."""
        async with asyncio.TaskGroup() as tasks:
            consuming = tasks.create_task(self._consume())
            await self._produce()
            await until(lambda: self.read.issuperset(self.sent), STEP_SECONDS_MAX)
            consuming.cancel()

    async def _produce(self) -> None:
        async with Producer(self._bootstrap, linger_ms=0, acks="all", **self._arguments) as producer:
            while not self._done.is_set():
                value = f"{self.name}-{len(self.sent)}".encode()
                await producer.send_and_wait(TOPIC, value)
                self.sent.append(value)

    async def _consume(self) -> None:
        async with Consumer(
            self._bootstrap, group=self.name, topics=TOPIC, start="earliest", **self._arguments
        ) as consumer:
            async for record in consumer.records():
                assert record.value is not None
                self.read.add(record.value)

    async def goes_on(self) -> None:
        """Wait until more records have been acknowledged, and more records have been read."""
        sent, read = len(self.sent), len(self.read)
        await until(
            lambda: len(self.sent) >= sent + RECORDS_A_STEP and len(self.read) >= read + RECORDS_A_STEP,
            STEP_SECONDS_MAX,
        )

    def end(self) -> None:
        """End the load."""
        self._done.set()


def outcome_of(loads: Sequence[Load]) -> dict[str, int]:
    """Return the counts of all records of several loads."""
    return {
        "loads": len(loads),
        "acknowledged": sum(len(load.sent) for load in loads),
        "lost": sum(len(set(load.sent) - load.read) for load in loads),
    }
