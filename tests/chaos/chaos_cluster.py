"""A cluster of real processes: etcd, brokers, and links between them that the test controls.

Brokers keep their addresses, so that clients and other brokers find them after a restart. Connections go through the
relays of `links.py`, unless a test disables the relays.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import msgspec
from pyreqwest.client import Client, ClientBuilder
from pyreqwest.exceptions import PyreqwestError

from broker_process import BrokerProcess
from etcd_cluster import EtcdCluster, etcd_cluster, free_ports
from fairlead.connection.transport import cancellable
from fairlead_api.bodies.metadata import Metadata, PartitionMetadata
from links import Links

ETCD: Final = "etcd"
START_SECONDS: Final = 60.0
CALL_SECONDS: Final = 10.0
LEASE_SECONDS: Final = 3
LAG_MS: Final = 4000
"""Milliseconds of `replica.lag.time.max.ms`; Kafka's 30 s would be longer than most of the faults."""
BYTECODE: Final = Path(__file__).parents[2] / "build" / "bytecode"
"""Folder of bytecode that is kept between runs, because compiling all modules takes most of a first start."""


@dataclass(slots=True)
class Node:
    """One broker: its process and its addresses."""

    number: int
    process: BrokerProcess
    url: str
    """Address for clients, through a relay."""
    kafka: str = ""
    """Address of the Kafka listener, which has no relay; empty without a Kafka listener."""

    @property
    def name(self) -> str:
        """Return the broker's name in the links."""
        return f"broker-{self.number}"


@dataclass(slots=True)
class ChaosCluster:
    """All processes and links of a cluster."""

    folder: Path
    nodes: list[Node] = field(default_factory=list)
    etcd: EtcdCluster | None = None
    links: Links = field(default_factory=lambda: Links(dict))
    paused: set[str] = field(default_factory=set)

    @property
    def urls(self) -> list[str]:
        """Return the addresses of the brokers for clients."""
        return [node.url for node in self.nodes]

    @property
    def kafka_bootstrap(self) -> str:
        """Return the addresses of the Kafka listeners, separated by commas."""
        return ",".join(node.kafka for node in self.nodes)

    def pids(self) -> dict[str, int]:
        """Return the process id of every running broker."""
        return {node.name: node.process.pid for node in self.nodes if node.process.running}

    def alive(self) -> list[Node]:
        """Return the brokers that run and are not paused."""
        return [node for node in self.nodes if node.process.running and node.name not in self.paused]

    # ------------------------------------------------------------------------------------------ start and end

    async def start(self, *nodes: Node) -> None:
        """Start brokers concurrently; by default, start all brokers."""
        async with asyncio.TaskGroup() as group:
            for node in nodes or self.nodes:
                if not node.process.running:
                    group.create_task(asyncio.to_thread(node.process.start, START_SECONDS))

    async def kill(self, *nodes: Node) -> None:
        """Kill brokers."""
        for node in nodes:
            await asyncio.to_thread(node.process.kill)
            self.paused.discard(node.name)

    async def stop(self, *nodes: Node) -> list[int]:
        """Stop brokers gracefully and concurrently; return their exit codes."""
        return list(await asyncio.gather(*(asyncio.to_thread(node.process.stop, 60) for node in nodes)))

    def pause(self, *nodes: Node) -> None:
        """Pause brokers."""
        for node in nodes:
            node.process.pause()
            self.paused.add(node.name)

    def resume(self) -> None:
        """Resume all processes."""
        for node in self.nodes:
            if node.name in self.paused and node.process.running:
                node.process.resume()
        self.paused.clear()

    async def heal(self) -> None:
        """End every fault."""
        self.links.mend()
        self.resume()
        if self.etcd is not None:
            for member in self.etcd.members:
                if member.process is None:
                    member.start()
                else:
                    member.resume()
            await self.etcd.wait_until_ready()
        await self.start()

    # ------------------------------------------------------------------------------------------ queries

    async def metadata(self, topic: str) -> Metadata:
        """Ask the brokers one after another until one of them answers."""
        error: Exception | None = None
        async with http_client() as client:
            for node in self.alive():
                try:
                    answer = await call(client, "GET", f"{node.url}/v1/metadata?topics={topic}", seconds=3.0)
                    if answer.status == 200:
                        return msgspec.json.decode(answer.body, type=Metadata)
                except (PyreqwestError, TimeoutError) as failure:
                    error = failure
        message = f"no broker returns the metadata: {error!r}"
        raise RuntimeError(message)

    async def partitions(self, topic: str) -> list[PartitionMetadata]:
        """Return the description of each partition."""
        found = await self.metadata(topic)
        return found.topics[0].partitions if found.topics else []

    async def wait_for_partitions(
        self, topic: str, check: Any, seconds: float = 60.0
    ) -> list[PartitionMetadata]:
        """Wait until all partitions satisfy a check; raise `TimeoutError` with their last state."""
        partitions: list[PartitionMetadata] = []
        deadline = asyncio.get_running_loop().time() + seconds
        while asyncio.get_running_loop().time() < deadline:
            with suppress(RuntimeError):
                partitions = await self.partitions(topic)
                if partitions and all(check(each) for each in partitions):
                    return partitions
            await pause(0.2)
        message = f"after {seconds} s the partitions are {partitions}"
        raise TimeoutError(message)

    def node(self, number: int) -> Node:
        """Return the broker with the given number."""
        return next(node for node in self.nodes if node.number == number)


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to a request."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        """Body of the answer, parsed as JSON."""
        return msgspec.json.decode(self.body)


@asynccontextmanager
async def http_client() -> AsyncIterator[Client]:
    """Yield a client with its own connections."""
    async with ClientBuilder().http2_prior_knowledge().build() as client:
        yield client


async def call(
    client: Client,
    method: str,
    url: str,
    body: object = None,
    *,
    headers: Mapping[str, str] | None = None,
    seconds: float = CALL_SECONDS,
) -> Answer:
    """Send one request with bytes as they are and other values as JSON; raise if no answer is received."""
    request = client.request(method, url).headers(dict(headers or {})).timeout(timedelta(seconds=seconds))
    if isinstance(body, bytes):
        request = request.body_bytes(body)
    elif body is not None:
        request = request.body_json(body)
    with cancellable():
        answer = await request.build().send()
        return Answer(answer.status, dict(answer.headers), bytes(await answer.bytes()))


async def pause(seconds: float) -> None:
    """Wait for the duration of a fault, or between two sends."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await asyncio.Event().wait()


@asynccontextmanager
async def chaos_cluster(
    folder: Path,
    size: int = 3,
    *,
    etcd_members: int = 1,
    environment: Mapping[str, str] | None = None,
    relayed: bool = True,
    kafka: bool = False,
) -> AsyncIterator[ChaosCluster]:
    """Run a cluster, or one broker with an embedded store when there are no etcd members.

    Without relays, connections are direct and cost less processor time, and the links have no effect. With `kafka`,
    each broker has a Kafka listener.
    """
    cluster = ChaosCluster(folder)
    cluster.links = Links(cluster.pids)
    settings = {
        "FAIRLEAD_LEASE_SECONDS": str(LEASE_SECONDS),
        "FAIRLEAD_CONFIG_VALUES": json.dumps({"replica.lag.time.max.ms": LAG_MS}),
        "PYTHONPYCACHEPREFIX": str(BYTECODE),
        **(environment or {}),
    }
    try:
        if etcd_members:
            async with etcd_cluster(folder / "etcd", etcd_members) as cluster.etcd:
                ports = [each.client_port for each in cluster.etcd.members]
                if relayed:
                    ports = [await cluster.links.relay(ETCD, each) for each in ports]
                await _add_brokers(cluster, size, ports, settings, relayed=relayed, kafka=kafka)
                yield cluster
                await _end(cluster)
        else:
            await _add_brokers(cluster, 1, (), settings, relayed=relayed, kafka=kafka)
            yield cluster
    finally:
        await _end(cluster)


async def _add_brokers(
    cluster: ChaosCluster,
    size: int,
    etcd_ports: Sequence[int],
    environment: dict[str, str],
    *,
    relayed: bool,
    kafka: bool,
) -> None:
    ports = free_ports()
    for number in range(size):
        data, peer, ops = next(ports), next(ports), next(ports)
        data_address, peer_address = data, peer
        if relayed:
            data_address = await cluster.links.relay(f"broker-{number}", data)
            peer_address = await cluster.links.relay(f"broker-{number}", peer)
        arguments = ["--id", str(number), "--advertise", f"127.0.0.1:{data_address}"]
        arguments += ["--peer-advertise", f"127.0.0.1:{peer_address}", "--rack", f"rack-{number % 3}"]
        if etcd_ports:
            arguments += ["--etcd", ",".join(f"http://127.0.0.1:{port}" for port in etcd_ports)]
        kafka_address = f"127.0.0.1:{next(ports)}" if kafka else ""
        if kafka:
            arguments += ["--kafka-listen", kafka_address]
        process = BrokerProcess(
            cluster.folder / f"broker-{number}",
            environment,
            arguments=tuple(arguments),
            listeners=(f"127.0.0.1:{data}", f"127.0.0.1:{peer}", f"127.0.0.1:{ops}"),
        )
        cluster.nodes.append(Node(number, process, f"http://127.0.0.1:{data_address}", kafka_address))
    await cluster.start()


async def _end(cluster: ChaosCluster) -> None:
    for node in cluster.nodes:
        await asyncio.to_thread(node.process.kill)
    await cluster.links.close()
