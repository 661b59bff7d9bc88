"""Tests of whole brokers on a real etcd: their start, a lost lease, and the move from the embedded store."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from etcd_cluster import EtcdCluster, etcd_cluster, free_ports
from fairlead_api.batch.batches import decode_records
from fairlead_api.problems import ProblemError
from fairlead_broker.controlling.moving import CoordinationMoved
from fairlead_broker.coordination.bootstrap import BrokerIdHeld
from fairlead_broker.coordination.etcd import CredentialsRefused
from fairlead_broker.log import IdentityMismatch
from fairlead_broker.runtime.lifecycle.coordination_access import CoordinationElsewhere
from fairlead_broker.settings import BrokerSettings, Endpoint
from fairlead_broker.wiring.start import RunningBroker, move_coordination, start_broker
from refusals import raises
from runtime_kit import TopicClient, topic

ANY = Endpoint("127.0.0.1", 0)
SECONDS = 30.0
LONG_LEASE_SECONDS = 4
"""Lease that a busy machine renews in time."""
Start = Callable[..., Coroutine[Any, Any, RunningBroker]]


class WaitableLog:
    """A log that lets a test wait for an event."""

    def __init__(self) -> None:
        """Create a log without events."""
        self.events: dict[str, asyncio.Event] = {}

    def said(self, event: str) -> asyncio.Event:
        """Return an event that is set when the log has the given event."""
        return self.events.setdefault(event, asyncio.Event())

    def bind(self, **facts: Any) -> WaitableLog:
        """Return the same log."""
        del facts
        return self

    def info(self, event: str, **facts: Any) -> None:
        """Record the event."""
        del facts
        self.said(event).set()

    debug = warning = error = info


@pytest.fixture
async def start(tmp_path: Path) -> AsyncIterator[Start]:
    """Yield a function that starts a broker with the given settings, by default in the folder `data`."""
    async with AsyncExitStack() as stack:

        async def run(etcd: EtcdCluster | None = None, log: Any = None, **given: Any) -> RunningBroker:
            running = await start_broker(settings(tmp_path, etcd, **given), log=log)
            stack.push_async_callback(running.stop)
            return running

        yield run


def settings(folder: Path, etcd: EtcdCluster | None = None, **given: Any) -> BrokerSettings:
    """Return the settings of a broker on free ports."""
    return BrokerSettings(
        **{
            "data": folder / "data",
            "listen": ANY,
            "peer_listen": ANY,
            "ops_listen": ANY,
            "lease_seconds": 2,
            "etcd": ",".join(etcd.urls) if etcd else None,
            **given,
        }
    )


async def values(client: TopicClient) -> list[bytes]:
    """Return all values in partition 0."""
    return [record.value for record in decode_records(b"".join((await client.fetch()).data)) if record.value]


async def test_a_broker_waits_for_etcd(alone: EtcdCluster, start: Start) -> None:
    """A broker without etcd logs that it waits, is not ready, and continues when etcd is available."""
    alone.members[0].kill()
    log, port = WaitableLog(), next(free_ports())
    starting = asyncio.create_task(start(alone, log, ops_listen=Endpoint("127.0.0.1", port)))
    async with asyncio.timeout(SECONDS):
        await log.said("coordination is unavailable; trying again").wait()
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /readyz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        answer = await reader.read()
        writer.close()
        alone.members[0].start()
        broker = await starting

    assert answer.startswith(b"HTTP/1.1 503")
    assert broker.broker.ready


async def test_wrong_credentials_end_the_start(alone: EtcdCluster, start: Start) -> None:
    """A broker does not wait when its credentials are invalid, because waiting would not help."""
    await alone.etcdctl("user", "add", "root:right")
    await alone.etcdctl("user", "grant-role", "root", "root")
    await alone.etcdctl("auth", "enable")
    async with asyncio.timeout(SECONDS):
        with pytest.raises(CredentialsRefused):
            await start(alone, etcd_user="root", etcd_password="wrong")
        broker = await start(alone, etcd_user="root", etcd_password="right")

    assert broker.broker.ready


async def test_an_id_that_is_taken_is_refused_with_its_holder(
    alone: EtcdCluster, start: Start, tmp_path: Path
) -> None:
    """A broker with an id in use is refused after the time in which a dead broker's registration would expire."""
    first = await start(alone, lease_seconds=LONG_LEASE_SECONDS)
    async with asyncio.timeout(SECONDS):
        with pytest.raises(BrokerIdHeld) as refused:
            await start(alone, data=tmp_path / "other", lease_seconds=LONG_LEASE_SECONDS)

    assert refused.value.holder.addresses.data == str(first.addresses.data)
    assert first.broker.ready


async def test_a_lost_lease_is_followed_by_another_life(alone: EtcdCluster, start: Start) -> None:
    """A broker that lost its lease registers again with a higher broker epoch, leads again and has every record."""
    log = WaitableLog()
    broker = await start(alone, log)
    client = await topic(broker.broker)
    await client.produce(b"before")
    epoch, leader_epoch = broker.broker.broker_epoch, client.handle().leader_epoch
    leases = (await alone.etcdctl("lease", "list")).split()[-1]
    async with asyncio.timeout(SECONDS):
        await alone.etcdctl("lease", "revoke", leases)
        await log.said("registered again").wait()
        while broker.broker.broker_epoch == epoch or not leads(client, above=leader_epoch):
            await asyncio.wait_for(mirror_moved(broker), SECONDS)
        await client.produce(b"after")

    assert broker.broker.broker_epoch > epoch
    assert await values(client) == [b"before", b"after"]


def leads(client: TopicClient, above: int) -> bool:
    """Return whether partition 0 has a leader in an epoch above `above`."""
    try:
        return client.handle().leader_epoch > above
    except ProblemError:
        return False


async def mirror_moved(broker: RunningBroker) -> None:
    """Wait until the partitions of the broker agree with the mirror."""
    await broker.broker.replicas.settled()


async def test_a_directory_of_another_cluster_is_refused(
    alone: EtcdCluster, start: Start, tmp_path: Path
) -> None:
    """A broker with the directory of another cluster is refused, even if there is no cluster in its own etcd yet."""
    first = await start(alone)
    mine = first.broker.entry.cluster.cluster_id
    await first.stop()
    async with etcd_cluster(tmp_path / "other") as other:
        with raises(CoordinationElsewhere, mine):
            await start(other)
        second = await start(other, data=tmp_path / "elsewhere")
        theirs = second.broker.entry.cluster.cluster_id
        await second.stop()
        with raises(CoordinationElsewhere, mine, theirs):
            await start(other)
    with pytest.raises(IdentityMismatch):
        await start(alone, id=1)


async def test_coordination_moves_to_etcd_with_its_data(
    alone: EtcdCluster, start: Start, tmp_path: Path
) -> None:
    """A directory starts with etcd only after its store was moved there, and never again from the old store."""
    broker = await start()
    cluster_id = broker.broker.entry.cluster.cluster_id
    client = await topic(broker.broker, retention_ms=86_400_000)
    await client.produce(b"one")
    await broker.stop()
    with pytest.raises(CoordinationElsewhere) as refused:
        await start(alone)
    command = f"fairlead cluster move-coordination --from {tmp_path / 'data'} --etcd {alone.urls[0]}"
    assert str(refused.value).endswith(command)

    moved = await move_coordination(settings(tmp_path, alone))
    broker = await start(alone)
    client = TopicClient(broker.broker, "flights")
    await client.produce(b"two")

    assert (moved.cluster_id, moved.already) == (cluster_id, False)
    assert broker.broker.entry.cluster.cluster_id == cluster_id
    assert await values(client) == [b"one", b"two"]
    assert broker.broker.views.by_name("flights").config.retention_ms == 86_400_000
    await broker.stop()
    with raises(CoordinationMoved, alone.urls[0]):
        await start()
    broker = await start(alone)
    assert await values(TopicClient(broker.broker, "flights")) == [b"one", b"two"]
