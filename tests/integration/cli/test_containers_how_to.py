"""The how-to guide on containers, run without a container: its variables and arguments start a broker for clients."""

from __future__ import annotations

import asyncio
import shlex
from itertools import pairwise
from typing import TYPE_CHECKING

from etcd_cluster import free_ports
from page_kit import PageShell, blocks, sections

if TYPE_CHECKING:
    from pathlib import Path

RUN, LOOK = (
    shlex.split(block.text) for block in blocks(sections("how-to/containers.md")["One broker"], "console")
)
IMAGE = "localhost/fairlead:dev"


async def test_the_broker_of_the_page(tmp_path: Path) -> None:
    """A broker with the settings of the page listens on the published ports and advertises the page's address."""
    asked = dict(value.split("=", 1) for option, value in pairwise(RUN) if option == "--env")
    [volume] = [value.partition(":")[2] for option, value in pairwise(RUN) if option == "--volume"]
    ports = free_ports()
    data, ops = str(next(ports)), str(next(ports))
    variables = {name: value.replace("9520", data).replace("9522", ops) for name, value in asked.items()}
    variables["FAIRLEAD_DATA"] = f"{tmp_path}{volume}"
    (tmp_path / volume.lstrip("/")).mkdir(parents=True)
    # A container has its own network, where the default port is free.
    variables["FAIRLEAD_PEER_LISTEN"] = "127.0.0.1:0"
    client = PageShell(tmp_path, {"FAIRLEAD_BOOTSTRAP": f"http://127.0.0.1:{data}"})
    command = shlex.join(["fairlead", *RUN[RUN.index(IMAGE) + 1 :]])
    async with PageShell(tmp_path, variables).running(command) as broker, asyncio.timeout(60):
        assert broker.stdout is not None, "a pipe"
        await broker.stdout.readline()
        topics = await client.run(shlex.join(["fairlead", *LOOK[LOOK.index(IMAGE) + 1 :]]))
        told = await client.run("fairlead broker list")
        ready = await client.run(f"curl -sf http://127.0.0.1:{ops}/readyz")

    assert asked["FAIRLEAD_SECURITY"] == "open"
    assert topics.startswith("TOPIC")
    assert f"http://127.0.0.1:{data}" in told
    assert ready
    assert (tmp_path / volume.lstrip("/") / ".fairlead").is_dir()
