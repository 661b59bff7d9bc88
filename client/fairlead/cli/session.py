"""Runs the coroutine of a command, prints the command's error and selects the exit code.

`run` runs every command that calls a broker. Exit codes: 0 ok, 1 failed, 2 usage, 3 not found, 4 refused by the
cluster, 5 unreachable.
"""

from __future__ import annotations

import asyncio
import signal
import sys
import threading
from collections.abc import Coroutine
from contextlib import suppress
from enum import IntEnum
from typing import Any, NoReturn, TypeVar

import typer

from fairlead.errors import ClusterError, FairleadError, SettingError, UnreachableError


class UsageError(ValueError):
    """An argument is invalid: the message describes the error, and the command exits with the code for usage errors."""


Answer = TypeVar("Answer")
# The retry timeout is short, because a person waits for the report of an unreachable cluster.
RETRY_TIMEOUT = "5s"
# Timeout of requests that every broker answers from its own state; the client waits for the answer five seconds longer
# than this timeout. Requests that involve another broker, or change state, keep the SDK's 30 s, because their refusal
# may take that long.
ASK_TIMEOUT = "4s"


class ExitCode(IntEnum):
    """Exit codes of the commands."""

    OK = 0
    FAILED = 1
    USAGE = 2
    NOT_FOUND = 3
    REFUSED = 4
    UNREACHABLE = 5


class _StoppedError(Exception):
    """The process received SIGTERM."""


def run(work: Coroutine[Any, Any, Answer], *, is_endless: bool = False) -> Answer:
    """Run `work` to completion; print an error on stderr and exit with the error's code.

    With `is_endless`, a command ends normally with Ctrl-C or SIGTERM. The effect of any other interrupted command is
    unknown, and a script must not treat the command as successful.
    """
    try:
        return asyncio.run(_until_stopped(work))
    except* FairleadError as group:
        errors = _leaves(group)
        for error in errors[:3]:
            typer.echo(f"error: {error}", err=True)
        if len(errors) > 3:
            typer.echo(f"error: and {len(errors) - 3} similar errors", err=True)
        code = _exit_code(errors[0])
    except* UsageError as group:
        fail_usage(str(_leaves(group)[0]))
    except* (KeyboardInterrupt, _StoppedError):
        code = ExitCode.OK if is_endless else ExitCode.FAILED
        if not is_endless:
            typer.echo("error: interrupted before the command finished", err=True)
    raise typer.Exit(code)


async def _until_stopped(work: Coroutine[Any, Any, Answer]) -> Answer:
    """Handle SIGTERM, which Kubernetes sends to stop a pod, like Ctrl-C: the member of a group commits and leaves.

    Only the first SIGTERM is handled; a second SIGTERM ends the process.
    """
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None, "the coroutine runs in a task"
    stopped = False

    def stop() -> None:
        nonlocal stopped
        stopped = True
        loop.remove_signal_handler(signal.SIGTERM)
        task.cancel()

    # Signals are handled only in the main thread, and event loops on Windows do not support signals.
    with suppress(NotImplementedError):
        if threading.current_thread() is threading.main_thread():
            loop.add_signal_handler(signal.SIGTERM, stop)
    try:
        return await work
    except asyncio.CancelledError:
        if stopped:
            raise _StoppedError from None
        raise


def fail_usage(message: str) -> NoReturn:
    """Print the error found in the command line and exit with the code for usage errors."""
    typer.echo(f"error: {message}", err=True)
    raise typer.Exit(ExitCode.USAGE)


def is_terminal() -> bool:
    """Return whether standard error is a terminal: only then are progress bars and questions shown."""
    return sys.stderr.isatty()


def _leaves(group: BaseExceptionGroup[Any]) -> list[BaseException]:
    found: list[BaseException] = []
    for error in group.exceptions:
        found += _leaves(error) if isinstance(error, BaseExceptionGroup) else [error]
    return found


def _exit_code(error: BaseException) -> ExitCode:
    match error:
        case UnreachableError():
            return ExitCode.UNREACHABLE
        case ClusterError(status=404):
            return ExitCode.NOT_FOUND
        case ClusterError():
            return ExitCode.REFUSED
        case SettingError():
            return ExitCode.USAGE
        case _:
            return ExitCode.FAILED
