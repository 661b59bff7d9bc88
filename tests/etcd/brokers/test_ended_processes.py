"""Tests of broker processes on a real etcd: the end of a process is detected long before its lease ends."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from broker_process import BrokerProcess
from etcd_cluster import EtcdCluster
from fairlead import Admin, Producer
from fairlead_broker.controller.failure_detector import FIRST_PROBE_SECONDS
from waiting import pause

LEASE_SECONDS = 60


@pytest.fixture
async def processes(alone: EtcdCluster, tmp_path: Path) -> AsyncIterator[dict[int, BrokerProcess]]:
    """Yield three brokers that serve, with long leases."""
    arguments = ("--etcd", alone.urls[0], "--lease-seconds", str(LEASE_SECONDS))
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
            while True:
                metadata = await admin.metadata(["flights"])
                [partition] = metadata.topics[0].partitions
                if len(partition.isr) == 3 and partition.leader is not None:
                    break
            await producer.send_and_wait("flights", b"before")
            # The end of a process is detected only after a connection to it, which is tried at this interval at first.
            await pause(10 * FIRST_PROBE_SECONDS)
            leader = processes[partition.leader]
            await asyncio.to_thread(leader.kill)
            killed_at = time.monotonic()
            await producer.send_and_wait("flights", b"after")
            waits.append(time.monotonic() - killed_at)
            await asyncio.to_thread(leader.start)
            waits.append(time.monotonic() - killed_at)

    assert max(waits) < LEASE_SECONDS / 2
