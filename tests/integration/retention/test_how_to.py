"""The how-to guide on retention: every command of the page runs and prints the page's output."""

from __future__ import annotations

import asyncio
import json
import os
import re
from pathlib import Path

import pytest

from warm_programs import search_path

PAGE = Path(__file__).parents[3] / "docs" / "how-to" / "retention.md"
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
STARTS_A_BROKER = ("sh", "fairlead dev up\n")


@pytest.mark.slow
async def test_every_command_of_the_page(api) -> None:
    """Every command of the page succeeds in order against one broker and prints the page's output."""
    blocks = BLOCK.findall(PAGE.read_text(encoding="utf-8"))
    assert blocks.pop(0) == STARTS_A_BROKER
    printed, checked = "", 0
    for language, text in blocks:
        if language == "sh":
            printed = await run(text, api)
            continue
        checked += 1
        if language == "json":
            assert json.loads(printed) == json.loads(text)
        else:
            assert lines(printed) == lines(text)

    assert checked == 6


def lines(text: str) -> list[str]:
    """Return the words of a table, line by line."""
    return [" ".join(line.split()) for line in text.splitlines() if line.strip("─ ")]


async def run(command: str, api) -> str:
    """Return the output of a block, with the address of the test's broker in place of the default address."""
    environment = {
        **os.environ,
        "PATH": search_path(),
        "FAIRLEAD_BOOTSTRAP": api.url,
        "COLUMNS": "120",
    }
    shell = await asyncio.create_subprocess_exec(
        "bash", "-euo", "pipefail", "-c", command.replace("http://127.0.0.1:9520", api.url),
        env=environment, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    async with asyncio.timeout(60):
        printed, complaints = await shell.communicate()
    assert shell.returncode == 0, f"{command}\n{printed.decode()}\n{complaints.decode()}"
    return printed.decode()
