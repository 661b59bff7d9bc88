"""A rolling upgrade from release 0.1.0 under load, and a downgrade before the feature level is raised (rule Z17).

Brokers of the earlier release run the sources of that release from git, with the installed packages of this checkout.
"""

from __future__ import annotations

import asyncio
import io
import os
import subprocess
import tarfile
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Final

import pytest

import checkout
from broker_kit import TIME_US, Calls
from broker_process import BrokerProcess
from etcd_cluster import etcd_cluster, free_ports
from fairlead import Admin, Producer
from fairlead.errors import NotPossibleNowError
from fairlead_api.batch.batches import ProducerStamp, encode, record_batch
from fairlead_api.versions import FEATURE_LEVEL
from figures import record
from refusals import raises
from secured_processes import LEASE_SECONDS, TOPIC, Load, outcome_of

EARLIER: Final = "7020df48"
"""Commit with the sources of release 0.1.0, whose feature level is 1."""
PACKAGES: Final = ("api", "broker", "client")
BROKERS: Final = 3
STOP_SECONDS_MAX: Final = 60
ORDERS: Final = "orders"
"""Topic to which only transactions write."""


class Brokers:
    """Brokers as processes, each of either release."""

    def __init__(self, folder: Path, etcd: str, earlier: Path) -> None:
        """`earlier`: folder with the sources of the earlier release."""
        ports = free_ports()
        packages = os.pathsep.join(str(earlier / name) for name in PACKAGES)
        self._earlier = ("env", f"PYTHONPATH={packages}")
        self.processes = []
        self.restarts = 0
        """Number of planned restarts of brokers."""
        for number in range(BROKERS):
            process = BrokerProcess(
                folder / f"broker-{number}",
                {"FAIRLEAD_LEASE_SECONDS": str(LEASE_SECONDS)},
                arguments=("--id", str(number), "--etcd", etcd),
            )
            data, peer, ops = (f"127.0.0.1:{next(ports)}" for _ in range(3))
            process.listeners = data, peer, ops
            self.processes.append(process)

    @property
    def bootstrap(self) -> list[str]:
        """Addresses of the brokers."""
        return [f"http://{process.listeners[0]}" for process in self.processes]

    async def start(self, process: BrokerProcess, *, earlier: bool) -> None:
        """Start a broker of the earlier or of the current release. Raises RuntimeError if the broker ends."""
        process.prefix = self._earlier if earlier else ()
        await asyncio.to_thread(process.start)

    async def roll(self, load: Load, *, earlier: bool) -> None:
        """Restart the brokers one by one with the earlier or the current release, while a load runs."""
        for process in self.processes:
            assert await asyncio.to_thread(process.stop, STOP_SECONDS_MAX) == 0
            await self.start(process, earlier=earlier)
            self.restarts += 1
            await load.goes_on()


def unpack(folder: Path) -> None:
    """Write the sources of the earlier release into a folder; skip the test in a checkout without the history."""
    command = ["git", "archive", EARLIER, *PACKAGES]
    done = subprocess.run(command, cwd=checkout.ROOT, capture_output=True, check=False)
    if done.returncode:
        pytest.skip(f"release 0.1.0 cannot be read from git: {done.stderr.decode()}")
    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as packed:
        packed.extractall(folder, filter="data")


@asynccontextmanager
async def brokers(folder: Path) -> AsyncIterator[Brokers]:
    """Run a cluster that brokers of the earlier release have created."""
    unpack(folder / "earlier")
    async with etcd_cluster(folder / "etcd") as etcd:
        found = Brokers(folder, etcd.urls[0], folder / "earlier")
        try:
            for process in found.processes:
                await found.start(process, earlier=True)
            yield found
        finally:
            for process in found.processes:
                await asyncio.to_thread(process.kill)


async def refused_transactions(admin: Admin, cluster: Brokers) -> tuple[set[str], set[int]]:
    """Send a batch of a transaction to each broker, one of which has the current release; the first is current.

    Returns the codes of the refusals, and the high watermarks of the partitions afterwards.
    """
    with pytest.raises(NotPossibleNowError):
        await Producer(cluster.bootstrap[0], transactional="billing").start()
    stamp = ProducerStamp(1, 0, 0, is_transactional=True)
    batch = encode(record_batch([b"never"], default_timestamp_us=TIME_US), producer=stamp).to_bytes()
    await admin.create_topic(ORDERS, partitions=BROKERS, replication_factor=BROKERS)
    codes, ends, leaders = set(), set(), set()
    async with AsyncExitStack() as stack:
        apis = [await stack.enter_async_context(Calls(url)) for url in cluster.bootstrap]
        for partition in range(BROKERS):
            path = f"/v1/topics/{ORDERS}/partitions/{partition}"
            for api in apis:
                codes.add((await api.send(ORDERS, batch, partition)).code)
            described = await apis[0].call("GET", path)
            leaders.add(described.json["leader"])
            ends.add((await apis[0].call("GET", f"{path}/offsets")).json["high_watermark"])
    assert leaders == set(range(BROKERS)), "no broker of the earlier release leads a partition"
    return codes, ends


@pytest.mark.slow
@pytest.mark.etcd
@pytest.mark.scenario
@pytest.mark.timeout(600)
async def test_release_0_1_0_is_upgraded_and_back_under_load(tmp_path: Path) -> None:
    """Brokers of release 0.1.0 are upgraded, downgraded and upgraded again one by one, while clients write and read.

    No send fails, and every acknowledged record is read. Tokens and stricter modes wait for the feature level (proof
    V19), and so do transactions. After the level is raised, a broker of release 0.1.0 does not start.
    """
    async with brokers(tmp_path) as cluster, Admin(cluster.bootstrap) as admin:
        await admin.create_topic(
            TOPIC, partitions=3, replication_factor=BROKERS, config={"min.insync.replicas": 2}
        )
        load = Load("load", cluster.bootstrap)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(load.run())
            await load.goes_on()
            await cluster.roll(load, earlier=False)
            await cluster.roll(load, earlier=True)
            first = cluster.processes[0]
            assert await asyncio.to_thread(first.stop, STOP_SECONDS_MAX) == 0
            await cluster.start(first, earlier=False)
            await load.goes_on()
            refused, ends = await refused_transactions(admin, cluster)
            await cluster.roll(load, earlier=False)
            with pytest.raises(NotPossibleNowError):
                await admin.create_token("user:ann")
            with pytest.raises(NotPossibleNowError):
                await admin.alter_cluster_config({"security.mode": "observe"})
            await admin.alter_cluster_config({"feature.level": FEATURE_LEVEL})
            token = await admin.create_token("user:ann")
            last = cluster.processes[-1]
            assert await asyncio.to_thread(last.stop, STOP_SECONDS_MAX) == 0
            with raises(RuntimeError, "level", FEATURE_LEVEL, "understands", 1):
                await cluster.start(last, earlier=True)
            await load.goes_on()
            await cluster.start(last, earlier=False)
            await load.goes_on()
            load.end()
    outcome = outcome_of([load])
    record(
        "from release 0.1.0, back, and again", {"brokers": BROKERS, "restarts": cluster.restarts, **outcome}
    )

    assert refused == {"malformed_batch"}
    assert ends == {0}
    assert token.principal == "user:ann"
    assert outcome["lost"] == 0
