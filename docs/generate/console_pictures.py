"""Draw the pictures of the console's pages, from a real cluster under load in Debian's Chromium.

    python docs/generate/console_pictures.py [--seconds 60] [--into DIRECTORY]

The program writes one PNG for each page. Tests do not compare the pictures, since the numbers differ in every run.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Final

from playwright.async_api import async_playwright

from fairlead import Admin, Producer, TopicPartition
from fairlead.testing import cluster
from fairlead_api.bodies.links import CreateLinkRequest, LinkSource, NamePatterns

ROOT: Final = Path(__file__).resolve().parents[2]
CHROMIUM: Final = "/usr/bin/chromium"
PAGES: Final = {
    "overview": "/",
    "topics": "/topics",
    "topic": "/topics/orders",
    "messages": "/topics/orders/messages?q=%24.status+%3D%3D+%22paid%22&match=path",
    "group": "/groups/billing",
    "brokers": "/brokers",
    "links": "/links",
    "link": "/links/east",
}
DARK: Final = ("messages",)
TOPICS: Final = ("orders", "payments", "parcels", "customers", "returns")


async def load(bootstrap: str, seconds: float) -> None:
    """Write records for a time, and let a group lag behind."""
    async with Admin(bootstrap) as admin, Producer(bootstrap) as producer:
        for name in TOPICS:
            compacted = {"cleanup.policy": "compact"} if name == "customers" else {}
            await admin.create_topic(name, partitions=6, replication_factor=3, config=compacted)
        for step in range(int(seconds * 5)):
            for place, name in enumerate(TOPICS):
                for number in range(40 // (place + 1) + step % 7):
                    document = {
                        "id": step * 100 + number,
                        "status": "paid" if number % 3 else "open",
                        "total": 4.5,
                    }
                    await producer.send(name, json.dumps(document).encode(), b"customer-%d" % (number % 17))
            if step % 50 == 0:
                await producer.flush()
                for group, topic, share in (("billing", "orders", 0.9), ("shipping", "parcels", 1.0)):
                    places = {TopicPartition(topic, each): "latest" for each in range(6)}
                    ends = await admin.offsets_for(places)
                    offsets = {each: int(end.offset * share) for each, end in ends.items() if end is not None}
                    await admin.commit_group_offsets(group, offsets)
            await asyncio.sleep(0.2)


async def mirror(bootstrap: str, source: str) -> None:
    """Mirror two topics of another cluster."""
    async with Admin(source) as admin, Producer(source) as producer:
        for name in ("flights", "trips"):
            await admin.create_topic(name, partitions=3)
            for number in range(1000):
                await producer.send(name, b"%d" % number, b"%d" % (number % 17))
    async with Admin(bootstrap) as admin:
        await admin.create_link(
            CreateLinkRequest(
                name="east",
                source=LinkSource(bootstrap=[source]),
                topics=NamePatterns(include=["flights", "trips"]),
                prefix="east-",
            )
        )


async def draw(address: str, folder: Path) -> None:
    """Write the picture of each page."""
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        for name, path in PAGES.items():
            page = await browser.new_page(
                viewport={"width": 1280, "height": 800}, color_scheme="dark" if name in DARK else "light"
            )
            await page.goto(address + path)
            await page.wait_for_load_state("networkidle")
            await page.screenshot(path=folder / f"{name}.png")
            await page.close()
        await browser.close()


async def pictures(seconds: float, folder: Path) -> None:
    """Run a cluster and a console, and draw the pages."""
    async with cluster(brokers=3) as bootstrap, cluster() as source:
        fairlead = str(Path(sys.executable).with_name("fairlead"))
        command = [
            fairlead,
            "console",
            "--bootstrap",
            bootstrap,
            "--listen",
            "127.0.0.1:0",
            "--output",
            "json",
        ]
        process = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE)
        try:
            assert process.stdout is not None, "the output is a pipe"
            ready = json.loads(await process.stdout.readline())
            await mirror(bootstrap, source)
            await load(bootstrap, seconds)
            await draw(ready["console"].rstrip("/"), folder)
        finally:
            process.terminate()
            await process.wait()


def main() -> None:
    """Draw the pages."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--into", type=Path, default=ROOT / "docs" / "how-to" / "console")
    given = parser.parse_args()
    given.into.mkdir(parents=True, exist_ok=True)
    asyncio.run(pictures(given.seconds, given.into))


if __name__ == "__main__":
    main()
