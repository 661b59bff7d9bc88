"""The page `/docs`: complete, and alone with its broker."""

import re

import pytest

pytestmark = pytest.mark.asyncio(loop_scope="module")

REFERENCE = re.compile(r'(?:src|href)="([^"]*)"')
ELSEWHERE = re.compile(r"https?://|//[a-z]")


@pytest.fixture
def api(shared):
    """The data listener of a broker."""
    return shared.api


async def test_every_part_of_the_page_is_served_by_the_broker(api) -> None:
    """Whatever the page names is answered with a body of its type, and the page names the parts it needs."""
    page = await api.get("/docs")
    parts = REFERENCE.findall(page.body.decode())
    answers = {part: await api.get(part) for part in parts}

    assert page.status == 200
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert {
        "/docs/swagger-ui-bundle.js",
        "/docs/swagger-ui.css",
        "/docs/favicon.png",
        "/docs/start.js",
    } <= set(parts)
    assert {part: answer.status for part, answer in answers.items()} == dict.fromkeys(parts, 200)
    assert len(answers["/docs/swagger-ui-bundle.js"].body) > 1_000_000
    assert answers["/docs/swagger-ui.css"].headers["content-type"].startswith("text/css")
    assert answers["/docs/favicon.png"].body.startswith(b"\x89PNG")


async def test_the_page_names_no_other_host_and_its_policy_forbids_them(api) -> None:
    """Page, start script and what the style sheet loads name no host; the policy lets the browser ask only this one."""
    page, start = await api.get("/docs"), await api.get("/docs/start.js")
    styles = (await api.get("/docs/swagger-ui.css")).body.decode()
    loaded = [
        url for url in re.findall(r"url\(([^)]*)\)", styles) if not url.strip("\"'").startswith("data:")
    ]
    policy = dict(rule.split(" ", 1) for rule in page.headers["content-security-policy"].split("; "))

    assert not ELSEWHERE.search(page.body.decode() + start.body.decode())
    assert loaded == []
    assert policy["default-src"] == "'none'"
    assert policy["script-src"] == "'self'"
    assert policy["connect-src"] == "'self'"
    assert {word for sources in policy.values() for word in sources.split()} == {
        "'none'", "'self'", "'unsafe-inline'", "data:",
    }  # fmt: skip
    assert "validatorUrl: null" in start.body.decode()


@pytest.mark.parametrize("name", ["redoc.standalone.js", "..%2Fcore.py", "core.py", ""])
async def test_nothing_else_of_the_package_is_served(api, name: str) -> None:
    """Only the parts of the page have an address."""
    answer = await api.get(f"/docs/{name}")

    assert (answer.status, answer.code) == (404, "route_not_found")


async def test_a_browser_without_http_2_gets_the_page_whole(shared, cluster) -> None:
    """Browsers speak HTTP/1.1 to an address without TLS; the script of 1.5 MB arrives there in full."""
    browser = await cluster.client(shared.broker.addresses.data, http1=True)
    script = await browser.get("/docs/swagger-ui-bundle.js")

    assert script.status == 200
    assert len(script.body) == int(script.headers["content-length"]) > 1_000_000
