"""Brokers that lose their registration, are drained or stop: their state at other brokers, and use of their data."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import msgspec
import pytest

from cluster_kit import Cluster, until
from fairlead_api.identifiers import BrokerId, PartitionIndex
from fairlead_broker.coordination.membership import Membership
from fairlead_broker.log.segments.storage import PosixStorage
from fairlead_broker.registry.records import BrokerState, encode
from fairlead_broker.registry.store_writes import Delete, Put
from fairlead_broker.settings import BrokerSettings, Endpoint
from fairlead_broker.wiring.start import start_broker
from refusals import refuses
from runtime_kit import WatchedStorage

ANY = Endpoint("127.0.0.1", 0)


class SlowIdentity(PosixStorage):
    """Disk on which a directory records the new incarnation of its broker only when the test allows it."""

    def __init__(self) -> None:
        """Block renames of the incarnation's file until the test allows them."""
        super().__init__()
        self.may_write = threading.Event()

    def rename(self, source: Path, target: Path) -> None:
        """Rename a file; the file of the incarnation waits until the test allows the rename."""
        if target.name == "identity":
            assert self.may_write.wait(30), "the test did not allow the identity to be written"
        super().rename(source, target)


def membership(cluster: Cluster, broker: int) -> Membership:
    """Return the newest registration of a broker."""
    return cluster.broker(broker).entry.incarnation.membership


async def in_another_life(cluster: Cluster, broker: BrokerId, before: Membership) -> None:
    """Wait until a broker has registered again and every broker knows the new registration."""

    def met() -> bool:
        epoch = cluster.broker(broker).broker_epoch
        registered = [each.broker.metadata.brokers.get(broker) for each in cluster.brokers.values()]
        return epoch > before.broker_epoch and all(
            each is not None and each.create_revision == epoch for each in registered
        )

    await until(met, f"broker {broker} did not register again")


@pytest.mark.slow
async def test_a_follower_that_stops_answers_until_it_is_not_needed(cluster: Cluster) -> None:
    """A stopping follower answers until the controller has removed it from the in-sync replicas."""
    topic_id = await cluster.topic("flights")
    await cluster.in_sync(topic_id, 1, 2, 3)
    follower = next(broker for broker in (1, 2, 3) if broker != cluster.leader(topic_id))
    for task in asyncio.all_tasks():
        if task.get_name() == "controllership":
            task.cancel()
    now = asyncio.get_running_loop().time
    began = now()
    await cluster.broker(follower).departure.announce(seconds_max=2.0)
    alone = now() - began
    parts = cluster.broker(follower)
    key = parts.entry.keys.partition(topic_id, PartitionIndex(0))
    before = cluster.record(topic_id)
    after = msgspec.structs.replace(before, isr=tuple(each for each in before.isr if each.broker != follower))
    await cluster.store.transact((), (Put(key, encode(after)),))
    began = now()
    await parts.departure.announce(seconds_max=30.0)

    assert alone >= 2.0
    assert now() - began < 30.0


@pytest.mark.parametrize("mode", ["isr", "quorum"])
async def test_a_leader_without_its_lease_comes_back_as_a_follower(cluster: Cluster, mode: str) -> None:
    """A leader without its lease returns as a follower in the same process, with all acknowledged records."""
    topic_id = await cluster.topic("flights", replication_mode=mode)
    await (await cluster.led("flights", topic_id)).produce(b"before")
    first = cluster.leader(topic_id)
    assert first is not None
    ended, epoch = membership(cluster, first), cluster.record(topic_id).leader_epoch
    await cluster.store.revoke(ended.lease)
    await in_another_life(cluster, first, ended)
    await until(lambda: cluster.record(topic_id).leader_epoch > epoch, "no other leader was elected")
    client = await cluster.led("flights", topic_id)
    last = await client.produce(b"after")
    await cluster.in_sync(topic_id, 1, 2, 3)
    copies = await cluster.copied(topic_id, last.base_offset + 1)

    assert copies[0] == copies[1] == copies[2]
    registration = membership(cluster, first).registration
    assert registration.directories[0].last_broker_epoch == ended.broker_epoch
    assert registration.intact_since is not None
    assert registration.intact_since <= ended.broker_epoch
    identity = cluster.broker(first).entry.directory.identity
    assert identity.last_broker_epoch == membership(cluster, first).broker_epoch
    lost = {
        each: cluster.broker(each).telemetry.registry.get_sample_value("fairlead_lost_leases_total")
        for each in cluster.brokers
    }
    assert lost == {each: float(each == first) for each in cluster.brokers}


async def test_a_removed_registration_is_created_again(cluster: Cluster) -> None:
    """A registration that was removed is created again, even if its lease is still valid."""
    before = membership(cluster, 2)
    keys = cluster.any.metadata.keys
    await cluster.store.transact((), (Delete(keys.broker(BrokerId(2))),))
    await in_another_life(cluster, BrokerId(2), before)

    assert membership(cluster, 2).is_confirmed


async def test_a_failed_directory_is_not_registered_again(tmp_path: Path) -> None:
    """A failed directory is not registered again, because unsynced data may be lost after the failed sync."""
    cluster, storage = await Cluster.open(tmp_path), WatchedStorage()
    try:
        cluster.brokers[1] = await start_broker(
            BrokerSettings(id=1, data=tmp_path / "1", listen=ANY, peer_listen=ANY, ops_listen=ANY),
            storage=storage,
            coordination=cluster.store.connect(),
        )
        topic_id = await cluster.topic("flights", replication_factor=1)
        client = await cluster.led("flights", topic_id)
        storage.failing = True
        with refuses("storage_failed"):
            await client.produce(b"lost")
        await until(
            lambda: membership(cluster, 1).registration.directories == (),
            "the failed directory is still registered",
        )
    finally:
        await cluster.close()


@pytest.mark.slow
async def test_a_drained_broker_says_so_in_its_registration(cluster: Cluster) -> None:
    """A drained broker shows the drain in its registration, even after a restart, until it is undrained."""

    def state(broker: int) -> BrokerState | None:
        registered = cluster.controller.metadata.brokers.get(BrokerId(broker))
        return registered.value.state if registered else None

    target = next(each for each in cluster.brokers if each != cluster.controller.entry.incarnation.broker)
    await cluster.controller.operations.drain(BrokerId(target))
    await until(lambda: state(target) is BrokerState.DRAINING, "the registration does not show the drain")
    await cluster.stop(target)
    await cluster.start(target)
    await until(lambda: state(target) is BrokerState.DRAINING, "the restarted broker does not show the drain")
    await cluster.controller.operations.undrain(BrokerId(target))
    await until(lambda: state(target) is BrokerState.RUNNING, "the broker still drains")


async def test_an_incarnation_unknown_to_the_directory_is_not_elected(
    cluster: Cluster, tmp_path: Path
) -> None:
    """An incarnation that the directory has not recorded is not elected.

    If the incarnation became leader before the directory has recorded it, a crash would make the directory look like an
    older copy of its disk forever.
    """
    topic_id = await cluster.topic("flights", replication_factor=1)
    await (await cluster.led("flights", topic_id)).produce(b"kept")
    holder = cluster.leader(topic_id)
    assert holder is not None
    await cluster.stop(holder)
    await until(lambda: cluster.leader(topic_id) is None, "the partition still has its stopped leader")
    storage = SlowIdentity()
    starting = asyncio.ensure_future(
        start_broker(
            BrokerSettings(
                id=holder, data=tmp_path / str(holder), listen=ANY, peer_listen=ANY, ops_listen=ANY
            ),
            storage=storage,
            coordination=cluster.store.connect(),
        )
    )
    await until(lambda: holder in cluster.any.metadata.brokers, "the broker does not register")
    # The controller completes its earlier work before it creates two more topics.
    for name in ("one", "two"):
        await cluster.topic(name, replication_factor=1)
    early = cluster.leader(topic_id), cluster.any.metadata.brokers[holder].value.directories
    storage.may_write.set()
    cluster.brokers[holder] = await starting
    client = await cluster.led("flights", topic_id)

    assert early == (None, ())
    assert client.handle().log.end_offset == 1
    assert membership(cluster, holder).registration.quarantined == ()
    [directory] = membership(cluster, holder).registration.directories
    assert 0 < directory.last_broker_epoch < membership(cluster, holder).broker_epoch
