"""Examples from a documentation page, unchanged, and a shell to run them.

Tests of pages use this module. Commands are changed only in their addresses and folders, which are replaced by those of
the test.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from textwrap import dedent
from typing import IO, Final

import checkout
from waiting import COMMAND_SECONDS, pause
from warm_programs import search_path

FENCE: Final = re.compile(
    r"^(?P<indent> *)```(?P<language>\w*)(?: (?P<remark>[^\n]*))?\n(?P<text>.*?)^(?P=indent)```$",
    re.MULTILINE | re.DOTALL,
)
COMMAND_SECONDS_MAX: Final = 120.0
"""Timeout of a command in seconds, far above its usual duration, since a loaded machine is slow."""


@dataclass(frozen=True, slots=True)
class Block:
    """One fenced block of a page."""

    language: str
    text: str
    remark: str = ""


def blocks(text: str, *languages: str) -> list[Block]:
    """Return the fenced blocks of a page or of a part of a page: all blocks, or only the blocks in some languages."""
    found = [
        Block(each["language"], dedent(each["text"]), each["remark"] or "") for each in FENCE.finditer(text)
    ]
    return [block for block in found if not languages or block.language in languages]


def sections(page: str) -> dict[str, str]:
    """Return the text under each second-level heading of a page below `docs`."""
    parts = (checkout.ROOT / "docs" / page).read_text(encoding="utf-8").split("\n## ")[1:]
    return {heading: text for heading, _, text in (part.partition("\n") for part in parts)}


def words(text: str) -> list[list[str]]:
    """Return the words of a table, line by line."""
    return [line.split() for line in text.splitlines() if line.strip()]


@dataclass(slots=True)
class PageShell:
    """A shell for the commands of a page, with its own folder and `FAIRLEAD_...` variables."""

    folder: Path
    variables: dict[str, str] = field(default_factory=dict)
    instead: Mapping[str, str] = field(default_factory=dict)
    """Addresses and folders of the page, with their replacements."""

    async def run(self, command: str, code: int = 0) -> str:
        """Run a block, check that its exit code is `code`, and return its output."""
        ended, printed, complaints = await self.answer(command)
        assert ended == code, f"{command}\n{ended}\n{printed}\n{complaints}"
        return printed

    async def answer(self, command: str) -> tuple[int, str, str]:
        """Run a block that may fail; return its exit code, stdout and stderr."""
        with tempfile.TemporaryFile() as said:
            async with self.running(command, said) as shell, asyncio.timeout(COMMAND_SECONDS_MAX):
                printed, _ = await shell.communicate()
                assert shell.returncode is not None, "the shell has ended"
                said.seek(0)
                return shell.returncode, printed.decode(), said.read().decode()

    async def until(self, command: str, shown: str) -> str:
        """Repeat a command until its output contains `shown`; return this output."""
        answer: tuple[int, str, str] | None = None
        try:
            async with asyncio.timeout(COMMAND_SECONDS_MAX):
                while shown not in (answer := await self.answer(command))[1]:
                    await pause(COMMAND_SECONDS)
        except TimeoutError:
            message = f"{command} does not show {shown!r}: {answer}"
            raise AssertionError(message) from None
        return answer[1]

    @asynccontextmanager
    async def running(
        self, command: str, said: IO[bytes] | int = subprocess.DEVNULL
    ) -> AsyncIterator[asyncio.subprocess.Process]:
        """Start a block of commands with stderr in a file; at the end, kill its remaining processes."""
        for theirs, ours in self.instead.items():
            command = command.replace(theirs, ours)
        kept = {name: value for name, value in os.environ.items() if not name.startswith("FAIRLEAD_")}
        shell = await asyncio.create_subprocess_exec(
            "bash", "-euo", "pipefail", "-c", command,
            cwd=self.folder, env={**kept, "COLUMNS": "200", **self.variables, "PATH": search_path()},
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=said, start_new_session=True,
        )  # fmt: skip
        try:
            yield shell
        finally:
            with suppress(ProcessLookupError):
                os.killpg(shell.pid, signal.SIGKILL)
            await shell.communicate()
