"""`fairlead dev up` starts a console alongside the brokers, and stops it with them."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
from contextlib import suppress
from urllib.parse import urlsplit

import pytest

from console_kit import STOP_SECONDS, ask
from waiting import until
from warm_programs import start


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_local_cluster_has_a_console(number: signal.Signals) -> None:
    """The console shows the cluster, and ends with the brokers, even if they are killed."""
    process = start("dev", "up", "--listen", "127.0.0.1:0", "--console", "--output", "json")
    try:
        assert process.stdout is not None, "the output is a pipe"
        announced = json.loads(process.stdout.readline())
        status, _, body = ask(announced["console"], "/")
    finally:
        process.send_signal(number)
        process.wait(STOP_SECONDS)
        if process.stdout is not None:
            process.stdout.close()

    assert status == 200
    assert urlsplit(announced["brokers"][0]["data"]).netloc in body.decode()
    asyncio.run(until(lambda: not answers(announced["console"])))


def answers(address: str) -> bool:
    """Return whether a program listens at an address."""
    place = urlsplit(address)
    with suppress(OSError), socket.create_connection((place.hostname or "", place.port or 0), timeout=1):
        return True
    return False
