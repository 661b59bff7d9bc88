"""Broker and shell environment for the tests of the command line, started as a user starts them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator

import pytest

from broker_process import BYTECODE
from command_line_kit import CommandLine
from warm_programs import search_path


@pytest.fixture(scope="session")
def shell_environment() -> dict[str, str]:
    """Return the environment of a user with an active virtual environment."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("FAIRLEAD_")}
    # Installed programs have compiled bytecode.
    kept.pop("PYTHONDONTWRITEBYTECODE", None)
    kept["PYTHONPYCACHEPREFIX"] = str(BYTECODE)
    return {**kept, "PATH": search_path(), "COLUMNS": "200"}


@pytest.fixture(scope="session")
def _dev_listeners(shell_environment: dict[str, str]) -> Iterator[dict[str, str]]:
    command = ["fairlead", "dev", "up", "--listen", "127.0.0.1:0", "--output", "json"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, env=shell_environment)
    try:
        assert process.stdout is not None
        ready = process.stdout.readline()
        assert ready, "the broker ended before it was ready"
        yield json.loads(ready)["brokers"][0]
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
        process.stdout.close()


@pytest.fixture
def dev_broker(_dev_listeners: dict[str, str], shell_environment: dict[str, str]) -> str:
    """Yield the address of the data listener, which the command line finds in FAIRLEAD_BOOTSTRAP."""
    shell_environment["FAIRLEAD_BOOTSTRAP"] = _dev_listeners["data"]
    return _dev_listeners["data"]


@pytest.fixture
def dev_ops(_dev_listeners: dict[str, str]) -> str:
    """Return the address of the same broker's ops listener."""
    return _dev_listeners["ops"]


@pytest.fixture
def fairlead(dev_broker: str, shell_environment: dict[str, str]) -> CommandLine:
    """Return the command line with the test's broker as its default."""
    assert shell_environment["FAIRLEAD_BOOTSTRAP"] == dev_broker
    return CommandLine(shell_environment)
