"""Brokers in separate processes with a real etcd, restarts with changed settings, loads and probes of the brokers."""

from __future__ import annotations

import asyncio
import hashlib
import os
import signal
import ssl
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
PROBES_A_STEP: Final = 10
STEP_SECONDS_MAX: Final = 90.0
PROBE_SECONDS_MAX: Final = 30.0
PROBE: Final = "GET /v1/whoami HTTP/1.1\r\nhost: {address}\r\nauthorization: Bearer {token}\r\n\r\n"


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


@dataclass(slots=True)
class Prober:
    """A client without retries that opens one TLS connection after another to a broker, with one request on each.

    The client trusts the authorities in its file at the time of each connection, and no others.
    """

    url: str
    ca_file: Path
    token_file: Path
    connections: int = 0
    certificates: set[str] = field(default_factory=set)
    """SHA-256 of the certificates that the broker has presented."""
    failures: list[str] = field(default_factory=list)
    """Errors of connections, and statuses other than 200."""
    _is_done: bool = False

    async def run(self) -> None:
        """Connect until the prober ends."""
        while not self._is_done:
            try:
                async with asyncio.timeout(PROBE_SECONDS_MAX):
                    status = await self._request()
            except (OSError, EOFError) as error:
                self.failures.append(repr(error))
            else:
                if status != 200:
                    self.failures.append(str(status))
            self.connections += 1

    async def _request(self) -> int:
        address = self.url.removeprefix("https://")
        host, _, port = address.rpartition(":")
        context = ssl.create_default_context(cadata=self.ca_file.read_text())
        reader, writer = await asyncio.open_connection(host, int(port), ssl=context)
        try:
            shown = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
            self.certificates.add(hashlib.sha256(shown).hexdigest())
            writer.write(PROBE.format(address=address, token=self.token_file.read_text().strip()).encode())
            return int((await reader.readuntil(b"\r\n")).split()[1])
        finally:
            writer.transport.abort()

    async def goes_on(self) -> None:
        """Wait until more connections have been tried."""
        tried = self.connections
        await until(lambda: self.connections >= tried + PROBES_A_STEP, STEP_SECONDS_MAX)

    def end(self) -> None:
        """End the prober after its current connection."""
        self._is_done = True


def outcome_of(loads: Sequence[Load], probers: Sequence[Prober] = ()) -> dict[str, int]:
    """Return the counts of all records of several loads, and of all connections of probers if there are any."""
    connections = {
        "new_connections": sum(each.connections for each in probers),
        "failed_connections": sum(len(each.failures) for each in probers),
    }
    return {
        "loads": len(loads),
        "acknowledged": sum(len(load.sent) for load in loads),
        "lost": sum(len(set(load.sent) - load.read) for load in loads),
        **(connections if probers else {}),
    }
