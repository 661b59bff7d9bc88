"""Server time of the console's pages, the size of its scripts and styles, and the first paint of long lists."""

from __future__ import annotations

import argparse
import asyncio
import statistics
from pathlib import Path

from console_parts.consoles import CHROMIUM, Console, group, load, running_console, topic
from pairing import Outcome
from peers.brokers import FairleadPeer
from playwright.sync_api import Browser, sync_playwright

from fairlead.testing import running_cluster
from fairlead_console.assets import Assets

BROKERS = 3
PAGES = (
    "/",
    "/topics",
    "/topics?sort=size",
    "/topics?q=99",
    f"/topics/{topic(0)}",
    f"/topics/{topic(0)}/change",
    f"/topics/{topic(0)}/cleaning",
    f"/topics/{topic(0)}/producers",
    f"/topics/{topic(0)}/voters",
    f"/topics/{topic(0)}/messages",
    f"/topics/{topic(0)}/messages?q=v",
    f"/topics/{topic(0)}/messages/0/0",
    f"/topics/{topic(0)}/tail",
    f"/topics/{topic(0)}/produce",
    "/create-topic",
    "/groups",
    f"/groups/{group(0)}",
    f"/groups/{group(0)}/reset?to=latest",
    "/brokers",
    "/brokers/0",
    "/links",
    "/create-link",
    "/kafka",
    "/transactions",
    "/security",
    "/problems/no_leader",
    "/sign-in",
)
"""Every page of the console."""
REQUESTS = 40
P95_SECONDS_MAX = 0.150
COMPRESSED_BYTES_MAX = 150_000
PAINT_SECONDS_MAX = 1.0
PAINTS = 10
ROUND_SECONDS_MAX = 300
FIRST_PAINT = "performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? null"


def pages(options: argparse.Namespace, _: Path) -> dict[str, object]:
    """Request each page repeatedly, in a cluster with 1,000 topics and three brokers."""
    with running_cluster(brokers=BROKERS) as bootstrap:
        asyncio.run(load(bootstrap, options.topics, options.groups))
        with running_console(bootstrap) as console:
            milliseconds = {path: _p95(console, path) * 1000 for path in PAGES}
    slowest = max(milliseconds, key=lambda path: milliseconds[path])
    size = Assets().compressed_bytes
    outcomes = [
        Outcome(
            f"server time of every page, {options.topics:,} topics, {BROKERS} brokers",
            f"p95 {min(milliseconds.values()):.0f} to {milliseconds[slowest]:.0f} ms, slowest `{slowest}`",
            f"p95 at most {P95_SECONDS_MAX * 1000:.0f} ms",
            milliseconds[slowest] <= P95_SECONDS_MAX * 1000,
        ),
        Outcome(
            "all scripts and styles, compressed",
            f"{size / 1000:.0f} KB",
            f"at most {COMPRESSED_BYTES_MAX / 1000:.0f} KB",
            size <= COMPRESSED_BYTES_MAX,
        ),
    ]
    return {"outcomes": [each.document() for each in outcomes], "p95_milliseconds": milliseconds}


def _p95(console: Console, path: str) -> float:
    console.seconds_of(path)
    times = sorted(console.seconds_of(path) for _ in range(REQUESTS))
    return times[int(0.95 * REQUESTS)]


def paint(options: argparse.Namespace, folder: Path) -> dict[str, object]:
    """Open the lists of 10,000 topics and 1,000 groups in Chromium, at first immediately after the console's start."""
    # Every further broker would make the load of the topics longer, which takes minutes.
    broker = FairleadPeer.start(folder)
    try:
        asyncio.run(load(broker.url, options.many_topics, options.many_groups, replicas=1))
        with sync_playwright() as playwright, running_console(broker.url) as console:
            browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
            first, later = _paints(browser, console)
            browser.close()
    finally:
        broker.stop()
    case = f"first paint in Chromium, {options.many_topics:,} topics and {options.many_groups:,} groups: "
    target = f"at most {PAINT_SECONDS_MAX:g} s"
    outcomes = [
        Outcome(
            f"{case}`/topics`, immediately after the console's start",
            f"{first:.2f} s",
            target,
            first <= PAINT_SECONDS_MAX,
        )
    ]
    outcomes += [
        Outcome(
            f"{case}`{path}`, {PAINTS} times",
            f"{statistics.median(seconds):.2f} s, longest {max(seconds):.2f} s",
            target,
            max(seconds) <= PAINT_SECONDS_MAX,
        )
        for path, seconds in later.items()
    ]
    return {"outcomes": [each.document() for each in outcomes], "first_seconds": first, "seconds": later}


def _paints(browser: Browser, console: Console) -> tuple[float, dict[str, list[float]]]:
    """Return the seconds of the console's first page, and those of each list when the console knows all of it."""
    first = _first_paint(browser, console, "/topics")
    page = browser.new_page()
    # The groups are complete once the first round of the console has ended.
    for _ in range(ROUND_SECONDS_MAX):
        page.goto(f"http://{console.host}/groups")
        if page.get_by_role("link", name=group(0)).count():
            break
        page.wait_for_timeout(1000)
    page.close()
    paths = ("/topics", "/topics?sort=size", "/groups")
    return first, {path: [_first_paint(browser, console, path) for _ in range(PAINTS)] for path in paths}


def _first_paint(browser: Browser, console: Console, path: str) -> float:
    """Return the seconds from the start of the navigation to the first content, without anything in the cache."""
    context = browser.new_context()
    page = context.new_page()
    page.goto(f"http://{console.host}{path}")
    # The page's policy forbids the functions of `wait_for_function`.
    while (milliseconds := page.evaluate(FIRST_PAINT)) is None:
        page.wait_for_timeout(10)
    context.close()
    return float(milliseconds) / 1000
