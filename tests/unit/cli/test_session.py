"""Exit codes of commands that Ctrl-C or SIGTERM interrupts."""

from __future__ import annotations

import asyncio
import signal
import sys
from asyncio.subprocess import PIPE

import pytest

NOT_DONE = b"error: interrupted before the command finished\n"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["ctrl-c", "sigterm"])
@pytest.mark.parametrize(
    ("command", "ended"),
    [
        (["topic", "create", "flights"], (1, NOT_DONE)),
        pytest.param(["cluster", "health"], (1, NOT_DONE), marks=pytest.mark.scenario),
        pytest.param(["top"], (0, b""), marks=pytest.mark.scenario),
        (["consume", "flights"], (0, b"")),
    ],
)
async def test_only_what_has_no_end_is_done_when_it_is_interrupted(
    command: list[str], ended: tuple[int, bytes], number: signal.Signals
) -> None:
    """An interrupted command exits with 0 only if it would otherwise run forever."""
    asked = asyncio.Event()

    async def never_answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Accept the call and never answer."""
        asked.set()
        await reader.read()
        writer.transport.abort()

    server = await asyncio.start_server(never_answer, "127.0.0.1", 0)
    async with server, asyncio.timeout(60):
        address = "http://{}:{}".format(*server.sockets[0].getsockname())
        program = [sys.executable, "-m", "fairlead.cli.main", *command, "--bootstrap", address]
        process = await asyncio.create_subprocess_exec(*program, stdout=PIPE, stderr=PIPE)
        await asked.wait()
        process.send_signal(number)
        _, errors = await process.communicate()

    assert (process.returncode, errors) == ended
