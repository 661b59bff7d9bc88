"""A topic of 100,000,000 records in a browser: both ends, an offset, a time, a key, and a live tail."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import pyarrow as pa
import pytest
from playwright.sync_api import Browser, expect

from broker_process import BrokerProcess
from browser_kit import watched
from console_kit import running_console
from fairlead.blocking import Admin, Producer

RECORDS: Final = 100_000_000
BATCH_RECORDS: Final = 500_000
PARTITIONS: Final = 2
BATCHES: Final = RECORDS // BATCH_RECORDS
LAST: Final = RECORDS // PARTITIONS - 1
"""Offset of the last record of each partition."""
FIRST_US: Final = 1_700_000_000_000_000
"""Timestamp of the records of the first batch; each further batch is a second later."""
KEY: Final = "lost-suitcase"
KEY_AT: Final = LAST - BATCH_RECORDS
"""Offset of the only record with the key, a batch before the end."""

pytestmark = [pytest.mark.slow, pytest.mark.scenario, pytest.mark.timeout(1800)]


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Run a broker with the topic. Equal records compress well, so that the topic takes little of the disk."""
    broker = BrokerProcess(tmp_path_factory.mktemp("large") / "data")
    broker.start()
    try:
        with Admin(broker.url) as admin, Producer(broker.url, compression="zstd") as producer:
            admin.create_topic("clicks", partitions=PARTITIONS, config={"retention.ms": -1})
            values = pa.array([b"v" * 20] * BATCH_RECORDS, pa.binary())
            keys = [None] * BATCH_RECORDS
            for place in range(BATCHES):
                partition, number = place % PARTITIONS, place // PARTITIONS
                chosen = list(keys)
                if partition == 1 and number == KEY_AT // BATCH_RECORDS:
                    chosen[KEY_AT % BATCH_RECORDS] = KEY.encode()
                timestamps = [FIRST_US + number * 1_000_000] * BATCH_RECORDS
                columns = {
                    "key": pa.array(chosen, pa.binary()),
                    "value": values,
                    "timestamp": pa.array(timestamps, pa.timestamp("us", "UTC")),
                }
                sent = producer.send_batch("clicks", pa.RecordBatch.from_pydict(columns), partition=partition)
                sent[-1].result()
        yield broker.url
    finally:
        broker.kill()


def test_every_way_into_a_large_topic(browser: Browser, large: str) -> None:
    """Each start of the messages shows its records, a search finds a key, and a tail shows a new record."""
    with running_console(large) as console:
        context = browser.new_context()
        page, wrong = watched(context)
        page.goto(f"{console}/topics/clicks")
        expect(page.locator(".figures [title='100,000,000']")).to_be_visible()
        rows = page.locator("#rows tr")
        for query, first in (
            ("start=newest&partition=0", f"0/{LAST}"),
            ("start=oldest&partition=1", "1/0"),
            (f"start=offset&at={LAST // 2}&partition=1", f"1/{LAST // 2}"),
            ("start=time&at=2023-11-14T22:13:30Z&partition=0", f"0/{10 * BATCH_RECORDS}"),
        ):
            page.goto(f"{console}/topics/clicks/messages?{query}")
            expect(rows.first.get_by_role("link").first).to_have_attribute(
                "href", f"/topics/clicks/messages/{first}"
            )
        page.goto(f"{console}/topics/clicks/messages?start=newest&key={KEY}")
        expect(rows).to_have_count(1)
        page.goto(f"{console}/topics/clicks/messages/1/{KEY_AT}")
        expect(page.get_by_text(KEY)).to_be_visible()
        page.goto(f"{console}/topics/clicks/tail")
        expect(page.locator("[data-state]")).to_have_text("Waiting for records.")
        with Producer(large) as producer:
            producer.send("clicks", b"one more", partition=0).result()
        expect(page.locator("#rows")).to_contain_text("one more")
        context.close()

    assert wrong == []
