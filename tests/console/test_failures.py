"""A console whose brokers are killed while it runs."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from console_kit import ask, posted, running_console
from fairlead import Admin
from secured_processes import processes
from waiting import COMMAND_SECONDS, pause

LEASE_SECONDS = 3
SHOWN_SECONDS_MAX = 90
PAGES = ["/", "/topics", "/topics/orders", "/topics/orders/messages", "/groups", "/brokers", "/brokers/0"]


@pytest.mark.slow
@pytest.mark.etcd
async def test_a_broker_is_killed_underneath(tmp_path: Path) -> None:
    """Pages and changes survive the loss of a broker, which the overview names; a loss of all brokers is shown too."""
    async with processes(tmp_path, "http", "http", lease_seconds=str(LEASE_SECONDS)) as cluster:
        bootstrap = ",".join(cluster.bootstrap("http"))
        async with Admin(bootstrap) as admin:
            await admin.create_topic("orders", partitions=6, replication_factor=3)
        with running_console(bootstrap) as console:

            async def status_of(path: str) -> int:
                return (await asyncio.to_thread(ask, console, path))[0]

            async def overview() -> str:
                return (await asyncio.to_thread(ask, console, "/"))[2].decode()

            async def until_shown(text: str) -> None:
                async with asyncio.timeout(SHOWN_SECONDS_MAX):
                    while text not in await overview():
                        await pause(COMMAND_SECONDS)

            await until_shown('class="verdict good"')
            await asyncio.to_thread(cluster.nodes[0].process.kill)
            await until_shown("Broker 0 does not run")
            found = {path: await status_of(path) for path in PAGES}
            produced = await asyncio.to_thread(posted, console, "/topics/orders/produce", {"value": "v"})
            for node in cluster.nodes[1:]:
                await asyncio.to_thread(node.process.kill)
            await until_shown("The cluster does not answer")
            left = {path: await status_of(path) for path in PAGES}

    assert found == dict.fromkeys(PAGES, 200)
    assert produced[0] == 303
    assert left["/topics"] == 200
    assert left["/topics/orders/messages"] == 503
