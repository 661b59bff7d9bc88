"""The console for a local cluster: a process that `fairlead dev up` starts and stops.

The console is a separate process, because rendering large pages would block the event loop of the brokers. The process
ends when its standard input is closed, even if the brokers were killed.
"""

from __future__ import annotations

import asyncio
import json
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.util import find_spec
from typing import Final

PARTS: Final = ("authlib", "cryptography", "fairlead_console", "fastapi", "jinja2", "python_multipart")
"""Modules that the extra `console` installs."""
STOP_SECONDS: Final = 5.0


def is_installed() -> bool:
    """Return whether the extra `console` is installed."""
    return all(find_spec(each) is not None for each in PARTS)


@asynccontextmanager
async def running_console(bootstrap: str, listen: str) -> AsyncIterator[str | None]:
    """Run a console for brokers, and yield the address for browsers; None if the console cannot start.

    The console itself prints the reason on stderr.
    """
    command = (
        sys.executable,
        "-m",
        "fairlead.cli.main",
        "console",
        "--bootstrap",
        bootstrap,
        "--listen",
        listen,
    )
    process = await asyncio.create_subprocess_exec(
        *command, "--until-end-of-input", "--output", "json", stdin=PIPE, stdout=PIPE
    )
    try:
        yield await _address(process)
    finally:
        await _stop(process)


async def _address(process: Process) -> str | None:
    assert process.stdout is not None, "the output is a pipe"
    line = await process.stdout.readline()
    return str(json.loads(line)["console"]) if line else None


async def _stop(process: Process) -> None:
    assert process.stdin is not None, "the input is a pipe"
    process.stdin.close()
    try:
        async with asyncio.timeout(STOP_SECONDS):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()
