"""Memory of the console while ten tabs are open: as many refreshes as in an hour, in a shorter time."""

from __future__ import annotations

import argparse
import asyncio
import http.client
import threading
import time
from pathlib import Path

from console_parts.consoles import Console, group, load, running_console, topic
from pairing import Outcome

from fairlead.blocking import Producer
from fairlead.testing import running_cluster

BROKERS = 3
REFRESHES = 360
"""Number of refreshes of a tab in an hour: a page refreshes itself every ten seconds."""
BUSY_TOPICS = 100
"""Number of topics that get a record in each refresh, so that the console keeps the history of their rates."""
TABS = (
    "/",
    "/topics",
    "/topics?sort=size",
    f"/topics/{topic(0)}",
    f"/topics/{topic(0)}/messages",
    f"/topics/{topic(1)}/messages?q=v",
    "/groups",
    f"/groups/{group(0)}",
    "/brokers",
)
TAIL = f"/topics/{topic(0)}/tail/events"
"""Stream of the tenth tab, a live tail."""
MEMORY_MIB_MAX = 150


def memory(options: argparse.Namespace, _: Path) -> dict[str, object]:
    """Refresh ten tabs as often as in an hour, and measure the memory of the console."""
    with running_cluster(brokers=BROKERS) as bootstrap:
        asyncio.run(load(bootstrap, options.topics, options.groups))
        with running_console(bootstrap) as console:
            start = console.memory_mib()
            with Producer(bootstrap) as producer:
                refused = _open_tabs(console, producer, options.tab_seconds)
            end, peak = console.memory_mib(), console.memory_mib("VmHWM")
    requests = REFRESHES * len(TABS)
    outcome = Outcome(
        f"memory of the console with ten open tabs, {options.topics:,} topics, {BROKERS} brokers: the {requests:,}"
        f" refreshes of an hour in {options.tab_seconds:.0f} s, and a live tail",
        f"{end:.0f} MiB resident, peak {peak:.0f} MiB, {start:.0f} MiB after the start",
        f"at most {MEMORY_MIB_MAX} MiB",
        peak <= MEMORY_MIB_MAX,
    )
    return {
        "outcomes": [outcome.document()],
        "resident_mib": end,
        "peak_mib": peak,
        "started_mib": start,
        "requests": requests,
        "refused_requests": refused,
    }


def _open_tabs(console: Console, producer: Producer, seconds: float) -> int:
    """Refresh each tab, and write to the busy topics between two refreshes; return the number of refused requests."""
    refused = [0] * len(TABS)
    ends, distance = threading.Event(), seconds / REFRESHES
    begun = time.monotonic()

    def tab(number: int) -> None:
        for refresh in range(REFRESHES):
            refused[number] += console.request(TABS[number])[1] != http.HTTPStatus.OK
            ends.wait(max(0.0, begun + (refresh + 1) * distance - time.monotonic()))

    def tail() -> None:
        connection = http.client.HTTPConnection(console.host, timeout=60)
        connection.request("GET", TAIL)
        answer = connection.getresponse()
        while not ends.is_set() and answer.readline():
            pass
        connection.close()

    def write() -> None:
        while not ends.is_set():
            for number in range(BUSY_TOPICS):
                producer.send(topic(number), b"v" * 100)
            producer.flush()
            ends.wait(distance)

    tabs = [threading.Thread(target=tab, args=(number,)) for number in range(len(TABS))]
    others = [threading.Thread(target=tail), threading.Thread(target=write)]
    for each in (*tabs, *others):
        each.start()
    for each in tabs:
        each.join()
    ends.set()
    for each in others:
        each.join()
    return sum(refused)
