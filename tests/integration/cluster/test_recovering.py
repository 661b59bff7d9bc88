"""A broker that is still recovering its logs: no partition and no request waits for this broker."""

from __future__ import annotations

import asyncio
import socket
import threading
from pathlib import Path

from cluster_kit import QUIET, Cluster, until
from fairlead_api.identifiers import BrokerId
from fairlead_broker.clock import SystemClock
from fairlead_broker.coordination.embedded import EmbeddedCoordination
from fairlead_broker.log.segments.storage import PosixStorage
from fairlead_broker.registry.store_writes import Get
from fairlead_broker.settings import BrokerSettings, Endpoint
from fairlead_broker.wiring.start import RunningBroker, start_broker

ANY = Endpoint("127.0.0.1", 0)
PROBE_SECONDS = 5.0
"""Seconds that the kubelet waits for an answer to the operator's probes."""


class SlowRecovery(PosixStorage):
    """Disk on which no log is opened until the test allows it."""

    def __init__(self) -> None:
        super().__init__()
        self.waiting = threading.Event()
        self.may_open = threading.Event()

    def list_files(self, folder: Path) -> list[str]:
        """List the files of a partition, the first step of opening its log."""
        if folder.name == "0":
            self.waiting.set()
            assert self.may_open.wait(30), "the test did not allow the log to be opened"
        return super().list_files(folder)


async def recovering(
    cluster: Cluster, broker: int, storage: SlowRecovery, ops: Endpoint = ANY
) -> asyncio.Task[RunningBroker]:
    """Start a broker, and return when the recovery of its logs has begun."""
    settings = BrokerSettings(
        id=BrokerId(broker), data=cluster.path / str(broker), listen=ANY, peer_listen=ANY, ops_listen=ops
    )
    starting = asyncio.ensure_future(
        start_broker(settings, log=QUIET, storage=storage, coordination=cluster.store.connect())
    )
    await until(storage.waiting.is_set, "the broker opens no log")
    return starting


async def test_nothing_is_placed_on_a_broker_that_recovers(cluster: Cluster) -> None:
    """A new topic gets no replica on a recovering broker, because every acknowledgement would wait for it."""
    topic_id = await cluster.topic("flights")
    await cluster.stop(3)
    storage = SlowRecovery()
    starting = await recovering(cluster, 3, storage)
    await until(lambda: 3 in cluster.any.metadata.brokers, "the broker does not register")
    new = [await cluster.topic(f"new-{number}", replication_factor=2) for number in range(3)]
    kept = [{each.broker for each in cluster.record(each).replicas} for each in new]
    directories = cluster.any.metadata.brokers[BrokerId(3)].value.directories
    storage.may_open.set()
    cluster.brokers[3] = await starting

    assert directories == ()
    assert kept == [{1, 2}] * 3
    await cluster.in_sync(topic_id, 1, 2, 3)


async def test_a_broker_that_recovers_is_alive_and_not_ready(cluster: Cluster) -> None:
    """A broker that is still recovering passes the liveness probe and fails the readiness probe."""
    topic_id = await cluster.topic("flights")
    await cluster.stop(3)
    storage, ops = SlowRecovery(), Endpoint("127.0.0.1", free_port())
    starting = await recovering(cluster, 3, storage, ops)
    during = [await status(ops, path) for path in ("/healthz", "/readyz", "/healthz")]
    storage.may_open.set()
    cluster.brokers[3] = await starting
    await cluster.in_sync(topic_id, 1, 2, 3)
    after = [await status(ops, path) for path in ("/healthz", "/readyz")]

    assert during == [200, 503, 200]
    assert after == [200, 200]


def free_port() -> int:
    """Return a port that is not in use."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])


async def status(ops: Endpoint, path: str) -> int:
    """Return the status of a request on a new connection, as the kubelet sends it."""
    reader, writer = await asyncio.open_connection(ops.host, ops.port)
    try:
        writer.write(f"GET {path} HTTP/1.1\r\nHost: {ops.host}\r\nConnection: close\r\n\r\n".encode())
        line = await asyncio.wait_for(reader.readline(), PROBE_SECONDS)
    finally:
        writer.close()
    return int(line.split()[1])


async def test_a_broker_that_recovers_does_not_become_the_controller(tmp_path: Path) -> None:
    """A broker that is still recovering does not become the controller, because it could not act as the controller."""
    cluster = Cluster(tmp_path, await EmbeddedCoordination.open(tmp_path / "store", SystemClock()))
    try:
        await cluster.start(1)
        keys = cluster.any.entry.keys
        topic_id = await cluster.topic("flights", replication_factor=1)
        await (await cluster.led("flights", topic_id)).produce(b"a")
        await cluster.stop(1)
        storage = SlowRecovery()
        starting = await recovering(cluster, 1, storage)
        claimed = (await cluster.store.transact((), (Get(keys.controller),))).reads
        storage.may_open.set()
        cluster.brokers[1] = await starting
        leads = [each.index for each in cluster.broker(1).replicas.of_topic(topic_id)]
    finally:
        await cluster.close()

    assert claimed == (None,)
    assert leads == [0], "only the started broker leads"
