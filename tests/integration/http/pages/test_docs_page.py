"""The page `/docs`: complete, and without resources from other hosts."""

import re
from html.parser import HTMLParser

import pytest

from fairlead_api.routes import ROUTES, Listener
from fairlead_api.routes.openapi import document

pytestmark = pytest.mark.asyncio(loop_scope="module")

LINK = re.compile(r'(?:src|href)="([^"]*)"')
ANCHOR = re.compile(r' id="([^"]*)"')
VOID = {"br", "link", "meta"}


class Nesting(HTMLParser):
    """Open elements, and end tags that do not close the element that was opened last."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.wrong: list[str] = []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        """Handle the start tag of an element."""
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        """Handle the end tag of an element."""
        if not self.open or self.open.pop() != tag:
            self.wrong.append(tag)


@pytest.fixture
def api(shared):
    """Return a client of a broker's data listener."""
    return shared.api


async def test_the_page_shows_every_call_and_every_body(api) -> None:
    """Every request to the data listener and every schema has a section on the page, in well-formed HTML."""
    page = await api.get("/docs")
    nesting = Nesting()
    nesting.feed(page.body.decode())
    calls = {route.name for route in ROUTES if route.listener is Listener.DATA}
    bodies = {f"body-{name}" for name in document("0")["components"]["schemas"]}

    assert (page.status, page.headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert calls | bodies <= set(ANCHOR.findall(page.body.decode()))
    assert (nesting.open, nesting.wrong) == ([], [])


async def test_every_link_of_the_page_leads_somewhere(api) -> None:
    """Every link of the page leads to an anchor or is answered by the broker."""
    page = (await api.get("/docs")).body.decode()
    links = set(LINK.findall(page)) - {"data:,"}
    inside = {link.removeprefix("#") for link in links if link.startswith("#")}
    answers = {link: await api.get(link) for link in links if not link.startswith("#")}

    assert inside <= set(ANCHOR.findall(page))
    assert {link: answer.status for link, answer in answers.items()} == dict.fromkeys(answers, 200)
    assert answers["/docs/calls.css"].headers["content-type"] == "text/css; charset=utf-8"


async def test_the_page_loads_nothing_else(api) -> None:
    """The page loads only its style sheet, has no script, names no host, and has a content security policy."""
    page, styles = await api.get("/docs"), await api.get("/docs/calls.css")
    policy = dict(rule.split(" ", 1) for rule in page.headers["content-security-policy"].split("; "))

    assert b"<script" not in page.body
    assert b"url(" not in styles.body
    assert all(link.startswith(("/", "#", "data:")) for link in LINK.findall(page.body.decode()))
    assert policy == {
        "default-src": "'none'",
        "style-src": "'self'",
        "img-src": "data:",
        "base-uri": "'none'",
        "form-action": "'none'",
        "frame-ancestors": "'none'",
    }


@pytest.mark.parametrize("name", ["start.js", "..%2Fcalls.css", "docs_page.py", ""])
async def test_the_page_has_no_other_part(api, name: str) -> None:
    """A request for a path below the page is answered only for the style sheet."""
    answer = await api.get(f"/docs/{name}")

    assert (answer.status, answer.code) == (404, "route_not_found")


async def test_a_browser_without_http_2_gets_the_page_whole(shared, cluster) -> None:
    """A request over HTTP/1.1, which browsers use without TLS, gets the complete page."""
    browser = await cluster.client(shared.broker.addresses.data, http1=True)
    page = await browser.get("/docs")

    assert page.status == 200
    assert len(page.body) == int(page.headers["content-length"])
    assert page.body.endswith(b"</html>\n")
