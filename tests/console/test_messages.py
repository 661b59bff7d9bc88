"""Messages of a topic: browsing, searching within a budget, one record, and hostile contents."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterator
from urllib.parse import quote

import pyarrow as pa
import pytest
from playwright.sync_api import Browser, Page, expect

from browser_kit import violations, watched
from console_kit import ask
from fairlead.blocking import Admin, Producer

RECORDS = 120
LARGE_BYTES = 8 * 1024 * 1024
HOSTILE = [
    b"<script>document.title = 'run'</script><img src=x onerror=\"document.title='run'\">",
    "turned \u202e around \u2066, without width \u200b".encode(),
    b"controls \x00\x1b[31m\x07\x7f",
    b"broken \xff\xfe\xc3(",
    b"{{ 7 * 7 }}{% raw %}",
    b"[" * 5000,
    b'{"</script><script>document.title=1": "\\u202e\\ud800", "a": {"b": [1, {"c": null}]}}',
    bytes(range(256)),
    b"",
    None,
]


@pytest.fixture(scope="module")
def topics(bootstrap: str) -> Iterator[None]:
    """Create topics with many, large, hostile and no records."""
    with Admin(bootstrap) as admin, Producer(bootstrap, batch_bytes=16 * 1024 * 1024) as producer:
        admin.create_topic("clicks", partitions=3)
        admin.create_topic("large", partitions=1, config={"max.message.bytes": 2 * LARGE_BYTES})
        admin.create_topic("odd", partitions=1)
        admin.create_topic("silent", partitions=2)
        for number in range(RECORDS):
            value = b'{"id": %d, "status": "%s"}' % (number, b"open" if number % 10 else b"paid")
            headers = [("trace", b"t%d" % number)]
            producer.send("clicks", value, b"user-%d" % (number % 7), headers, 1_700_000_000_000 + number)
        for number in range(3):
            producer.send("large", b'{"n": %d, "x": "%s"}' % (number, b"x" * LARGE_BYTES), b"large")
        for each in HOSTILE:
            producer.send("odd", each, each, [("<b>\u202e", each)])
        producer.send("odd", b"{}", b"event", [("ce_specversion", b"1.0"), ("ce_type", b"order.paid")])
        producer.flush()
        yield
        for name in ("clicks", "large", "odd", "silent"):
            admin.delete_topic(name)


def places(body: bytes) -> list[str]:
    """Return the partition and offset of each record in a page, in order."""
    return re.findall(r'<th scope="row"[^>]*><a href="/topics/\w+/messages/(\d+/\d+)"', body.decode())


def followed(console: str, path: str) -> list[str]:
    """Return the records of a search on all its pages, by following the links as a reader without scripts."""
    found: list[str] = []
    pages = 0
    while path:
        status, _, body = ask(console, path)
        assert status == 200
        found += places(body)
        link = re.search(
            r'<a class="button[^"]*"(?: rel="next")? href="(/topics/\w+/messages\?[^"]+)"', body.decode()
        )
        path = html.unescape(link[1]) if link else ""
        pages += 1
        assert pages < 50
    return found


@pytest.mark.parametrize("start", ["newest", "oldest", "offset&at=0", "time&at=2020-01-01T00:00:00Z"])
def test_pages_of_messages_have_every_record_once(console: str, topics: None, start: str) -> None:
    """Following the links of the pages shows each record once, by time, from either end."""
    found = followed(console, f"/topics/clicks/messages?count=20&start={start}")

    assert len(found) == len(set(found)) == RECORDS
    for partition in "012":
        offsets = [int(each[2:]) for each in found if each.startswith(partition)]
        assert offsets == sorted(offsets, reverse=start == "newest")


@pytest.mark.parametrize(
    ("query", "count"),
    [
        ("key=user-3", 17),
        ("q=paid", 12),
        ("q=paid&field=key", 0),
        ("q=t11%5B0-4%5D&match=regex&field=headers", 5),
        ("q=%24.status+%3D%3D+%22paid%22&match=path&key=user-0", 2),
        ("q=%24.id+%3E%3D+100&match=path&start=oldest", 20),
        ("start=time&at=1700000000100", 20),
        ("start=time&at=2100-01-01T00:00:00Z", 0),
        ("start=offset&at=999999&partition=1", 0),
    ],
)
def test_a_search_finds_what_fits(console: str, topics: None, query: str, count: int) -> None:
    """Records can be selected by key, text, pattern, JSON path and position."""
    assert len(followed(console, f"/topics/clicks/messages?{query}")) == count


@pytest.mark.parametrize(
    "query",
    ["start=colour", "partition=3", "partition=x", "start=time&at=yesterday", "start=offset&at=-1", "match=regex&q=(",
     "match=path&q=id", "count=501", "positions=1", "budget=x", "view=x", "field=x", "nbytes=x", "start=time"],
)  # fmt: skip
def test_a_search_that_is_not_valid_names_the_field(console: str, topics: None, query: str) -> None:
    """The page of a refused search shows the reason, and the form with the entered values."""
    status, _, body = ask(console, f"/topics/clicks/messages?{query}")

    assert status == 422
    assert 'role="alert"' in body.decode()


def test_a_search_ends_at_its_budget(console: str, topics: None) -> None:
    """A search reads no more than its budget, shows the budget, and continues where it stopped with a larger budget."""
    path = "/topics/large/messages?q=no-record-has-this&budget=9&start=oldest"
    _, _, body = ask(console, path)
    text = body.decode()
    link = re.search(r'href="(/topics/large/messages\?[^"]*budget=16[^"]*)"', text)

    assert places(body) == []
    assert "9 MiB" in text
    assert link is not None
    assert re.search(r"positions=0-[12]\b", link[1])
    assert "nbytes=" in link[1]


def test_a_record_has_a_permanent_address(console: str, topics: None) -> None:
    """The page of a record offers several views, its key and value as files, and the command that prints the record."""
    _, _, body = ask(console, "/topics/clicks/messages?q=%22id%22:%2042,")
    (place,) = places(body)
    path = f"/topics/clicks/messages/{place}"
    shown = {
        view: ask(console, f"{path}?view={view}")[2].decode() for view in ("auto", "text", "json", "hex")
    }
    _, headers, value = ask(console, f"{path}/value")

    assert [view for view, text in shown.items() if 'class="tree"' in text] == ["auto", "json"]
    assert "&#34;id&#34;: 42" in shown["text"]
    assert "7b 22 69 64" in shown["hex"]
    assert f"--partition {place[0]} -o {place[2:]} -n 1" in shown["auto"]
    assert value == b'{"id": 42, "status": "open"}'
    assert headers["Content-Type"] == "application/octet-stream"
    assert headers["Content-Disposition"].startswith("attachment")
    assert ask(console, f"{path}/key")[2] == b"user-0"


@pytest.mark.parametrize("place", ["0/99999", "9/0", "0/99999/value"])
def test_a_record_that_does_not_exist_is_not_found(console: str, topics: None, place: str) -> None:
    """The page of a missing record says which offsets the partition has."""
    assert ask(console, f"/topics/clicks/messages/{place}")[0] == 404


def test_a_large_record_is_an_excerpt_with_a_download(console: str, topics: None) -> None:
    """Pages with records of 8 MiB are small, and the whole value can be downloaded."""
    _, _, listed = ask(console, "/topics/large/messages")
    _, _, one = ask(console, "/topics/large/messages/0/1")
    _, _, value = ask(console, "/topics/large/messages/0/1/value")

    assert len(listed) < 100_000
    assert len(one) < 200_000
    assert value == b'{"n": 1, "x": "%s"}' % (b"x" * LARGE_BYTES)


@pytest.mark.slow
def test_large_records_in_a_browser(tab: Page, console: str, topics: None) -> None:
    """A browser lists records of 8 MiB, shows each view of one, and downloads the whole value."""
    size = LARGE_BYTES + len(b'{"n": 0, "x": ""}')
    tab.goto(f"{console}/topics/large/messages")
    rows = tab.locator("#rows tr")
    expect(rows).to_have_count(3)
    expect(rows.first.locator("td").last.get_by_title(f"{size:,} bytes", exact=True)).to_be_visible()
    assert violations(tab) == []
    rows.first.get_by_role("link").first.click()
    expect(tab).to_have_url(re.compile(r"/topics/large/messages/0/\d$"))
    for view in ("Text", "JSON", "Hexadecimal", "As fits"):
        tab.get_by_role("link", name=view, exact=True).click()
        expect(tab.get_by_role("link", name=view, exact=True)).to_have_attribute("aria-current", "true")
        assert tab.evaluate("document.body.innerText.length") < 1_000_000
    assert violations(tab) == []
    with tab.expect_download() as begun:
        tab.get_by_role("link", name="Download the value").click()

    assert begun.value.path().stat().st_size == size


def test_a_search_is_exported_as_lines_or_columns(console: str, topics: None) -> None:
    """An export has every record of the search once, as NDJSON or as an Arrow stream."""
    _, headers, lines = ask(console, "/topics/clicks/export?q=paid&start=oldest")
    records = [json.loads(line) for line in lines.splitlines()]
    _, _, stream = ask(console, "/topics/clicks/export?q=paid&form=arrow")
    columns = pa.ipc.open_stream(stream).read_all()
    _, _, odd = ask(console, "/topics/odd/export")

    assert headers["Content-Disposition"].startswith("attachment")
    assert sorted(json.loads(each["value"])["id"] for each in records) == list(range(0, RECORDS, 10))
    assert records[0]["headers"] == [["trace", f"t{json.loads(records[0]['value'])['id']}"]]
    assert {(each["partition"], each["offset"]) for each in records} == {
        (each["partition"], each["offset"]) for each in columns.to_pylist()
    }
    assert {"base64": "YnJva2VuIP/+wyg="} in [json.loads(line)["value"] for line in odd.splitlines()]
    assert ask(console, "/topics/clicks/export?q=(&match=regex")[0] == 422
    assert ask(console, "/topics/clicks/export?partition=3")[0] == 422


@pytest.mark.slow
def test_hostile_records_are_shown_harmlessly(tab: Page, console: str, topics: None) -> None:
    """Nothing in a record is run, hides content or changes the text direction, in the list or on the record's page."""
    tab.goto(f"{console}/topics/odd/messages")
    tab.evaluate("for (const each of document.querySelectorAll('#rows details')) each.open = true")
    text = tab.locator("main").inner_text()

    assert tab.title().startswith("odd: messages")
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f\u200b\u202a-\u202e\u2066-\u2069]", text)
    assert "{{ 7 * 7 }}" in text
    assert tab.locator("#rows script, #rows img, #rows b").count() == 0
    assert violations(tab) == []
    for offset, view in ((0, "text"), (1, "text"), (3, "text"), (6, "json"), (7, "hex"), (10, "event")):
        tab.goto(f"{console}/topics/odd/messages/0/{offset}?view={view}")
        assert tab.locator("main script, main img, main b").count() == 0
        assert violations(tab) == []


@pytest.mark.slow
def test_a_search_goes_on_until_it_is_stopped(browser: Browser, console: str, bootstrap: str) -> None:
    """A long search continues automatically, is stopped by the button, and its link continues to the match."""
    context = browser.new_context()
    page, wrong = watched(context)
    with Admin(bootstrap) as admin, Producer(bootstrap) as producer:
        admin.create_topic("long", partitions=1)
        try:
            values = [b'{"id": 1}'] * 50_000
            for _ in range(14):
                producer.send_batch("long", pa.RecordBatch.from_pydict({"value": values}))
            producer.send("long", b'{"id": 6}').result()
            page.route("**/*", lambda route: None if "x-part" in route.request.headers else route.continue_())
            query = f"start=oldest&budget=16384&match=path&q={quote('$.id > 5')}"
            page.goto(f"{console}/topics/long/messages?{query}")
            page.get_by_role("button", name="Stop").click()
            page.unroute_all()
            page.get_by_role("link", name="Continue").click()

            expect(page.locator("#rows tr")).to_have_count(1)
            expect(page.get_by_role("status")).to_contain_text("complete")
            expect(page.get_by_role("status").locator("[title='700,001']")).to_be_visible()
            page.goto(f"{console}/topics/long/messages?{query}")
            expect(page.locator("#rows tr")).to_have_count(1)
        finally:
            admin.delete_topic("long")
            context.close()

    assert wrong == []


@pytest.mark.slow
def test_messages_fit_a_phone(browser: Browser, console: str, topics: None) -> None:
    """At the width of a phone, pages of messages are no wider than the screen, even with long contents."""
    context = browser.new_context(viewport={"width": 360, "height": 740})
    page = context.new_page()
    widths = []
    for path in (
        "clicks/messages",
        "odd/messages",
        "odd/messages/0/5",
        "large/messages/0/1",
        "silent/messages",
    ):
        page.goto(f"{console}/topics/{path}")
        widths.append(page.evaluate("document.documentElement.scrollWidth"))
    context.close()

    assert max(widths) <= 360
