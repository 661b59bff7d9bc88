"""10,000 topics and 1,000 groups on three brokers in a browser: lists, searches, orders, and both colour schemes."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from anyio.from_thread import start_blocking_portal
from playwright.sync_api import Browser, expect

from browser_kit import violations, watched
from console_kit import running_console
from fairlead import Admin, Producer, TopicPartition
from secured_processes import processes

TOPICS = 10_000
GROUPS = 1000
LAST_TOPIC, LAST_GROUP = f"t-{TOPICS - 1:05d}", f"g-{GROUPS - 1:04d}"
CALLS = 32
LISTED_SECONDS_MAX = 300

pytestmark = [pytest.mark.slow, pytest.mark.scenario, pytest.mark.etcd, pytest.mark.timeout(2400)]


async def load(bootstrap: str) -> None:
    """Create the topics and the groups; the last topic has records, and the last group lags behind."""
    slots = asyncio.Semaphore(CALLS)
    last = TopicPartition(LAST_TOPIC, 0)
    async with Admin(bootstrap) as admin, Producer(bootstrap) as producer:

        async def create(number: int) -> None:
            async with slots:
                await admin.create_topic(f"t-{number:05d}", partitions=1, replication_factor=1)

        async def commit(number: int) -> None:
            async with slots:
                await admin.commit_group_offsets(f"g-{number:04d}", {last: 70 if number < GROUPS - 1 else 0})

        await asyncio.gather(*(create(number) for number in range(TOPICS)))
        for number in range(70):
            await producer.send(last.topic, b"%d" % number)
        await producer.flush()
        await asyncio.gather(*(commit(number) for number in range(GROUPS)))


@pytest.fixture(scope="module")
def console(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Run the brokers and a console."""
    folder = tmp_path_factory.mktemp("many")
    with (
        start_blocking_portal() as portal,
        portal.wrap_async_context_manager(processes(folder, "http", "http")) as running,
    ):
        bootstrap = ",".join(running.bootstrap("http"))
        portal.call(load, bootstrap)
        with running_console(bootstrap) as address:
            yield address


def test_long_lists_are_searched_and_sorted(browser: Browser, console: str) -> None:
    """A list shows 100 of all entries; the search and the order take effect on all, and the last page is reachable."""
    context = browser.new_context(reduced_motion="reduce")
    page, wrong = watched(context)
    rows = page.get_by_role("rowheader")
    page.goto(f"{console}/topics")
    expect(page.locator("caption")).to_contain_text(f"{TOPICS:,} topics")
    expect(rows).to_have_count(100)
    assert violations(page) == []
    page.get_by_label("Search").fill(LAST_TOPIC[:-1])
    expect(rows).to_have_text([f"{LAST_TOPIC[:-1]}{digit}" for digit in range(10)])
    page.goto(f"{console}/topics?at={TOPICS // 100}")
    expect(rows.last).to_have_text(LAST_TOPIC)
    # Records are known once the first round of the console has ended.
    page.goto(f"{console}/topics?sort=records")
    expect(rows.first).to_have_text(LAST_TOPIC, timeout=LISTED_SECONDS_MAX * 1000)
    expect(page.locator("tbody tr").first.locator("[title='70']")).to_be_visible()
    page.goto(f"{console}/groups?sort=lag")
    expect(page.locator("caption")).to_contain_text(f"{GROUPS:,} groups")
    expect(rows.first).to_have_text(LAST_GROUP)
    assert violations(page) == []
    page.goto(console)
    expect(page.get_by_role("link", name=LAST_TOPIC)).to_be_visible()
    assert violations(page) == []
    context.close()

    assert wrong == []
