"""Pages of the console as read by a program that runs no scripts: what they show, and how they are protected."""

from __future__ import annotations

import gzip
import json
import re
from hashlib import sha256
from pathlib import Path
from urllib.parse import quote

import pytest

import checkout
from console_kit import ask
from fairlead_console import assets

VENDORED = [assets.FOLDER / "vendor", Path(__file__).parent / "vendor"]
COMPRESSED_MAX = 150 * 1024


@pytest.mark.parametrize(
    ("path", "shown"),
    [
        ("/", ["orders", "billing", "controller"]),
        ("/topics", ["orders", "payments"]),
        ("/topics?q=pay&sort=rate", ["payments"]),
        ("/topics/orders", ["1,200", "KiB", "retention.ms", "billing"]),
        ("/problems/topic_not_found", ["topic_not_found"]),
        ("/groups", ["billing", "orders"]),
        ("/groups/billing", ["orders", "none"]),
        ("/groups/billing/reset?to=latest", ["fairlead group reset billing --to latest"]),
        ("/brokers", ["controller", "iB", "% of", "0/s", "0 B/s"]),
        ("/kafka", ["fairlead broker start --kafka-listen"]),
        ("/topics/latest/cleaning", ["Clean now", "leader"]),
        ("/topics/orders/cleaning", ["cleanup.policy=compact"]),
        ("/topics/trips/voters", ["1 of 1", "leader", "fairlead partition voters trips PARTITION"]),
        ("/topics/orders/voters", ["replication.mode=quorum"]),
        ("/topics/trips", ["/topics/trips/voters"]),
        ("/topics/orders/producers", ["fairlead partition producers orders PARTITION"]),
        ("/topics/payments/producers", ["fairlead produce payments"]),
        ("/security", ["Rules", "open"]),
        # Other tests may have left producers with transactions, and a search for none of them is always empty.
        ("/transactions?q=no-such-producer", ["fairlead produce"]),
        ("/brokers/0", ["log.cleaner.backoff.ms"]),
        ("/topics/orders/change", ["Type <code>orders</code> to confirm"]),
    ],
)
def test_pages_are_complete_without_scripts(console: str, path: str, shown: list[str]) -> None:
    """A page already contains its data when the server sends it."""
    status, _, body = ask(console, path)

    assert status == 200
    assert [each for each in shown if each not in body.decode()] == []


def test_a_search_leaves_out_other_topics(console: str) -> None:
    """The list of topics contains only topics whose names contain the searched words."""
    _, _, body = ask(console, "/topics?q=PAY")

    assert re.findall(r'href="/topics/(\w+)"', body.decode()) == ["payments"]


@pytest.mark.parametrize(
    "path",
    [
        "/topics?q=",
        "/topics/",
        "/topics/orders/messages?q=",
        "/topics/orders/messages?key=",
        "/topics/orders/messages?start=",
        "/topics/orders/tail?q=",
        "/groups?q=",
        "/groups/",
        "/groups/billing/reset?to=time&value=",
        "/transactions?q=",
        "/transactions/",
        "/links/",
        "/security?principal=",
        "/problems/",
        "/sign-in?next=",
        "/brokers/",
        "/",
    ],
)
def test_texts_in_addresses_are_escaped(console: str, path: str) -> None:
    """Names and searches that an address contains appear only as text on the page or its error."""
    _, headers, body = ask(console, path + quote("<blink onclick=alert(1)>'\"&", safe=""))

    assert headers["Content-Type"].startswith("text/html")
    assert b"<blink" not in body
    assert b"alert(1)>'" not in body


@pytest.mark.parametrize(
    ("path", "status", "shown"),
    [
        ("/topics/no-such-topic", 404, "/problems/topic_not_found"),
        ("/topics/no%20such", 422, "/problems/invalid_topic_name"),
        ("/no-such-page", 404, "/no-such-page"),
        ("/groups/absent", 404, "/problems/group_not_found"),
        ("/groups/billing/reset?to=shift&value=many", 400, "/problems/malformed_request"),
        ("/brokers/7", 404, "/brokers/7"),
        ("/topics?sort=colour", 422, "sort"),
        ("/problems/no_such_problem", 404, "/problems/no_such_problem"),
    ],
)
def test_errors_name_the_problem_and_its_page(console: str, path: str, status: int, shown: str) -> None:
    """An error page has the status of the problem, and a link to the problem's page."""
    found, _, body = ask(console, path)

    assert found == status
    assert shown in body.decode()


@pytest.mark.parametrize("path", ["/", "/topics", "/no-such-page", "/topics/no-such-topic"])
def test_every_answer_limits_what_a_browser_does(console: str, path: str) -> None:
    """The policy allows only the console's own scripts and styles, and no page has an inline script or style."""
    _, headers, body = ask(console, path)
    text = body.decode()

    policy = dict(each.strip().split(" ", 1) for each in headers["Content-Security-Policy"].split(";"))
    assert policy["default-src"] == policy["frame-ancestors"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == "'self'"
    assert headers["Cache-Control"] == "no-store"
    assert re.findall(r"<script(?! src=)|<style|\sstyle=|\son\w+=", text) == []


def test_scripts_and_styles_are_small_and_kept_by_browsers(console: str) -> None:
    """All scripts and styles together have at most 150 KiB compressed, and a browser requests each file only once."""
    _, _, body = ask(console, "/")
    paths = re.findall(r'(?:src|href)="(/static/[^"]+)"', body.decode())
    answers = [ask(console, path, headers={"Accept-Encoding": "gzip"}) for path in sorted(set(paths))]

    assert len(answers) >= 6
    assert all(headers["Cache-Control"].endswith("immutable") for _, headers, _ in answers)
    assert all(gzip.decompress(body) for _, _, body in answers)
    assert sum(len(body) for _, _, body in answers) <= COMPRESSED_MAX
    assert ask(console, re.sub(r"/static/\w+/", "/static/0/", paths[0]))[0] == 404


@pytest.mark.parametrize("folder", VENDORED, ids=["console", "tests"])
def test_vendored_files_are_those_of_their_packages(folder: Path) -> None:
    """Every file from another project has a name, a version, a licence and the hash of its contents."""
    listed = json.loads((folder / "vendored.json").read_text())
    files = {each.name for each in folder.iterdir() if each.suffix in (".js", ".css")}

    assert files == listed.keys()
    for name, entry in listed.items():
        assert sha256((folder / name).read_bytes()).hexdigest() == entry["sha256"], name
        assert (folder / f"{name.split('.')[0]}.LICENSE").is_file()
        assert entry.keys() == {"package", "version", "path", "licence", "sha256"}


def test_a_page_of_the_console_is_packaged() -> None:
    """Templates and static files are below the package, so that the wheel contains them."""
    root = checkout.ROOT / "console" / "fairlead_console"

    assert {path.suffix for path in (root / "templates").rglob("*") if path.is_file()} == {".html"}
