"""Tests of three brokers under load while etcd is unavailable for longer than their leases, and after its return."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from cluster_kit import QUIET, Cluster, until
from etcd_cluster import EtcdCluster
from fairlead_api.batch.batches import decode_records
from fairlead_api.bodies.requests import CreateTopicRequest
from fairlead_api.identifiers import Acks, TopicId
from fairlead_api.problems import ProblemError
from fairlead_broker.registry.keys import Keys
from fairlead_broker.settings import BrokerSettings, Endpoint
from fairlead_broker.wiring.start import start_broker
from runtime_kit import TopicClient
from tcp_relay import TcpRelay, tcp_relay

ANY = Endpoint("127.0.0.1", 0)
IDS = (1, 2, 3)
PARTITIONS = 3
LEASE_SECONDS = 2


class OnEtcd(Cluster):
    """Brokers in this process that reach etcd through a relay."""

    def __init__(self, path: Path, url: str) -> None:
        """Create a cluster without brokers."""
        self.path = path
        self.brokers = {}
        self._url = url

    async def start(self, *ids: int, **settings: object) -> None:
        """Start brokers concurrently."""

        async def one(broker: int) -> None:
            given = {"id": broker, "data": self.path / str(broker), "etcd": self._url, **settings}
            everywhere = {
                "listen": ANY,
                "peer_listen": ANY,
                "ops_listen": ANY,
                "lease_seconds": LEASE_SECONDS,
            }
            self.brokers[broker] = await start_broker(
                BrokerSettings(**{**everywhere, **given}),  # type: ignore[arg-type]
                log=QUIET,
            )

        await asyncio.gather(*(one(broker) for broker in ids))

    async def close(self) -> None:
        """Stop all brokers."""
        await asyncio.gather(*(broker.stop() for broker in self.brokers.values()))

    def settled(self, topic_id: TopicId) -> bool:
        """Return whether every partition has a leader and all replicas are in sync in the current incarnations."""
        lives = {(broker, self.broker(broker).broker_epoch) for broker in self.brokers}
        records = [self.record(topic_id, partition) for partition in range(PARTITIONS)]
        return all(
            record.leader in record.isr
            and {(entry.broker, entry.broker_epoch) for entry in record.isr} == lives
            for record in records
        )


class Load:
    """Load that writes unique values to each partition in sequence, and records the acknowledged values."""

    def __init__(self, cluster: OnEtcd, topic_id: TopicId) -> None:
        """Create a load that has not started."""
        self._cluster, self._topic_id = cluster, topic_id
        self.acknowledged: list[set[bytes]] = [set() for _ in range(PARTITIONS)]
        self._moved = asyncio.Event()

    async def run(self, partition: int) -> None:
        """Write until cancelled; a refused value is not written again."""
        number, loop = 0, asyncio.get_running_loop()
        while True:
            number += 1
            value = b"%d-%d" % (partition, number)
            client = await self._cluster.led("flights", self._topic_id, partition)
            try:
                await client.produce(value, partition=partition, timeout_seconds=5)
            except ProblemError:
                # Without a pause, consecutive refusals might never yield to the event loop.
                await loop.run_in_executor(None, lambda: None)
                continue
            self.acknowledged[partition].add(value)
            self._moved.set()

    async def more(self) -> None:
        """Wait until every partition has acknowledged another write."""
        before = [len(values) for values in self.acknowledged]
        async with asyncio.timeout(30):
            while any(len(now) <= then for now, then in zip(self.acknowledged, before, strict=True)):
                self._moved.clear()
                await self._moved.wait()


@pytest.fixture
async def relay(alone: EtcdCluster) -> AsyncIterator[TcpRelay]:
    """Yield the relay to etcd."""
    async with tcp_relay(alone.members[0].client_port) as relay:
        yield relay


@pytest.fixture
async def cluster(relay: TcpRelay, tmp_path: Path) -> AsyncIterator[OnEtcd]:
    """Yield three brokers that serve."""
    cluster = OnEtcd(tmp_path, relay.url)
    try:
        await cluster.start(*IDS)
        yield cluster
    finally:
        await cluster.close()


async def begun(cluster: OnEtcd) -> TopicId:
    """Create a topic with replicas on all three brokers and a different leader for each partition."""
    await until(lambda: cluster.any.peer_side.controller is not None, "no broker is the controller")
    await until(
        lambda: all(len(each.broker.metadata.brokers) == len(IDS) for each in cluster.brokers.values()),
        "not every broker sees all brokers",
    )
    request = CreateTopicRequest(
        name="flights", partitions=PARTITIONS, replication_factor=3, config={"min.insync.replicas": 2}
    )
    view, _ = await cluster.controller.create_topic(request)
    await until(
        lambda: all(
            len(each.broker.metadata.partitions(view.topic_id)) == PARTITIONS
            for each in cluster.brokers.values()
        ),
        "not every broker has the topic",
    )
    return view.topic_id


async def stored(client: TopicClient, partition: int) -> set[bytes]:
    """Return all values in a partition, read from its leader."""
    values: set[bytes] = set()
    offset = 0
    while (answer := await client.fetch(offset, partition)).data:
        records = decode_records(b"".join(answer.data))
        values |= {record.value for record in records if record.value}
        offset = records[-1].offset + 1
    return values


async def refusals_of_weak_writes(cluster: OnEtcd, topic_id: TopicId) -> list[str]:
    """Try to write to every leader with acks=1."""
    codes = []
    for partition in range(PARTITIONS):
        client = await cluster.led("flights", topic_id, partition)
        with pytest.raises(ProblemError) as refused:
            await client.produce(b"weak", partition=partition, acks=Acks.LEADER)
        codes.append(refused.value.code)
    return codes


@pytest.mark.parametrize(
    "killed",
    [pytest.param(True, marks=pytest.mark.scenario), False],
    ids=["etcd-dies", "etcd-cannot-be-reached"],
)
async def test_writes_to_all_go_on_without_etcd(
    alone: EtcdCluster, relay: TcpRelay, cluster: OnEtcd, killed: bool
) -> None:
    """Writes with acks=all continue without etcd.

    No acknowledged record is lost, and the cluster recovers after etcd returns.
    """
    topic_id = await begun(cluster)
    before = {broker: cluster.broker(broker).broker_epoch for broker in IDS}
    load, loop = Load(cluster, topic_id), asyncio.get_running_loop()
    async with asyncio.TaskGroup() as group:
        writers = [group.create_task(load.run(partition)) for partition in range(PARTITIONS)]
        await load.more()
        await relay.cut()
        if killed:
            alone.members[0].kill()
        gone_at = loop.time()
        while any(cluster.broker(broker).entry.incarnation.confirmed for broker in IDS):
            await load.more()
        refused = await refusals_of_weak_writes(cluster, topic_id)
        while loop.time() < gone_at + 2 * LEASE_SECONDS or not (killed or await no_broker_registered(alone)):
            await load.more()
        if killed:
            alone.members[0].start()
            await alone.wait_until_ready()
        await relay.start()
        await until(lambda: all(cluster.broker(each).entry.incarnation.confirmed for each in IDS), "no lease")
        await until(lambda: cluster.settled(topic_id), "not every partition is led and in sync again")
        await load.more()
        for writer in writers:
            writer.cancel()

    assert refused == ["coordination_unavailable"] * PARTITIONS
    after = {broker: cluster.broker(broker).broker_epoch for broker in IDS}
    assert killed or all(after[broker] > before[broker] for broker in IDS)
    for partition, values in enumerate(load.acknowledged):
        client = await cluster.led("flights", topic_id, partition)
        assert values <= await stored(client, partition)
        assert b"weak" not in await stored(client, partition)


async def no_broker_registered(alone: EtcdCluster) -> bool:
    """Return whether the leases of all brokers have expired in etcd."""
    prefix = Keys("fairlead").broker(1).rpartition("/")[0]  # type: ignore[arg-type]
    return not (await alone.etcdctl("get", "--prefix", "--keys-only", f"{prefix}/")).strip()
