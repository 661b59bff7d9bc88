"""Tests of controllers on a real etcd: the term and the leaderships of a silent broker move to other brokers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from etcd_cluster import EtcdCluster
from fairlead_api.bodies.requests import CreateTopicRequest
from fairlead_api.identifiers import BrokerEpoch, BrokerId, TopicId
from fairlead_broker.clock import SystemClock
from fairlead_broker.controlling.controllership import Controllership
from fairlead_broker.controlling.topics import TopicAdmin
from fairlead_broker.coordination.bootstrap import ClusterBootstrap
from fairlead_broker.coordination.mirror import Mirror
from fairlead_broker.coordination.protocol import Coordination
from fairlead_broker.registry.keys import Keys
from fairlead_broker.registry.metadata import ClusterMetadata
from fairlead_broker.registry.records import Addresses, BrokerRegistration, BrokerState, Directory

KEYS = Keys("test")
CLUSTER_ID = "1b4e28ba-2fa1-4d3b-a3f5-ef19b5a7633b"
TOPIC_ID = TopicId("00000000-0000-4000-8000-000000000001")
TTL_SECONDS = 8
"""Time to live of leases, longer than etcd may stall while other tests and builds run."""


@dataclass
class Life:
    """The part of a broker that the controller needs."""

    broker: BrokerId
    mirror: Mirror
    controllership: Controllership
    admin: TopicAdmin
    membership: asyncio.Task[None]
    tasks: list[asyncio.Task[None]]

    def fall_silent(self) -> None:
        """Stop all work, including the keep-alives."""
        for task in (self.membership, *self.tasks):
            task.cancel()

    async def until(self, holds: Callable[[ClusterMetadata], object]) -> None:
        """Wait until the mirror satisfies a condition."""
        seen = asyncio.Event()
        end = self.mirror.subscribe(lambda _: seen.set())
        async with asyncio.timeout(60):
            while not holds(self.mirror.metadata):
                await seen.wait()
                seen.clear()
        end()


@asynccontextmanager
async def brokers(clients: list[Coordination]) -> AsyncIterator[list[Life]]:
    """Run brokers 1, 2, ..., each with its own client."""
    async with asyncio.TaskGroup() as tasks:
        lives = [await join(tasks, client, BrokerId(n)) for n, client in enumerate(clients, 1)]
        yield lives
        for life in lives:
            life.fall_silent()


async def join(tasks: asyncio.TaskGroup, client: Coordination, broker: BrokerId) -> Life:
    """Register a broker and start the parts that follow the cluster."""
    clock = SystemClock()
    bootstrap = ClusterBootstrap(client, KEYS, clock)
    await bootstrap.cluster(CLUSTER_ID)
    registration = BrokerRegistration(
        state=BrokerState.RUNNING,
        addresses=Addresses(data="127.0.0.1:1", peer="127.0.0.1:2", ops="127.0.0.1:3"),
        rack=None,
        release="0.1.0",
        peer_secret_hash="00",
        directories=(Directory(id=f"d{broker}", last_broker_epoch=BrokerEpoch(0)),),
    )
    membership = await bootstrap.register(broker, registration, TTL_SECONDS)
    mirror = Mirror(client, KEYS)
    await mirror.load()
    controllership = Controllership(client, mirror, lambda: membership, clock)
    admin = TopicAdmin(
        client, mirror, lambda: controllership.term, clock, controllership.load, new_topic_id=lambda: TOPIC_ID
    )
    keeping = tasks.create_task(membership.run())
    running = [tasks.create_task(mirror.run()), tasks.create_task(controllership.run())]
    return Life(broker, mirror, controllership, admin, keeping, running)


async def test_the_term_and_the_leaderships_of_a_silent_broker_go_to_others(alone: EtcdCluster) -> None:
    """A thousand partitions of a broker whose lease has expired get new leaders, in several transactions."""
    async with brokers([alone.client() for _ in range(3)]) as lives:
        await lives[0].until(lambda metadata: len(metadata.brokers) == 3 and metadata.controller)
        standing = lives[0].mirror.metadata.controller
        assert standing is not None
        controller = next(life for life in lives if life.broker == standing.value.broker)
        others = [life for life in lives if life is not controller]
        # The mirror of the controller itself may be behind.
        await controller.until(lambda metadata: len(metadata.brokers) == 3 and metadata.controller)
        request = CreateTopicRequest(name="flights", partitions=1000, replication_factor=3)
        await controller.admin.create(request)
        controller.fall_silent()
        for life in others:
            await life.until(
                lambda metadata: (
                    metadata.controller
                    and metadata.controller.value.broker != controller.broker
                    and all(
                        each.value.leader is not None
                        and each.value.leader.broker != controller.broker
                        and len(each.value.isr) == 2
                        for each in metadata.partitions(TOPIC_ID).values()
                    )
                )
            )
        partitions = others[0].mirror.metadata.partitions(TOPIC_ID)

        assert len(partitions) == 1000
        assert [life.controllership.term is not None for life in others].count(True) == 1
        assert {each.value.leader_epoch for each in partitions.values()} == {0, 1}
