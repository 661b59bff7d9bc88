"""Live tail with pause and rate, and producing one record or a file, which is written completely or not at all."""

from __future__ import annotations

import http.client
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Page, expect

from browser_kit import violations
from console_kit import ANSWER_SECONDS_MAX, ask, posted
from fairlead.blocking import Admin, Consumer, Producer
from fairlead_console.body_limit import BODY_BYTES_MAX
from fairlead_console.pages.messages.message_produce import command_of


@pytest.fixture
def parcels(bootstrap: str) -> Iterator[str]:
    """Create a topic for one test."""
    with Admin(bootstrap) as admin:
        admin.create_topic("parcels", partitions=2)
        yield "parcels"
        admin.delete_topic("parcels")


def stored(
    bootstrap: str, topic: str
) -> list[tuple[bytes | None, bytes | None, list[tuple[str, bytes | None]]]]:
    """Return key, value and headers of all committed records of a topic."""
    with Consumer(bootstrap, isolation="read_committed") as consumer:
        consumer.assign(topic=topic)
        return [
            (each.key, each.value, list(each.headers or ()))
            for each in consumer.records(until=consumer.end_offsets())
        ]


@contextmanager
def events(console: str, path: str) -> Iterator[Iterator[dict[str, object]]]:
    """Open the stream of a tail, and yield its samples."""
    connection = http.client.HTTPConnection(urlsplit(console).netloc, timeout=ANSWER_SECONDS_MAX)
    connection.request("GET", path)
    answer = connection.getresponse()
    assert answer.status == 200
    assert answer.headers["Content-Type"].startswith("text/event-stream")

    def samples() -> Iterator[dict[str, object]]:
        while line := answer.readline():
            if line.startswith(b"data: "):
                yield json.loads(line[6:])

    try:
        yield samples()
    finally:
        connection.close()


def test_a_tail_shows_at_most_its_rate_and_counts_the_rest(
    console: str, bootstrap: str, parcels: str
) -> None:
    """A sample has the newest records, and the numbers of records that were stored in the topic and that were read."""
    with events(console, "/topics/parcels/tail/events?rate=5") as samples, Producer(bootstrap) as producer:
        assert next(samples)["arrived"] == 0
        for number in range(500):
            producer.send("parcels", b"value-%d" % number, partition=number % 2)
        producer.flush()
        found: list[dict[str, object]] = []
        while sum(int(str(each["arrived"])) for each in found) < 500:
            found.append(next(samples))

    assert all(int(str(each["shown"])) <= 5 for each in found)
    # The last records of the two partitions may be in different samples.
    assert any("value-499" in str(each["rows"]) for each in found)
    assert sum(int(str(each["read"])) for each in found) <= 5 * len(found)


def test_a_tail_with_a_filter_shows_matching_records(console: str, bootstrap: str, parcels: str) -> None:
    """A filter reads more records than the rate, and the page shows only matching records."""
    with (
        events(console, "/topics/parcels/tail/events?rate=5&q=value-7") as samples,
        Producer(bootstrap) as producer,
    ):
        next(samples)
        for number in range(20):
            producer.send("parcels", b"value-%d;" % number)
        producer.flush()
        text, arrived = "", 0
        while arrived < 20:
            sample = next(samples)
            text, arrived = text + str(sample["rows"]), arrived + int(str(sample["arrived"]))

    assert set(re.findall(r"value-\d+;", text)) == {"value-7;"}


@pytest.mark.parametrize("query", ["rate=51", "partition=2", "match=regex&q=("])
def test_a_tail_that_is_not_valid_is_refused(console: str, parcels: str, query: str) -> None:
    """The page and the stream refuse invalid parameters."""
    assert ask(console, f"/topics/parcels/tail?{query}")[0] == 422
    assert ask(console, f"/topics/parcels/tail/events?{query}")[0] == 422


@pytest.mark.slow
def test_a_tail_is_paused_and_resumed(tab: Page, console: str, bootstrap: str, parcels: str) -> None:
    """Records appear on the page while it is not paused; records that arrive during a pause are not shown."""
    with Producer(bootstrap) as producer:
        tab.goto(f"{console}/topics/parcels/messages")
        tab.get_by_role("link", name="Live tail").click()
        expect(tab.locator("[data-state]")).to_have_text("Waiting for records.")
        producer.send("parcels", b"<b>first</b>").result()
        expect(tab.locator("#rows tr")).to_have_count(1)
        assert violations(tab) == []
        tab.get_by_role("button", name="Pause").click()
        producer.send("parcels", b"not shown").result()
        tab.get_by_role("button", name="Resume").click()
        expect(tab.locator("[data-state]")).to_have_text("Waiting for records.")

        expect(tab.locator("#rows")).to_contain_text("<b>first</b>")
        expect(tab.locator("#rows tr")).to_have_count(1)


@pytest.mark.slow
def test_a_record_is_produced_and_shown(tab: Page, console: str, bootstrap: str, parcels: str) -> None:
    """The form writes the record with key, headers and partition, and shows it with the command that writes it."""
    tab.goto(f"{console}/topics/parcels/produce")
    assert violations(tab) == []
    tab.get_by_label("Key", exact=True).fill("k1")
    tab.get_by_label("Value", exact=True).fill("first\nsecond")
    tab.get_by_label("Headers").fill("trace: 42\n")
    tab.get_by_label("Partition").fill("1")
    tab.get_by_role("button", name="Produce", exact=True).click()

    expect(tab.get_by_role("heading", level=1)).to_have_text("Partition 1, offset 0")
    assert stored(bootstrap, "parcels") == [(b"k1", b"first\nsecond", [("trace", b"42")])]
    words = shlex.split(tab.locator(".banner .same code").inner_text())
    assert words[words.index("--partition") + 1] == "1"


def test_the_shown_commands_write_the_same_records(bootstrap: str, parcels: str) -> None:
    """The command for a record writes the record, also without key or value, and with texts that a shell interprets."""
    records = [
        ("NULL", None, []),
        ("", None, [("trace", b"42")]),
        ("$k 'e' y", b"a\nb\\n %v", []),
        ("", b"", [("a b", b"$HOME")]),
        ("-k", b"-", []),
    ]
    commands = [command_of(parcels, *record, 1) for record in records]
    environment = os.environ | {
        "FAIRLEAD_BOOTSTRAP": bootstrap,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }
    subprocess.run(["bash", "-ec", "\n".join(commands)], env=environment, check=True, timeout=60)

    assert stored(bootstrap, "parcels") == [
        (key.encode() or None, value, headers) for key, value, headers in records
    ]


def test_a_null_value_and_a_wrong_field(console: str, bootstrap: str, parcels: str) -> None:
    """A record may have no value; a wrong field is named above the form, and nothing is written."""
    wrong = [
        posted(console, "/topics/parcels/produce", {"value": "v", "partition": "9"}),
        posted(console, "/topics/parcels/produce", {"value": "v", "partition": "x"}),
        posted(console, "/topics/parcels/produce", {"value": "v", "headers": "no colon"}),
    ]
    good = posted(console, "/topics/parcels/produce", {"key": "k", "value": "v", "null": "1"})

    assert [status for status, _, _ in wrong] == [404, 422, 422]
    assert all('role="alert"' in body for _, _, body in wrong)
    assert good[0] == 303
    assert stored(bootstrap, "parcels") == [(b"k", None, [])]


@pytest.mark.slow
def test_a_file_is_produced_completely_or_not_at_all(
    tab: Page, console: str, bootstrap: str, parcels: str
) -> None:
    """Every row of a file is a record; a file with one bad line writes nothing."""
    rows = b'{"id": 1, "to": "a"}\n{"id": 2, "to": "b"}\n'
    tab.goto(f"{console}/topics/parcels/produce")
    tab.get_by_label("Column of the key").fill("id")
    chosen = {"name": "rows.ndjson", "mimeType": "text/plain", "buffer": rows + b"{broken\n"}
    tab.get_by_label("File").set_input_files(chosen)  # type: ignore[arg-type]
    tab.get_by_role("button", name="Produce the file").click()

    expect(tab.get_by_role("alert")).to_contain_text("line 3")
    assert stored(bootstrap, "parcels") == []

    tab.get_by_label("Column of the key").fill("id")
    tab.get_by_label("File").set_input_files(chosen | {"buffer": rows})  # type: ignore[arg-type]
    tab.get_by_role("button", name="Produce the file").click()
    expect(tab.locator(".banner")).to_contain_text("2 records")

    assert sorted(stored(bootstrap, "parcels")) == [
        (b"1", b'{"id": 1, "to": "a"}', []),
        (b"2", b'{"id": 2, "to": "b"}', []),
    ]


def test_a_form_that_is_too_large_is_refused(console: str, parcels: str) -> None:
    """A body beyond the limit is refused because of its declared length, before it is read."""
    headers = {"Content-Length": str(BODY_BYTES_MAX + 1), "Content-Type": "multipart/form-data; boundary=x"}

    assert ask(console, "/topics/parcels/produce-file", "POST", headers)[0] == 413
