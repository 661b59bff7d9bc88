"""The how-to guide on HTTP: every command of the page runs and prints the answer that the page shows."""

import asyncio
import json
import os
import re
from pathlib import Path

import pytest

from warm_programs import search_path

PAGE = Path(__file__).parents[4] / "docs" / "how-to" / "http.md"
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
VARYING = (
    re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}"),
    re.compile(r"\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}\.\d{6}Z"),
)
STARTS_A_BROKER = "fairlead dev up\n"
ALLOWS_ORIGINS = re.compile(r"FAIRLEAD_CORS_ORIGINS=(\S+) fairlead dev up\n")


@pytest.mark.slow
async def test_every_command_of_the_page(cluster, broker, tmp_path: Path) -> None:
    """Every command of the page succeeds in order against one broker and prints the page's output."""
    blocks = BLOCK.findall(PAGE.read_text(encoding="utf-8"))
    assert blocks[0] == ("sh", STARTS_A_BROKER)
    printed = ""
    checked = 0
    for language, text in blocks[1:]:
        if allowed := ALLOWS_ORIGINS.fullmatch(text):
            broker = await cluster.start("allowing", cors_origins=allowed[1])
        elif language == "sh":
            printed = await run(text, broker, tmp_path)
        elif language == "json":
            assert unvaried(json.loads(printed)) == unvaried(json.loads(text)), printed
            checked += 1
        else:
            assert printed == text
            checked += 1

    assert checked > 40


async def run(command: str, broker, folder: Path) -> str:
    """Return the output of a block, with the addresses of the test's broker in place of the default addresses."""
    command = command.replace("127.0.0.1:9520", broker.addresses.data)
    command = command.replace("127.0.0.1:9522", broker.addresses.ops)
    shell = await asyncio.create_subprocess_exec(
        "bash", "-euo", "pipefail", "-c", command,
        cwd=folder, env={**os.environ, "PATH": search_path()},
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    async with asyncio.timeout(30):
        printed, complaints = await shell.communicate()
    assert shell.returncode == 0, f"{command}\n{printed.decode()}\n{complaints.decode()}"
    return printed.decode().replace(broker.addresses.data, "127.0.0.1:9520")


def unvaried(value: object) -> object:
    """Return a JSON value without the values that differ between runs: ids and append times."""
    if isinstance(value, dict):
        return {name: unvaried(member) for name, member in value.items()}
    if isinstance(value, list):
        return [unvaried(member) for member in value]
    if isinstance(value, str):
        for varying in VARYING:
            if varying.fullmatch(value):
                return f"<{varying.pattern}>"
    return value
