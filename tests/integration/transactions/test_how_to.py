"""The how-to guide on transactions: its programs and commands run in order against one broker."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

import checkout
from broker_kit import Calls
from cluster_kit import Cluster
from page_kit import blocks
from warm_programs import search_path

PAGE = checkout.ROOT / "docs/how-to/transactions.md"
DEFAULT_ADDRESS = "http://127.0.0.1:9520"


async def run(command: str, address: str, folder: Path) -> str:
    """Return the output of a command."""
    shell = await asyncio.create_subprocess_exec(
        "bash", "-euo", "pipefail", "-c", command, cwd=folder,
        env={**os.environ, "PATH": search_path(), "FAIRLEAD_BOOTSTRAP": address},
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    async with asyncio.timeout(60):
        printed, complaints = await shell.communicate()
    assert shell.returncode == 0, f"{command}\n{printed.decode()}\n{complaints.decode()}"
    return printed.decode()


@pytest.mark.slow
async def test_every_example_of_the_page(tmp_path: Path) -> None:
    """Every program and command of the page runs as printed, and shows the committed records."""
    cluster = await Cluster.open(tmp_path)
    outputs = []
    try:
        await cluster.start(1)
        address = f"http://{cluster.brokers[1].addresses.data}"
        async with Calls(address) as api:
            for topic in ("orders", "ledger"):
                await api.create(topic)
        for number, block in enumerate(blocks(PAGE.read_text(encoding="utf-8"), "python", "sh")):
            text = block.text.replace(DEFAULT_ADDRESS, address)
            if block.language == "python":
                (tmp_path / f"{number}.py").write_text(text, encoding="utf-8")
                text = f"python {number}.py"
            outputs.append(await run(text, address, tmp_path))
    finally:
        await cluster.close()

    assert outputs[2].split() == ["b'paid'"]
    assert outputs[3].count('"value":"paid"') == 2
    assert '"offset":1' in outputs[4]
    assert [outputs[5].count(each) for each in ('"base_offset":', '"state":"committed"')] == [1, 1]
    assert outputs[6].count('"state":"committed"') == 2
    assert outputs[7].split() == ["paid", "paid"]
    assert "billing" in outputs[8]
    assert '"state":"committed"' in outputs[-1]
