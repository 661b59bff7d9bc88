"""One cluster of one broker with some topics, a console that shows the cluster, and a browser."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from broker_process import BrokerProcess
from browser_kit import CHROMIUM, watched
from console_kit import ask, running_console
from fairlead import TopicPartition
from fairlead.blocking import Admin, Producer
from waiting import pause_blocking

LOOKS_MAX = 600
"""Maximum number of times that the console is checked before its first test."""


@pytest.fixture(scope="session")
def bootstrap(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Run a broker with records in one topic, an empty topic, and a group that lags behind.

    The broker is a process, because a broker in the process of the tests would suppress logs that other tests capture.
    """
    broker = BrokerProcess(tmp_path_factory.mktemp("console") / "data")
    broker.start()
    try:
        with Admin(broker.url) as admin, Producer(broker.url) as producer:
            admin.create_topic("orders", partitions=3)
            admin.create_topic("payments", partitions=1, config={"retention.ms": 3_600_000})
            admin.create_topic("trips", partitions=1, config={"replication.mode": "quorum"})
            admin.create_topic("latest", partitions=1, config={"cleanup.policy": "compact"})
            for number in range(1200):
                producer.send("orders", b"%d" % number, key=b"%d" % number)
            producer.flush()
            admin.commit_group_offsets("billing", {TopicPartition("orders", 0): 0})
        yield broker.url
    finally:
        broker.kill()


@pytest.fixture(scope="session")
def console(bootstrap: str) -> Iterator[str]:
    """Run a console for the cluster, and yield its address once the console has seen the sizes of the logs."""
    with running_console(bootstrap) as address:
        for _ in range(LOOKS_MAX):
            if "KiB" in ask(address, "/brokers")[2].decode():
                break
            pause_blocking(0.1)
        else:
            pytest.fail("the console has not seen the sizes of the logs")
        yield address


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Run Debian's Chromium.

    The fixture ends with its module, because the event loop of Playwright would remain in the thread of other tests.
    """
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def tab(browser: Browser) -> Iterator[Page]:
    """Open a page; finally check that no script failed and that the policy refused nothing."""
    context = browser.new_context(reduced_motion="reduce")
    page, wrong = watched(context)
    yield page
    context.close()
    assert wrong == []
