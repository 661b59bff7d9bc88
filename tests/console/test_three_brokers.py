"""Three brokers in a browser: every page, a move of a partition, and a killed broker."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from anyio.from_thread import start_blocking_portal
from playwright.sync_api import Browser, Page, expect

from browser_kit import violations, watched
from console_kit import running_console
from fairlead import TopicPartition
from fairlead.blocking import Admin, Producer
from secured_processes import Processes, processes
from waiting import pause_blocking

LEASE_SECONDS = 20
"""Lease of a broker, so long that a paused broker keeps it while the test cancels a move."""
LOOKS_MAX = 900
PAGES = [
    "/",
    "/topics",
    "/topics/orders",
    "/topics/orders/change",
    "/topics/orders/messages",
    "/topics/orders/messages?key=7&start=oldest",
    "/topics/orders/messages/0/0",
    "/topics/orders/tail",
    "/topics/orders/produce",
    "/topics/orders/producers",
    "/topics/latest/cleaning",
    "/topics/trips/voters",
    "/create-topic",
    "/groups",
    "/groups/billing",
    "/groups/billing/reset?to=earliest",
    "/brokers",
    "/brokers/2",
    "/links",
    "/create-link",
    "/kafka",
    "/transactions",
    "/security",
]

pytestmark = [pytest.mark.slow, pytest.mark.scenario, pytest.mark.etcd, pytest.mark.timeout(900)]


@contextmanager
def three_brokers(folder: Path) -> Iterator[Processes]:
    """Run three brokers with records, a group and a topic of each kind."""
    with (
        start_blocking_portal() as portal,
        portal.wrap_async_context_manager(
            processes(folder, "http", "http", lease_seconds=str(LEASE_SECONDS))
        ) as running,
    ):
        bootstrap = running.bootstrap("http")
        with Admin(bootstrap) as admin, Producer(bootstrap) as producer:
            admin.create_topic("orders", partitions=6, replication_factor=3)
            admin.create_topic("latest", partitions=1, config={"cleanup.policy": "compact"})
            admin.create_topic("trips", partitions=1, config={"replication.mode": "quorum"})
            admin.create_topic("single", partitions=1, replication_factor=1)
            for number in range(600):
                producer.send("orders", b"%d" % number, key=b"%d" % number, partition=number % 6)
            producer.flush()
            admin.commit_group_offsets("billing", {TopicPartition("orders", 0): 1})
        yield running


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Processes]:
    """Run three brokers that several tests use."""
    with three_brokers(tmp_path_factory.mktemp("three")) as running:
        yield running


@pytest.fixture(scope="module")
def console(cluster: Processes) -> Iterator[str]:
    """Run a console that begins at the two brokers that keep running."""
    with running_console(",".join(cluster.bootstrap("http")[:2])) as address:
        yield address


def command_of(page: Page) -> list[str]:
    """Return the words of the command that the page shows for the last change."""
    return shlex.split(page.locator(".banner .same code").inner_text())


def settled(admin: Admin) -> None:
    """Wait until every partition has all its replicas and no partition moves."""
    for _ in range(LOOKS_MAX):
        partitions = [each for topic in admin.metadata().topics for each in topic.partitions]
        if not admin.reassignments() and all(len(each.isr) == len(each.replicas) for each in partitions):
            return
        pause_blocking(0.1)
    pytest.fail("the partitions do not settle")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_page_of_three_brokers(browser: Browser, console: str, scheme: str) -> None:
    """Every page opens, passes axe-core's rules, and runs its scripts without an error, in both colour schemes."""
    context = browser.new_context(color_scheme=scheme)  # type: ignore[arg-type]
    page, wrong = watched(context)
    found = {}
    for path in PAGES:
        answer = page.goto(console + path)
        assert answer is not None
        found[path] = (answer.status, violations(page))
    context.close()

    assert found == dict.fromkeys(PAGES, (200, []))
    assert wrong == []


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """Open a page, and finally check that no script failed."""
    context = browser.new_context()
    page, wrong = watched(context)
    yield page
    context.close()
    assert wrong == []


def test_a_move_is_cancelled(page: Page, cluster: Processes, console: str) -> None:
    """The page of brokers shows a move, which does not end because its broker is paused, and cancels the move."""
    with Admin(cluster.bootstrap("http")[:2]) as admin:
        admin.reassign("single", 0, [0])
        settled(admin)
        cluster.nodes[2].process.pause()
        try:
            admin.reassign("single", 0, [2])
            page.goto(f"{console}/brokers")
            row = page.get_by_role("row").filter(has_text="single-0")
            expect(row).to_be_visible()
            row.get_by_role("button", name="Cancel").click()
            expect(page.locator(".banner.good")).to_contain_text("single-0")
        finally:
            cluster.nodes[2].process.resume()
        left = admin.reassignments()
        settled(admin)

    assert command_of(page) == ["fairlead", "partition", "reassign", "single", "0", "--cancel"]
    assert left == []


def test_a_killed_broker_is_named_and_removed(page: Page, tmp_path: Path) -> None:
    """The overview names the broker, pages still open, and a broker without replicas can be removed."""
    with (
        three_brokers(tmp_path) as cluster,
        running_console(",".join(cluster.bootstrap("http")[:2])) as console,
        Admin(cluster.bootstrap("http")[:2]) as admin,
    ):
        # A broker without replicas and without settings of its own is forgotten when it ends.
        admin.alter_broker_config(2, {"log.cleaner.backoff.ms": 20_000})
        cluster.nodes[2].process.kill()
        until_shown(page, console, ".verdict", "Broker 2 does not run")
        answers = {path: page.goto(console + path) for path in PAGES}
        for topic in admin.list_topics():
            admin.delete_topic(topic.name)
        page.goto(f"{console}/brokers/2")
        page.get_by_text("Remove the broker").first.click()
        page.get_by_label("Type 2 to confirm").fill("2")
        page.get_by_role("button", name="Remove the broker").click()
        expect(page).to_have_url(f"{console}/brokers")
        left = [each.id for each in admin.brokers()]

    assert {path: answer and answer.status for path, answer in answers.items()} == dict.fromkeys(PAGES, 200)
    assert command_of(page) == ["fairlead", "broker", "unregister", "2"]
    assert left == [0, 1]


def until_shown(page: Page, address: str, place: str, text: str) -> None:
    """Load a page again until a part of it contains a text."""
    for _ in range(LOOKS_MAX):
        page.goto(address)
        if any(text in found for found in page.locator(place).all_text_contents()):
            return
        pause_blocking(0.2)
    pytest.fail(f"{address} does not show {text}")
