"""Tests of broker processes on a real etcd: how long clients wait after a process has ended or is paused."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from broker_process import BrokerProcess
from etcd_cluster import EtcdCluster
from fairlead import Admin, Consumer, Producer
from fairlead.connection.pool import KEEP_ALIVE_INTERVAL, KEEP_ALIVE_TIMEOUT
from fairlead_broker.controller.failure_detector import FIRST_PROBE_SECONDS
from waiting import pause

LONG_LEASE_SECONDS = 60
SHORT_LEASE_SECONDS = 3
PING_SECONDS = (KEEP_ALIVE_INTERVAL + KEEP_ALIVE_TIMEOUT).total_seconds()


@pytest.fixture
async def processes(
    alone: EtcdCluster, tmp_path: Path, request: pytest.FixtureRequest
) -> AsyncIterator[dict[int, BrokerProcess]]:
    """Yield three brokers that serve; the parameter is the duration of their leases in seconds."""
    arguments = ("--etcd", alone.urls[0], "--lease-seconds", str(request.param))
    made = {
        number: BrokerProcess(tmp_path / f"data-{number}", arguments=("--id", str(number), *arguments))
        for number in (0, 1, 2)
    }
    try:
        await asyncio.gather(*(asyncio.to_thread(each.start) for each in made.values()))
        yield made
    finally:
        for each in made.values():
            each.kill()


async def in_sync(admin: Admin, topic: str) -> int:
    """Wait until all three replicas of a topic with one partition are in sync; return the leader."""
    while True:
        [partition] = (await admin.metadata([topic])).topics[0].partitions
        if len(partition.isr) == 3 and partition.leader is not None:
            return partition.leader


@pytest.mark.parametrize("processes", [LONG_LEASE_SECONDS], indirect=True)
async def test_a_killed_leader_and_controller_are_replaced_at_once(
    processes: dict[int, BrokerProcess],
) -> None:
    """After the leader (in one case also the controller) is killed, writes continue before its lease ends.

    A killed broker that is started again does not wait for the end of its earlier lease.
    """
    waits = []
    urls = [each.url for each in processes.values()]
    async with Admin(urls) as admin, Producer(urls, linger_ms=0) as producer, asyncio.timeout(300):
        await admin.create_topic(
            "flights", partitions=1, replication_factor=3, config={"min.insync.replicas": 2}
        )
        for _ in range(2):
            leader = processes[await in_sync(admin, "flights")]
            await producer.send_and_wait("flights", b"before")
            # The end of a process is detected only after a connection to it, which is tried at this interval at first.
            await pause(10 * FIRST_PROBE_SECONDS)
            await asyncio.to_thread(leader.kill)
            killed_at = time.monotonic()
            await producer.send_and_wait("flights", b"after")
            waits.append(time.monotonic() - killed_at)
            await asyncio.to_thread(leader.start)
            waits.append(time.monotonic() - killed_at)

    assert max(waits) < LONG_LEASE_SECONDS / 2


@pytest.mark.parametrize("processes", [SHORT_LEASE_SECONDS], indirect=True)
async def test_clients_of_a_silent_leader_find_the_next_leader(processes: dict[int, BrokerProcess]) -> None:
    """After a leader is paused, its clients reach the next leader long before their connections are given up.

    The record whose request had no answer is stored once. A record is also stored through an admin call, and is read by
    a consumer whose fetch had no answer.
    """
    async with asyncio.timeout(300):
        async with Admin([each.url for each in processes.values()]) as admin:
            await admin.create_topic(
                "flights", partitions=1, replication_factor=3, config={"min.insync.replicas": 2}
            )
            paused = processes[await in_sync(admin, "flights")]
        # The paused broker is the first that each client asks.
        urls = [paused.url, *(each.url for each in processes.values() if each is not paused)]
        async with Admin(urls) as admin, Producer(urls, linger_ms=0) as producer, Consumer(urls) as consumer:
            await consumer.assign(topic="flights")
            await producer.send_and_wait("flights", b"before")
            records = consumer.records()
            values = [(await anext(records)).value]
            begun = time.monotonic()
            paused.pause()
            await producer.send_and_wait("flights", b"after")
            values.append((await anext(records)).value)
            async with Admin(urls) as other:
                await other.create_topic("cities", partitions=1, replication_factor=2)
            seconds = time.monotonic() - begun
            paused.resume()
            end = await admin.offsets("flights", 0)

    assert values == [b"before", b"after"]
    assert end.high_watermark == 2
    assert seconds < PING_SECONDS
