"""The how-to guide on consumer groups: every command and every program of the page runs with the page's output."""

from __future__ import annotations

import ast
import asyncio
import contextlib
import inspect
import io
import json
import os
import re
from pathlib import Path

import pytest

from warm_programs import search_path

PAGE = Path(__file__).parents[4] / "docs/how-to/groups.md"
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
DEFAULT_ADDRESS = "http://127.0.0.1:9520"
TOPIC_ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
STARTS_A_BROKER = ("sh", "fairlead dev up\n")


@pytest.mark.slow
async def test_every_example_of_the_page(bootstrap: str, tmp_path: Path) -> None:
    """Every example of the page runs in order against one broker and prints the page's output.

    Topic ids differ between runs, and tables are compared word by word.
    """
    blocks = BLOCK.findall(PAGE.read_text(encoding="utf-8"))
    blocks.remove(STARTS_A_BROKER)
    names: dict[str, object] = {}
    printed, checked = "", 0
    for language, text in blocks:
        match language:
            case "sh":
                printed = await in_shell(text.replace(DEFAULT_ADDRESS, bootstrap), bootstrap)
            case "python":
                printed = await in_python(
                    text.replace(DEFAULT_ADDRESS, bootstrap), names, bootstrap, tmp_path
                )
            case "json":
                checked += 1
                assert json.loads(without_ids(printed)) == json.loads(without_ids(text))
            case _:
                checked += 1
                assert words(printed) == words(text)

    assert checked == 14


def without_ids(text: str) -> str:
    """Return the text with every topic id replaced by the same id."""
    return TOPIC_ID.sub("id", text)


def words(text: str) -> list[list[str]]:
    """Return the words of a table, line by line."""
    return [line.split() for line in text.splitlines() if line.strip()]


async def in_python(code: str, names: dict[str, object], bootstrap: str, folder: Path) -> str:
    """Run a block of Python as a whole program or, with `async with`, after the previous blocks; return its output."""
    if "async with" not in code:
        (folder / "board.py").write_text(code, encoding="utf-8")
        return await in_shell(f"python {folder}/board.py", bootstrap)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        running = eval(compile(code, str(PAGE), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT), names)
        if inspect.isawaitable(running):
            await running
    return printed.getvalue()


async def in_shell(command: str, bootstrap: str) -> str:
    """Return a command's output, with the test's broker as the default broker."""
    shell = await asyncio.create_subprocess_exec(
        "bash", "-euo", "pipefail", "-c", command,
        env={**os.environ, "PATH": search_path(), "FAIRLEAD_BOOTSTRAP": bootstrap},
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    async with asyncio.timeout(60):
        printed, complaints = await shell.communicate()
    assert shell.returncode == 0, f"{command}\n{printed.decode()}\n{complaints.decode()}"
    return printed.decode()
