"""Three brokers in a browser: every page, moves, drains, restart permits, and brokers that are silent or killed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from anyio.from_thread import start_blocking_portal
from playwright.sync_api import Browser, Page, expect

from broker_process import BrokerProcess
from browser_kit import command_of, violations, watched
from console_kit import posted, running_console
from fairlead import TopicPartition
from fairlead.blocking import Admin, Producer
from fairlead.errors import RestartRefusedError
from secured_processes import Processes, processes
from waiting import pause_blocking

LEASE_SECONDS = 120
"""Lease of a broker, so long that a paused broker keeps it while a test opens pages."""
SHORT_LEASE_SECONDS = 5
"""Lease of a broker that a test kills."""
SHOWN_SECONDS_MAX = 120
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
def three_brokers(folder: Path, lease_seconds: int) -> Iterator[Processes]:
    """Run three brokers with records, a group and a topic of each kind."""
    with (
        start_blocking_portal() as portal,
        portal.wrap_async_context_manager(
            processes(folder, "http", "http", lease_seconds=str(lease_seconds))
        ) as running,
    ):
        bootstrap = running.bootstrap("http")
        with Admin(bootstrap) as admin, Producer(bootstrap) as producer:
            admin.create_topic("orders", partitions=6, replication_factor=3)
            admin.create_topic(
                "latest", partitions=1, replication_factor=3, config={"cleanup.policy": "compact"}
            )
            admin.create_topic(
                "trips", partitions=1, replication_factor=3, config={"replication.mode": "quorum"}
            )
            admin.create_topic("single", partitions=1, replication_factor=1)
            for number in range(600):
                producer.send("orders", b"%d" % number, key=b"%d" % number, partition=number % 6)
            producer.flush()
            admin.commit_group_offsets("billing", {TopicPartition("orders", 0): 1})
        yield running


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Processes]:
    """Run three brokers that several tests use."""
    with three_brokers(tmp_path_factory.mktemp("three"), LEASE_SECONDS) as running:
        yield running


@pytest.fixture(scope="module")
def console(cluster: Processes) -> Iterator[str]:
    """Run a console that begins at the two brokers that keep running."""
    with running_console(",".join(cluster.bootstrap("http")[:2])) as address:
        yield address


def settled(admin: Admin) -> None:
    """Wait until every partition has all its replicas and no partition moves."""
    for _ in range(LOOKS_MAX):
        partitions = [each for topic in admin.metadata().topics for each in topic.partitions]
        if not admin.reassignments() and all(len(each.isr) == len(each.replicas) for each in partitions):
            return
        pause_blocking(0.1)
    pytest.fail("the partitions do not settle")


def test_every_page_of_three_brokers(browser: Browser, console: str) -> None:
    """Every page opens and runs its scripts without an error, and passes axe-core's rules in both colour schemes."""
    context = browser.new_context(reduced_motion="reduce")
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


def test_a_silent_broker_is_named_and_other_brokers_answer(
    page: Page, cluster: Processes, console: str
) -> None:
    """Pages name a paused broker and show what others know; only what the paused broker alone knows is refused."""
    silent = 2
    with Admin(cluster.bootstrap("http")[:2]) as admin:
        settled(admin)
        leaders = {each.partition: each.leader for each in admin.metadata(["orders"]).topics[0].partitions}
        coordinator = admin.describe_group("billing").coordinator
    left_out = [partition for partition, leader in leaders.items() if leader == silent]
    alone = {"/topics/orders/messages/0/0"} if 0 in left_out else set()
    alone |= {"/groups/billing", "/groups/billing/reset?to=earliest"} if coordinator == silent else set()
    cluster.nodes[silent].process.pause()
    try:
        until_shown(page, console, ".banner.warn", f"Broker {silent} does not answer")
        verdict = page.locator(".verdict").inner_text()
        answers = {path: page.goto(console + path) for path in PAGES}
        page.goto(f"{console}/topics/orders/messages?start=oldest&count=500")
        shown = {int(each) for each in page.locator("#rows tr td:nth-child(2)").all_inner_texts()}
        notice = page.locator("#found .banner.warn").all_inner_texts()
    finally:
        cluster.nodes[silent].process.resume()
    page.goto(console)
    # The open page refreshes itself.
    expect(page.locator(".banner.warn")).to_have_count(0, timeout=SHOWN_SECONDS_MAX * 1000)

    assert f"Broker {silent} does not answer" in verdict
    assert {path for path, answer in answers.items() if answer is None or answer.status != 200} == alone
    assert shown == leaders.keys() - set(left_out)
    assert len(notice) == bool(left_out)


def test_a_broker_is_drained_and_gets_the_restart_permit(
    page: Page, cluster: Processes, console: str
) -> None:
    """The page of a broker drains and undrains it, and gets the restart permit, which no other broker gets."""
    with Admin(cluster.bootstrap("http")[:2]) as admin:
        # A broker with the only replica of a partition would not get the permit.
        admin.reassign("single", 0, [0])
        settled(admin)
        until_shown(page, f"{console}/brokers/2", "button", "Drain")
        page.get_by_role("button", name="Drain", exact=True).click()
        expect(page.get_by_role("button", name="Undrain")).to_be_visible()
        assert command_of(page) == ["fairlead", "broker", "drain", "2"]
        states = {each.id: each.state for each in admin.brokers()}
        page.get_by_role("button", name="Undrain").click()
        expect(page.get_by_role("button", name="Drain", exact=True)).to_be_visible()
        assert command_of(page) == ["fairlead", "broker", "undrain", "2"]
        settled(admin)
        page.get_by_role("button", name="Get the restart permit").click()
        expect(page.locator(".banner.good")).to_contain_text("Broker 2 may be restarted")
        with pytest.raises(RestartRefusedError):
            admin.request_restart(1)

    assert states[2] == "draining"
    assert command_of(page) == ["fairlead", "broker", "request-restart", "2"]


def test_a_killed_broker_is_named_and_removed(page: Page, tmp_path: Path) -> None:
    """The overview names the broker, pages open, changes are made, and a broker without replicas can be removed."""
    rows = {"name": "rows.ndjson", "mimeType": "text/plain", "buffer": b'{"id": 1}\n{"id": 2}\n'}
    with (
        three_brokers(tmp_path, SHORT_LEASE_SECONDS) as cluster,
        another_cluster(tmp_path / "source") as source,
        running_console(",".join(cluster.bootstrap("http")[:2])) as console,
        Admin(cluster.bootstrap("http")[:2]) as admin,
        Producer(cluster.bootstrap("http")[:2], transactional="books") as books,
    ):
        # A broker without replicas and without settings of its own is forgotten when it ends.
        admin.alter_broker_config(2, {"log.cleaner.backoff.ms": 20_000})
        cluster.nodes[2].process.kill()
        until_shown(page, console, ".verdict", "Broker 2 does not run")
        answers = {path: page.goto(console + path) for path in PAGES}
        ids = {topic.name: topic.topic_id for topic in admin.list_topics()}
        with suppress(Aborted), books.transaction():
            books.send("orders", b"open").result()
            forms = changes(ids, source, admin.describe_transaction("books").transaction)
            changed = {path: posted(console, path, form)[0] for path, form in forms.items()}
            raise Aborted
        page.goto(f"{console}/topics/orders/produce")
        page.get_by_label("File").set_input_files(rows)  # type: ignore[arg-type]
        page.get_by_role("button", name="Produce the file").click()
        expect(page.locator(".banner.good")).to_contain_text("2 records")
        for topic in admin.list_topics():
            admin.delete_topic(topic.name)
        page.goto(f"{console}/brokers/2")
        page.get_by_text("Remove the broker").first.click()
        page.get_by_label("Type 2 to confirm").fill("2")
        page.get_by_role("button", name="Remove the broker").click()
        expect(page).to_have_url(f"{console}/brokers")
        left = [each.id for each in admin.brokers()]

    assert {path: answer and answer.status for path, answer in answers.items()} == dict.fromkeys(PAGES, 200)
    assert changed == dict.fromkeys(forms, 303)
    assert command_of(page) == ["fairlead", "broker", "unregister", "2"]
    assert left == [0, 1]


class Aborted(Exception):
    """The transaction of a test was aborted in the console."""


@contextmanager
def another_cluster(folder: Path) -> Iterator[str]:
    """Run a broker as the source of a link, and yield its address."""
    broker = BrokerProcess(folder)
    broker.start()
    try:
        yield broker.url
    finally:
        broker.kill()


def changes(ids: dict[str, str], source: str, transaction: str) -> dict[str, dict[str, str]]:
    """Return the form of each change in the order in which a test sends them.

    `ids` are the ids of topics, `source` is the address of another cluster, and `transaction` is open.
    """
    link = {"source": source, "topics": "no-such-topic"}
    return {
        "/create-topic": {"name": "late", "partitions": "1", "replication_factor": "2"},
        "/topics/orders/settings": {
            "key": "retention.ms",
            "value": "3600000",
            "topic_id": ids["orders"],
        },
        "/topics/orders/partitions": {"partitions": "7", "topic_id": ids["orders"]},
        "/topics/orders/produce": {"value": "late"},
        "/topics/latest/clean": {"partition": "0"},
        "/topics/trips/delete": {"typed": "trips", "topic_id": ids["trips"]},
        "/groups/billing/reset": {"to": "latest"},
        "/groups/billing/delete": {"typed": "billing"},
        "/brokers/0/settings": {"key": "log.cleaner.backoff.ms", "value": "20000"},
        "/brokers/1/cordon": {},
        "/brokers/1/uncordon": {},
        "/brokers/1/drain": {},
        "/brokers/1/undrain": {},
        f"/transactions/{transaction}/abort": {"typed": transaction},
        "/create-link": link | {"name": "east"},
        "/links/east/pause": {},
        "/links/east/resume": {},
        "/links/east/alter": link | {"rate": "1000000"},
        "/links/east/delete": {"typed": "east"},
    }


def until_shown(page: Page, address: str, place: str, text: str) -> None:
    """Load a page again until a part of it contains a text."""
    for _ in range(LOOKS_MAX):
        page.goto(address)
        if any(text in found for found in page.locator(place).all_text_contents()):
            return
        pause_blocking(0.2)
    pytest.fail(f"{address} does not show {text}")
