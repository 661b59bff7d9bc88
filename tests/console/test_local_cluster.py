"""`fairlead dev up` starts a console alongside the brokers, and stops it with them."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import socket
from contextlib import suppress
from urllib.parse import urlsplit

import pytest

from console_kit import STOP_SECONDS, ask
from waiting import until
from warm_programs import start

EMPTY = re.compile(r'<div class="empty">.*?</div>', re.DOTALL)
EMPTY_PAGES = {"/": 2, "/topics": 1, "/groups": 1, "/brokers": 1, "/links": 1, "/kafka": 1, "/transactions": 1,
               "/security": 3}  # fmt: skip
"""Pages of a cluster without topics, and the number of their parts that have nothing to show."""


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_local_cluster_has_a_console(number: signal.Signals) -> None:
    """The console names the next commands of an empty cluster, and ends with the brokers, even if they are killed."""
    process = start("dev", "up", "--listen", "127.0.0.1:0", "--console", "--output", "json")
    try:
        assert process.stdout is not None, "the output is a pipe"
        announced = json.loads(process.stdout.readline())
        pages = {path: ask(announced["console"], path) for path in EMPTY_PAGES}
    finally:
        process.send_signal(number)
        process.wait(STOP_SECONDS)
        if process.stdout is not None:
            process.stdout.close()

    assert {path: status for path, (status, _, _) in pages.items()} == dict.fromkeys(EMPTY_PAGES, 200)
    assert urlsplit(announced["brokers"][0]["data"]).netloc in pages["/"][2].decode()
    empty = {path: EMPTY.findall(body.decode()) for path, (_, _, body) in pages.items()}
    assert {path: len(states) for path, states in empty.items()} == EMPTY_PAGES
    assert [each for states in empty.values() for each in states if 'data-copy="fairlead ' not in each] == []
    asyncio.run(until(lambda: not answers(announced["console"])))


@pytest.mark.slow
@pytest.mark.parametrize(("options", "shown"), [((), 1), (("--no-console",), 0)])
def test_the_address_of_a_console_is_printed(options: tuple[str, ...], shown: int) -> None:
    """Without options, the command starts a console and prints its address; `--no-console` leaves the console out."""
    process = start("dev", "up", "--listen", "127.0.0.1:0", *options)
    try:
        assert process.stdout is not None, "the output is a pipe"
        lines = [process.stdout.readline().decode()]
        if shown:
            lines.append(process.stdout.readline().decode())
        process.send_signal(signal.SIGTERM)
        lines += process.stdout.read().decode().splitlines()
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(STOP_SECONDS)
        if process.stdout is not None:
            process.stdout.close()

    assert lines[0].startswith("fairlead is ready")
    assert len([each for each in lines if re.match(r"console: http://\S+/", each)]) == shown


def answers(address: str) -> bool:
    """Return whether a program listens at an address."""
    place = urlsplit(address)
    with suppress(OSError), socket.create_connection((place.hostname or "", place.port or 0), timeout=1):
        return True
    return False
