"""A live tail of a topic that receives 500,000 records a second: its effect on other producers and on the browser.

Another producer sends records during the whole measurement, and its latencies are compared between windows of time
without and with an open tail. Two windows of a pair follow each other, in an order that changes from pair to pair, so
that neither a trend nor a stall of the machine favours one kind of window. The broker, the producers and the console
have real-time priority, and Chromium has a low priority, since in a real cluster it would run on another machine.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

import numpy as np
from console_parts.consoles import CHROMIUM, Console, running_console
from pairing import Outcome
from peers.awake import awake_processors
from peers.brokers import HERE, FairleadPeer
from playwright.async_api import Page, async_playwright

from fairlead import Admin, TopicPartition

FLOODED, OTHER = "flooded", "other"
PARTITIONS = 6
RECORDS_A_SECOND = 500_000
BATCH_RECORDS = 5000
OTHER_RECORDS_A_SECOND = 200
TAIL_RECORDS_A_SECOND = 50
FLOODED_CONFIG = {
    "durability": "replicated",
    "segment.bytes": 16 << 20,
    "retention.bytes": 64 << 20,
}
"""The flood keeps 400 MB, so that segments are deleted before the system writes them to the disk, whose stalls would be
much longer than the effect of a tail."""
RETENTION_CHECK_MS = 1000
START_SECONDS = 10
"""Time in which the flood reaches its rate."""
SWITCH_SECONDS = 4
"""Time before each window in which the tail is opened or closed."""
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


Window: TypeAlias = tuple[float, float]
"""Begin and end of a window, as times of `time.perf_counter`."""


@dataclass(slots=True)
class Windows:
    """Windows of the measurement, and what was measured in the browser."""

    without: list[Window] = field(default_factory=list)
    opened: list[Window] = field(default_factory=list)
    """Windows with an open tail, one for each window without."""
    delays_ms: list[float] = field(default_factory=list)
    """Delays of timers in the page of the tail."""
    pauses_ms: list[float] = field(default_factory=list)
    """Times from a click on Pause to its effect."""
    records_a_second: float = 0.0


def tail(options: argparse.Namespace, folder: Path) -> dict[str, object]:
    """Compare the latencies of another producer between windows without and with an open tail."""
    browser = folder / "chromium"
    # A kernel that schedules sessions as groups applies a niceness only within a session; Chromium has its own.
    steps = ("echo 10 > /proc/self/autogroup", f'exec chrt --other 0 nice -n 10 {CHROMIUM} "$@"')
    browser.write_text("\n".join(("#!/bin/sh", *steps, "")), encoding="ascii")
    browser.chmod(0o700)
    with _real_time(), awake_processors():
        broker = FairleadPeer.start(folder)
        try:
            with running_console(broker.url) as console:
                windows, series = asyncio.run(_measured(broker.url, console, browser, options))
        finally:
            broker.stop()
    return _results(windows, series)


@contextmanager
def _real_time() -> Iterator[None]:
    """Give programs that are started in the block a higher priority than Chromium has.

    The kernel lets a running program finish its slice of milliseconds before a program that has become runnable, even
    if the priority of the former is low, and a request needs several such changes.
    """
    policy, priority = os.sched_getscheduler(0), os.sched_getparam(0)
    os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    try:
        yield
    finally:
        os.sched_setscheduler(0, policy, priority)


def _results(windows: Windows, series: dict[str, list[float]]) -> dict[str, object]:
    at, milliseconds = np.asarray(series["at"]), np.asarray(series["seconds"]) * 1000

    def percentile(window: Window, share: float) -> float:
        inside = (at >= window[0]) & (at < window[1])
        return float(np.percentile(milliseconds[inside], share))

    figures = {
        f"p{share}_{name}_ms": [percentile(window, share) for window in found]
        for share in (50, 99)
        for name, found in (("without", windows.without), ("with", windows.opened))
    }
    without, opened = (statistics.median(figures[f"p99_{name}_ms"]) for name in ("without", "with"))
    ratios = [
        after / before
        for before, after in zip(figures["p99_without_ms"], figures["p99_with_ms"], strict=True)
    ]
    times = statistics.median(ratios)
    delay, longest_pause = float(np.percentile(windows.delays_ms, 99)), max(windows.pauses_ms)
    rate = windows.records_a_second
    case = f"live tail of a topic at {rate:,.0f} records a second: "
    low, high = np.percentile(ratios, [25, 75])
    outcomes = [
        Outcome(
            f"{case}p99 of another producer without and with the tail, medians of {len(ratios)} pairs",
            f"{without:.1f} ms, {opened:.1f} ms: {times:.2f}x (half of the pairs {low:.2f} to {high:.2f})",
            f"below {TIMES_MAX:g}x",
            times < TIMES_MAX and rate >= RECORDS_A_SECOND * 0.98,
        ),
        Outcome(
            f"{case}delay of a timer in the browser, p99; longest time from a click on Pause to its effect",
            f"{delay:.0f} ms (longest {max(windows.delays_ms):.0f} ms); {longest_pause:.0f} ms",
            f"at most {DELAY_MS_MAX} ms",
            max(delay, longest_pause) <= DELAY_MS_MAX and rate >= RECORDS_A_SECOND * 0.98,
        ),
    ]
    return {
        "outcomes": [each.document() for each in outcomes],
        "ratios": ratios,
        "delay_max_ms": max(windows.delays_ms),
        "pauses_ms": windows.pauses_ms,
        "records_a_second": rate,
        **figures,
    }


async def _measured(
    url: str, console: Console, browser: Path, options: argparse.Namespace
) -> tuple[Windows, dict[str, list[float]]]:
    """Return the windows, and the time and the latency of each record of the other producer."""
    windows = Windows()
    distance = SWITCH_SECONDS + options.tail_seconds
    seconds = START_SECONDS + 2 * options.rounds * distance + SWITCH_SECONDS
    async with async_playwright() as playwright, Admin(url) as admin:
        await admin.alter_cluster_config({"log.retention.check.interval.ms": RETENTION_CHECK_MS})
        await admin.create_topic(FLOODED, partitions=PARTITIONS, config=FLOODED_CONFIG)
        await admin.create_topic(OTHER, partitions=1, config={"durability": "replicated"})
        chromium = await playwright.chromium.launch(executable_path=browser, args=["--no-sandbox"])
        page = await chromium.new_page()
        flood = await _started(url, "steady", FLOODED, seconds, rate=RECORDS_A_SECOND, partitions=PARTITIONS)
        other = await _started(url, "series", OTHER, seconds, rate=OTHER_RECORDS_A_SECOND)
        try:
            await asyncio.sleep(START_SECONDS)
            begun, before = time.perf_counter(), await _written(admin)
            for number in range(options.rounds):
                ends = begun + (2 * number + 1) * distance
                if number % 2:
                    opened = await _opened(page, console, ends, options.tail_seconds, windows)
                    without = await _closed(page, ends + distance, options.tail_seconds)
                else:
                    without = await _closed(page, ends, options.tail_seconds)
                    opened = await _opened(page, console, ends + distance, options.tail_seconds, windows)
                if opened is not None:
                    windows.without.append(without)
                    windows.opened.append(opened)
            windows.records_a_second = (await _written(admin) - before) / (time.perf_counter() - begun)
            output, _ = await other.communicate()
        finally:
            for each in (flood, other):
                if each.returncode is None:
                    each.kill()
                await each.wait()
        await chromium.close()
    return windows, json.loads(output)


async def _closed(page: Page, ends: float, seconds: float) -> Window:
    """Wait for the end of a window without a tail, and return the window."""
    await page.goto("about:blank")
    await asyncio.sleep(max(0.0, ends - time.perf_counter()))
    return ends - seconds, ends


async def _opened(
    page: Page, console: Console, ends: float, seconds: float, windows: Windows
) -> Window | None:
    """Open the tail, measure the page until the end of the window, and pause the tail.

    Returns the window; None if the tail was opened too late.
    """
    await page.goto(f"http://{console.host}/topics/{FLOODED}/tail?rate={TAIL_RECORDS_A_SECOND}")
    await page.locator("#rows tr").first.wait_for()
    begun = time.perf_counter()
    if begun > ends - seconds / 2:
        # A machine that does other work may need longer than the whole window.
        await asyncio.sleep(max(0.0, ends - begun))
        return None
    windows.delays_ms += await page.evaluate(DELAYS, (ends - begun) * 1000)
    windows.pauses_ms.append(await _pause(page))
    return max(begun, ends - seconds), ends


async def _written(admin: Admin) -> int:
    """Return the number of records that the flooded topic has received."""
    places = {TopicPartition(FLOODED, number): "latest" for number in range(PARTITIONS)}
    return sum(end.offset for end in (await admin.offsets_for(places)).values() if end is not None)


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
