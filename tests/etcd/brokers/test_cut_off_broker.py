"""Tests of a broker that cannot reach etcd while other brokers can: clients continue with the other brokers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import requests

from cluster_kit import QUIET
from etcd_cluster import EtcdCluster
from fairlead import Admin, Consumer, Producer, TopicPartition
from fairlead_broker.settings import BrokerSettings, Endpoint
from fairlead_broker.wiring.start import RunningBroker, start_broker
from tcp_relay import TcpRelay, tcp_relay

ANY = Endpoint("127.0.0.1", 0)
LEASE_SECONDS = 2
CUT_OFF = 1
PICTURE_SECONDS = 2.0
"""Age at which a client refreshes its metadata, which is five minutes outside of tests."""
TOPIC = {"partitions": 3, "replication_factor": 3, "config": {"min.insync.replicas": 2}}


@pytest.fixture
async def relay(alone: EtcdCluster) -> AsyncIterator[TcpRelay]:
    """Yield the relay between one broker and etcd."""
    async with tcp_relay(alone.members[0].client_port) as relay:
        yield relay


@pytest.fixture
async def urls(alone: EtcdCluster, relay: TcpRelay, tmp_path: Path) -> AsyncIterator[Mapping[int, str]]:
    """Yield the addresses of three brokers, one of which is not the controller and reaches etcd through the relay."""
    running: dict[int, RunningBroker] = {}

    async def start(broker: int, etcd: str) -> None:
        settings = BrokerSettings(
            id=broker, data=tmp_path / str(broker), etcd=etcd, lease_seconds=LEASE_SECONDS,
            listen=ANY, peer_listen=ANY, ops_listen=ANY,
        )  # fmt: skip
        running[broker] = await start_broker(settings, log=QUIET)

    direct = f"http://127.0.0.1:{alone.members[0].client_port}"
    try:
        await asyncio.gather(start(2, direct), start(3, direct))
        await start(CUT_OFF, relay.url)
        yield {broker: f"http://{each.addresses.data}" for broker, each in running.items()}
    finally:
        await asyncio.gather(*(broker.stop() for broker in running.values()))


async def led_by(admin: Admin, broker: int) -> set[int]:
    """Return the partitions of the topic that a broker leads."""
    [topic] = (await admin.metadata(["flights"])).topics
    return {each.partition for each in topic.partitions if each.leader == broker}


async def topic_of_all(admin: Admin) -> int:
    """Create the topic when all brokers are registered, and return the partition whose leader will be cut off."""
    while len((await admin.metadata()).brokers) < 3:
        pass
    await admin.create_topic("flights", **TOPIC)
    [partition] = await led_by(admin, CUT_OFF)
    return partition


async def refused_by(url: str, partition: int) -> list[str]:
    """Return the refusals for a client that knows only this broker."""

    def ask() -> list[str]:
        json = {"name": "another"}
        record = f"{url}/v1/topics/flights/partitions/{partition}/records"
        answers = [
            requests.post(f"{url}/v1/topics", json=json, timeout=20),
            requests.post(record, json=[{"value": "x"}], timeout=20),
            requests.get(record, timeout=20),
        ]
        return [answer.json()["code"] for answer in answers]

    return await asyncio.to_thread(ask)


async def test_clients_go_on_through_the_others(relay: TcpRelay, urls: Mapping[int, str]) -> None:
    """Even clients whose first address is the cut-off broker, which answers with old metadata, continue."""
    bootstrap = [urls[CUT_OFF], urls[2], urls[3]]
    async with Admin(bootstrap) as admin, Admin(urls[2]) as other, asyncio.timeout(60):
        partition = await topic_of_all(admin)
        await relay.cut()
        while await led_by(other, CUT_OFF) or await led_by(other, 2) | await led_by(other, 3) != {0, 1, 2}:
            pass
        still_told = await led_by(admin, CUT_OFF)
        codes = await refused_by(urls[CUT_OFF], (partition + 1) % 3)
        place = TopicPartition("flights", partition)
        offsets = await admin.offsets_for({place: "latest"})
        created = await admin.create_topic("another", partitions=1)

    assert still_told == {partition}
    assert codes == ["coordination_unavailable", "no_leader", "no_leader"]
    assert offsets[place] is not None
    assert created.replication_factor == 2


async def test_readers_leave_it_when_their_picture_is_old(relay: TcpRelay, urls: Mapping[int, str]) -> None:
    """The cut-off broker still answers readers, but gets no new records.

    Readers still find the new leader when their metadata expires.
    """
    bootstrap = [urls[CUT_OFF], urls[2], urls[3]]
    async with Admin(bootstrap) as admin, Admin(urls[2]) as other, asyncio.timeout(60):
        partition = await topic_of_all(admin)
        async with Producer(urls[2]) as producer, Consumer(bootstrap) as consumer:
            running = consumer._running
            assert running is not None
            known = running.transport.settings
            running.transport.settings = replace(known, metadata_age_seconds_max=PICTURE_SECONDS)
            await producer.send_and_wait("flights", b"before", partition=partition)
            await consumer.assign([TopicPartition("flights", partition)])
            first = await consumer.next_batch()
            await relay.cut()
            while await led_by(other, CUT_OFF):
                pass
            await producer.refresh_metadata()
            await producer.send_and_wait("flights", b"after", partition=partition)
            second = await consumer.next_batch()

    assert first is not None
    assert second is not None
    assert [first.values, second.values] == [[b"before"], [b"after"]]
