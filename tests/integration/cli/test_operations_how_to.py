"""The how-to guide on running a cluster: its commands and their effects, with four brokers and a real etcd."""

from __future__ import annotations

import asyncio
import shutil
import urllib.error
import urllib.request
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

import etcd_build
from broker_process import BrokerProcess
from etcd_cluster import EtcdCluster, etcd_cluster, free_ports
from page_kit import PageShell, blocks, sections, words
from waiting import COMMAND_SECONDS, LOOK_SECONDS, pause

pytestmark = [pytest.mark.etcd, pytest.mark.slow, pytest.mark.timeout(400)]

SECTIONS = sections("how-to/operations.md")
MODULE = Path(__file__).with_name("etcdutl_go")
PACKAGE = "go.etcd.io/etcd/etcdutl/v3"
LEASE_SECONDS = 15
"""Duration of a lease in seconds, enough for three commands while a broker is paused."""
READY_SECONDS_MAX = 120.0


def etcdutl() -> Path:
    """Return the path of `etcdutl`, built if it is missing."""
    return etcd_build.built("etcdutl", MODULE, {"etcdutl": PACKAGE}) / "etcdutl"


@dataclass(slots=True)
class Site:
    """Brokers 1 to 4, their etcd, and the shell of their administrator."""

    etcd: EtcdCluster
    shell: PageShell
    brokers: dict[int, BrokerProcess] = field(default_factory=dict)

    async def start(self, *numbers: int) -> None:
        """Start brokers concurrently."""
        async with asyncio.TaskGroup() as group:
            for number in numbers:
                group.create_task(asyncio.to_thread(self.brokers[number].start))
        self.know()

    async def stop(self, *numbers: int) -> None:
        """Stop brokers concurrently by SIGTERM."""
        await asyncio.gather(*(asyncio.to_thread(self.brokers[number].stop, 60) for number in numbers))
        self.know()

    async def lose(self, *numbers: int) -> None:
        """Kill brokers, and delete their data."""
        for number in numbers:
            await asyncio.to_thread(self.brokers[number].kill)
            shutil.rmtree(self.brokers[number].data)
        self.know()

    def know(self) -> None:
        """Set the bootstrap address of the shell to the running brokers."""
        urls = [broker.url for broker in self.brokers.values() if broker.running]
        self.shell.variables["FAIRLEAD_BOOTSTRAP"] = ",".join(urls)

    async def type(self, section: str, number: int = 0) -> list[str]:
        """Run a block of a section line by line; return the output of each line."""
        commands = blocks(SECTIONS[section], "console")[number].text.splitlines()
        return [await self.shell.run(command) for command in commands]

    async def replicas(self) -> tuple[str, list[str], list[str]]:
        """Return the leader of the partition, its replicas and its in-sync replicas."""
        described = words(await self.shell.run("fairlead topic describe orders"))
        leader, _, replicas, isr = next(line[1:5] for line in described if line[0] == "0")
        return leader, replicas.split(","), sorted(isr.split(","))

    async def settled(self, replicas: list[str]) -> None:
        """Wait until exactly these brokers have a replica of the partition, in any order, and all are in sync."""
        async with asyncio.timeout(READY_SECONDS_MAX):
            while [sorted(each) for each in (await self.replicas())[1:]] != [replicas, replicas]:
                await pause(COMMAND_SECONDS)

    async def ready(self, number: int) -> None:
        """Wait until `/readyz` of a broker answers 200."""

        def answers() -> bool:
            try:
                with urllib.request.urlopen(f"{self.brokers[number].ops}/readyz", timeout=5) as answer:
                    return bool(answer.status == 200)
            except urllib.error.HTTPError:
                return False

        async with asyncio.timeout(READY_SECONDS_MAX):
            while not await asyncio.to_thread(answers):
                await pause(LOOK_SECONDS)


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    """Yield four brokers and a topic of one partition with a thousand records on the first three brokers."""
    ports = free_ports()
    async with etcd_cluster(tmp_path / "etcd") as etcd:
        site = Site(etcd, PageShell(tmp_path))
        for number in (1, 2, 3, 4):
            listeners = (f"127.0.0.1:{next(ports)}", f"127.0.0.1:{next(ports)}", f"127.0.0.1:{next(ports)}")
            arguments = ("--id", str(number), "--etcd", etcd.urls[0], "--lease-seconds", str(LEASE_SECONDS))
            site.brokers[number] = BrokerProcess(
                tmp_path / f"broker-{number}", arguments=arguments, listeners=listeners
            )
        try:
            # Broker 1 becomes the controller and is never paused, because no other broker could answer the page's
            # commands.
            await site.start(1)
            await site.start(2, 3, 4)
            await site.shell.run(
                "fairlead topic create orders -p 1 -r 3 && seq 1000 | fairlead produce orders"
            )
            await site.shell.run("fairlead partition reassign orders 0 --to 1,2,3")
            await site.settled(["1", "2", "3"])
            yield site
        finally:
            for broker in site.brokers.values():
                await asyncio.to_thread(broker.kill)


async def test_a_partition_moves_and_brokers_change(site: Site) -> None:
    """A partition is moved and led by its preferred leader, and a broker is drained or restarted by permit."""
    health, brokers, topic, moves = await site.type("Check the state of the cluster")
    assert ["under", "min", "isr", "0"] in words(health)
    assert [line[3] for line in words(brokers)[1:]] == ["running"] * 4
    assert ["SETTING", "VALUE", "SOURCE"] in words(topic)
    assert len(words(moves)) == 1

    site.brokers[4].pause()
    _, moving, _ = await site.type("Move a partition")
    site.brokers[4].resume()
    assert words(moving)[1][:5] == ["orders", "0", "2,3,4", "4", "1"]
    await site.settled(["1", "2", "3"])
    limited, _ = await site.type("Move a partition", 1)
    assert ["follower.replication.throttled.rate", "20971520", "cluster"] in words(limited)
    again = blocks(SECTIONS["Move a partition"])[0].text.splitlines()[0]
    await site.shell.run(again)
    await site.settled(["2", "3", "4"])
    await site.shell.run(again)

    await site.stop(2)
    await site.start(2)
    await site.settled(["2", "3", "4"])
    away = (await site.replicas())[0]
    await site.type("Return leadership to the preferred leader")
    assert (away == "2", (await site.replicas())[0]) == (False, "2")

    await site.type("Take a broker out of service permanently")
    await site.shell.until("fairlead broker describe 3", "replicas\t0")
    await site.stop(3)
    await site.shell.until("fairlead broker list", "3\t-\t-\tgone")
    await site.type("Take a broker out of service permanently", 1)
    assert "3" not in [line[0] for line in words(await site.shell.run("fairlead broker list"))]

    await site.type("Restart brokers one after the other")
    refused, _, why = await site.shell.answer("fairlead broker request-restart 4")
    assert (refused, "restart_refused" in why) == (4, True)
    await site.stop(2)
    await site.start(2)
    await site.ready(2)
    assert await read(site) == 1000


@pytest.mark.scenario
async def test_lost_disks_and_a_restored_store(site: Site) -> None:
    """A lagging replica becomes leader on request, and brokers lose no record when etcd is restored from a backup."""
    await site.stop(1)
    await site.shell.run("seq 500 | fairlead produce orders")
    await site.lose(2, 3)
    await site.start(1)
    await site.shell.until("fairlead broker list", "3\t-\t-\tgone")
    await site.shell.until("fairlead cluster health || true", "without leader\t1")
    await site.type("When no in-sync replica is left")
    assert (await site.replicas())[0] == "1"
    assert await read(site) == 1000

    await site.start(2, 3)
    await site.settled(["1", "2", "3"])
    await site.etcd.etcdctl("snapshot", "save", str(site.shell.folder / "backup.db"))
    await site.stop(1)
    await site.shell.run("seq 200 | fairlead produce orders")
    await site.start(1)
    await site.settled(["1", "2", "3"])
    await site.stop(1, 2, 3, 4)
    [member] = site.etcd.members
    member.kill()
    shutil.rmtree(member.folder / "data")
    site.shell.instead = {"etcdutl": str(etcdutl()), "/var/lib/etcd": str(member.folder / "data")}
    await site.type("Restore the coordination store")
    member.start()
    await site.etcd.wait_until_ready()
    await site.start(1, 2, 3, 4)
    await site.settled(["1", "2", "3"])
    assert await read(site) == 1200


async def read(site: Site) -> int:
    """Count the records of the topic."""
    return len((await site.shell.run("fairlead consume orders --from-beginning -e")).split())
