from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest
from structlog.testing import CapturingLogger

from fairlead_api.identifiers import BrokerEpoch, BrokerId, LeaderEpoch, PartitionIndex, TopicId
from fairlead_broker.clock import SystemClock
from fairlead_broker.coordination.bootstrap import ClusterBootstrap
from fairlead_broker.coordination.embedded import EmbeddedCoordination
from fairlead_broker.coordination.membership import Incarnation, Membership
from fairlead_broker.coordination.mirror import Mirror
from fairlead_broker.peers.identity import PeerIdentity
from fairlead_broker.peers.peers import Peers
from fairlead_broker.registry.keys import Keys
from fairlead_broker.registry.records import (
    Addresses,
    BrokerRegistration,
    BrokerState,
    Directory,
    DurabilityState,
    InSync,
    PartitionRecord,
    Replica,
    TopicRecord,
    TopicState,
    encode,
)
from fairlead_broker.registry.store_writes import Put
from fairlead_broker.runtime.lifecycle.departure import Departure
from fairlead_broker.runtime.lifecycle.own_registration import OwnRegistration
from waiting import until

KEYS = Keys("test")
TOPIC = TopicId("1b4e28ba-2fa1-4d3b-a3f5-ef19b5a7633b")
OWN, OTHER = BrokerId(1), BrokerId(2)
SECONDS_MAX = 20.0
NOWHERE = "127.0.0.1:9"
"""Address of all brokers, at which nothing listens; the test itself sets the mirror revisions of peers."""


def registration(broker: BrokerId) -> BrokerRegistration:
    """Return the registration of a running broker."""
    return BrokerRegistration(
        state=BrokerState.RUNNING,
        addresses=Addresses(data=NOWHERE, peer=NOWHERE, ops=NOWHERE),
        rack=None,
        release="test",
        peer_secret_hash="00",
        directories=(Directory(id=f"d{broker}", last_broker_epoch=BrokerEpoch(0)),),
    )


@dataclass
class Scene:
    """Broker 1 during its stop, and its view of the cluster."""

    store: EmbeddedCoordination
    bootstrap: ClusterBootstrap
    life: Incarnation
    mirror: Mirror
    peers: Peers
    departure: Departure
    log: CapturingLogger

    async def other(self, state: BrokerState = BrokerState.RUNNING) -> Membership:
        """Register broker 2."""
        membership = await self.bootstrap.register(
            OTHER, msgspec.structs.replace(registration(OTHER), state=state), 5
        )
        await self.mirror.wait_for(membership.revision)
        return membership

    async def partition(self, leader: InSync, *isr: InSync) -> None:
        """Write the record of the only partition."""
        record = PartitionRecord(
            leader=leader,
            leader_epoch=LeaderEpoch(1),
            replicas=tuple(Replica(broker=each, directory=f"d{each}") for each in (OWN, OTHER)),
            isr=isr,
            min_isr=1,
            durability=DurabilityState.REPLICATED,
            unclean=False,
        )
        topic = TopicRecord(
            topic_id=TOPIC, partitions=1, replication_factor=2, state=TopicState.READY, created_us=0
        )
        puts = (
            Put(KEYS.topic("flights"), encode(topic)),
            Put(KEYS.partition(TOPIC, PartitionIndex(0)), encode(record)),
        )
        await self.mirror.wait_for((await self.store.transact((), puts)).revision)

    @property
    def entry(self) -> InSync:
        """Return the ISR entry of this broker."""
        return InSync(broker=OWN, broker_epoch=self.life.epoch)

    @property
    def state(self) -> BrokerState:
        """Return the state in this broker's registration."""
        return self.life.membership.registration.state

    async def announced(self) -> None:
        """Wait until the stop is visible to other brokers."""
        await until(
            lambda: self.mirror.metadata.brokers[OWN].value.state is BrokerState.STOPPING, SECONDS_MAX
        )


@pytest.fixture
async def scene(tmp_path: Path) -> AsyncIterator[Scene]:
    """Yield a registered broker without peers."""
    clock, log = SystemClock(), CapturingLogger()
    async with await EmbeddedCoordination.open(tmp_path / "store.sqlite", clock) as store:
        bootstrap = ClusterBootstrap(store, KEYS, clock)
        life = Incarnation(await bootstrap.register(OWN, registration(OWN), 5))
        mirror = Mirror(store, KEYS)
        await mirror.load()

        async def remember(membership: Membership) -> None:
            msg = f"broker {membership.broker_id} never loses its life here"
            raise AssertionError(msg)

        own = OwnRegistration(bootstrap, life, 5, log, remember=remember, draining=lambda: False)
        identity = PeerIdentity("c", OWN, "secret", lambda: life.epoch, lambda: mirror.metadata.revision)
        peers = Peers(identity, lambda: mirror.metadata.brokers, clock)
        tasks = [asyncio.ensure_future(work) for work in (mirror.run(), own.run())]
        await own.begin(registration(OWN).directories[0])
        try:
            yield Scene(store, bootstrap, life, mirror, peers, Departure(own, life, mirror, peers, log), log)
        finally:
            for task in tasks:
                task.cancel()
            await peers.close()


@pytest.mark.parametrize("company", ["alone", "the other stops as well"])
async def test_without_running_peers_a_stop_does_not_wait(scene: Scene, company: str) -> None:
    """A broker without running peers stops without a wait."""
    if company != "alone":
        await scene.other(BrokerState.STOPPING)
    await scene.partition(scene.entry, scene.entry)
    await scene.departure.announce()

    assert scene.state is BrokerState.RUNNING
    assert scene.log.calls == []


async def test_a_stop_waits_until_others_lead_and_have_seen_it(scene: Scene) -> None:
    """A stop waits until other brokers lead the broker's partitions and the mirrors of peers show the new leaders."""
    other = await scene.other()
    successor = InSync(broker=OTHER, broker_epoch=other.broker_epoch)
    await scene.partition(scene.entry, scene.entry, successor)
    leaving = asyncio.ensure_future(scene.departure.announce(SECONDS_MAX))
    await scene.announced()
    scene.peers.note_revision(OTHER, scene.mirror.metadata.revision)
    await asyncio.wait([leaving], timeout=0.2)
    while_it_leads = leaving.done()
    await scene.partition(successor, successor)
    # The broker asks the peer, which cannot answer in this test, and then checks again.
    await asyncio.wait([leaving], timeout=0.2)
    while_nobody_knows = leaving.done()
    scene.peers.note_revision(OTHER, scene.mirror.metadata.revision)
    async with asyncio.timeout(SECONDS_MAX):
        await leaving

    assert (while_it_leads, while_nobody_knows) == (False, False)
    assert scene.state is BrokerState.STOPPING
    assert scene.log.calls == []


async def test_a_partition_without_another_replica_is_not_waited_for(scene: Scene) -> None:
    """A stop does not wait for a partition whose only in-sync replica is this broker."""
    other = await scene.other()
    await scene.partition(scene.entry, scene.entry)
    leaving = asyncio.ensure_future(scene.departure.announce(SECONDS_MAX))
    await scene.announced()
    scene.peers.note_revision(OTHER, scene.mirror.metadata.revision)
    async with asyncio.timeout(SECONDS_MAX):
        await leaving

    assert other.broker_epoch > scene.life.epoch
    assert scene.log.calls == []


async def test_the_time_of_a_stop_is_bounded(scene: Scene) -> None:
    """A stop has a time limit, and the log reports the number of partitions that the broker still leads."""
    other = await scene.other()
    successor = InSync(broker=OTHER, broker_epoch=other.broker_epoch)
    await scene.partition(scene.entry, scene.entry, successor)
    await scene.departure.announce(0.1)

    [warning] = scene.log.calls
    assert warning.method_name == "warning"
    assert warning.kwargs == {"still_leading": 1}
