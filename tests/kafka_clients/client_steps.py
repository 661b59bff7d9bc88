"""Clients of Kafka's protocol as sequences of steps, which `kafka_clients.py` runs against brokers.

A client is a function that runs the steps one after another and yields the description of each step that passed. A
client raises `ClientFailed` with the message of the program that failed, or `ClientMissing` if a program is not
available on this machine.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

SECONDS_MAX: Final = 180.0
"""Time limit of one program."""
MESSAGE_CHARACTERS_MAX: Final = 400


class ClientFailed(Exception):
    """Raised when a program of a client fails; the message is the end of the program's output."""


class ClientMissing(Exception):
    """Raised when a client cannot run on this machine; the message names the missing program."""


@dataclass(frozen=True, slots=True)
class Target:
    """Arguments of a client's steps."""

    bootstrap: str
    topic: str
    """Name of a new topic with several partitions, which only this client uses."""
    group: str
    """Name of a new group, which only this client uses."""
    count: int
    """Number of records to produce with each codec."""


Steps = Callable[[Target], Iterator[str]]


@dataclass(frozen=True, slots=True)
class Client:
    """A client in one version, and the steps that it runs."""

    name: str
    version: str
    steps: Steps


def program_steps(
    command: list[str], folder: Path | None = None, environment: Mapping[str, str] | None = None
) -> Steps:
    """Return the steps of a program that takes the target as arguments and prints one line for each step."""

    def steps(target: Target) -> Iterator[str]:
        arguments = [target.bootstrap, target.topic, target.group, str(target.count)]
        done = finished([*command, *arguments], folder=folder, environment=environment)
        yield from done.stdout.splitlines()
        check(done)

    return steps


def finished(
    command: list[str],
    *,
    text: str = "",
    folder: Path | None = None,
    environment: Mapping[str, str] | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run a program to its end with the given standard input. Raise `ClientFailed` if it takes too long."""
    try:
        return subprocess.run(
            command,
            input=text,
            cwd=folder,
            env={**os.environ, **(environment or {})},
            capture_output=True,
            text=True,
            timeout=SECONDS_MAX,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        message = f"no end within {SECONDS_MAX:.0f} s: {_end_of(str(error.stderr or ''))}"
        raise ClientFailed(message) from error


def check(done: subprocess.CompletedProcess[str]) -> None:
    """Raise `ClientFailed` if a program has ended with an error."""
    if done.returncode:
        raise ClientFailed(_end_of(done.stderr or done.stdout) or f"exit code {done.returncode}")


def _end_of(output: str) -> str:
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    return " ".join(lines)[-MESSAGE_CHARACTERS_MAX:]
