"""A live tail of a topic that receives 500,000 records a second: its effect on other producers and on the browser."""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

from console_parts.consoles import CHROMIUM, Console, running_console
from pairing import Outcome
from peers.brokers import HERE, FairleadPeer
from playwright.async_api import Page, async_playwright

from fairlead import Admin, TopicPartition

FLOODED, OTHER = "flooded", "other"
PARTITIONS = 6
RECORDS_A_SECOND = 500_000
BATCH_RECORDS = 5000
OTHER_RECORDS_A_SECOND = 200
TAIL_RECORDS_A_SECOND = 50
START_SECONDS = 10
"""Time in which the flood reaches its rate."""
FLOOD_SECONDS_MAX = 600
"""Time after which the flood would end by itself."""
TIMES_MAX = 1.10
DELAY_MS_MAX = 200
"""Delay of an input up to which browsers rate a page as responsive."""
TIMER_MS = 50
DELAYS = """
(milliseconds) => new Promise((resolve) => {
  const delays = [];
  const begun = performance.now();
  let due = begun + TIMER_MS;
  const step = () => {
    const now = performance.now();
    delays.push(now - due);
    due = now + TIMER_MS;
    if (now - begun < milliseconds) setTimeout(step, TIMER_MS); else resolve(delays);
  };
  setTimeout(step, TIMER_MS);
})
""".replace("TIMER_MS", str(TIMER_MS))
"""Function in the page that measures how late its timers are, as inputs would be."""


def tail(options: argparse.Namespace, folder: Path) -> dict[str, object]:
    """Measure another producer alternately without and with an open tail."""
    broker = FairleadPeer.start(folder)
    try:
        with running_console(broker.url) as console:
            figures = asyncio.run(_measured(broker.url, console, options))
    finally:
        broker.stop()
    ratios = [after / before for before, after in zip(figures["without"], figures["with"], strict=True)]
    times, delay = statistics.median(ratios), max(figures["delays_ms"])
    rate = figures["records_a_second"]
    case = f"live tail of a topic at {rate:,.0f} records a second: "
    outcomes = [
        Outcome(
            f"{case}p99 of another producer with and without the tail, {options.rounds} rounds",
            f"{statistics.median(figures['with']):.1f} ms, {statistics.median(figures['without']):.1f} ms:"
            f" {times:.2f}x ({min(ratios):.2f} to {max(ratios):.2f})",
            f"below {TIMES_MAX:g}x",
            times < TIMES_MAX and rate >= RECORDS_A_SECOND * 0.98,
        ),
        Outcome(
            f"{case}longest delay of a timer in the browser; time from a click on Pause to its effect",
            f"{delay:.0f} ms; {max(figures['pauses_ms']):.0f} ms",
            f"at most {DELAY_MS_MAX} ms",
            max(delay, *figures["pauses_ms"]) <= DELAY_MS_MAX,
        ),
    ]
    return {"outcomes": [each.document() for each in outcomes], "ratios": ratios, **figures}


async def _measured(url: str, console: Console, options: argparse.Namespace) -> dict[str, Any]:
    figures: dict[str, Any] = {"without": [], "with": [], "delays_ms": [], "pauses_ms": []}
    async with async_playwright() as playwright, Admin(url) as admin:
        for topic, partitions in ((FLOODED, PARTITIONS), (OTHER, 1)):
            await admin.create_topic(topic, partitions=partitions, config={"durability": "replicated"})
        browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = await browser.new_page()
        flood = await _started(
            url, "steady", FLOODED, FLOOD_SECONDS_MAX, rate=RECORDS_A_SECOND, partitions=PARTITIONS
        )
        try:
            await asyncio.sleep(START_SECONDS)
            begun, before = time.monotonic(), await _written(admin)
            for _ in range(options.rounds):
                await page.goto("about:blank")
                figures["without"].append(await _p99(url, options.tail_seconds))
                await page.goto(f"http://{console.host}/topics/{FLOODED}/tail?rate={TAIL_RECORDS_A_SECOND}")
                await page.locator("#rows tr").first.wait_for()
                delays, p99 = await asyncio.gather(
                    page.evaluate(DELAYS, options.tail_seconds * 1000), _p99(url, options.tail_seconds)
                )
                figures["with"].append(p99)
                figures["delays_ms"].append(max(delays))
                figures["pauses_ms"].append(await _pause(page))
            written = await _written(admin) - before
            figures["records_a_second"] = written / (time.monotonic() - begun)
        finally:
            flood.kill()
            await flood.wait()
        await browser.close()
    return figures


async def _written(admin: Admin) -> int:
    """Return the number of records in the flooded topic."""
    places = {TopicPartition(FLOODED, number): "latest" for number in range(PARTITIONS)}
    return sum(end.offset for end in (await admin.offsets_for(places)).values() if end is not None)


async def _p99(url: str, seconds: float) -> float:
    """Return the 99th percentile of the latencies of the other producer, in milliseconds."""
    process = await _started(url, "pace", OTHER, seconds, rate=OTHER_RECORDS_A_SECOND)
    output, _ = await process.communicate()
    return float(json.loads(output)["p99_ms"])


async def _pause(page: Page) -> float:
    """Return the milliseconds between a click on the button and the paused state."""
    button = page.get_by_role("button", name="Pause")
    await button.hover()
    begun = time.perf_counter()
    await page.mouse.down()
    await page.mouse.up()
    await page.get_by_role("button", name="Resume").wait_for()
    return (time.perf_counter() - begun) * 1000


async def _started(
    url: str, kind: str, topic: str, seconds: float, *, rate: int, partitions: int = 1
) -> asyncio.subprocess.Process:
    """Start a kind of work of `latency_workload.py`."""
    command = [sys.executable, str(HERE / "workloads" / "latency_workload.py"), kind, "--url", url]
    command += ["--topic", topic, "--seconds", str(seconds), "--rate", str(rate)]
    command += ["--partitions", str(partitions), "--batch-records", str(BATCH_RECORDS)]
    return await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
