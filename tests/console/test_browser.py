"""The console in Debian's Chromium: accessible in both colour schemes, by keyboard, on a phone and without scripts."""

from __future__ import annotations

import re
from datetime import datetime, timedelta

import pytest
from playwright.sync_api import Browser, Page, Route, expect

from browser_kit import await_htmx, violations
from fairlead_console.pages import PAGES as REGISTERED

pytestmark = pytest.mark.slow

PAGES = [
    "/groups",
    "/groups/billing",
    "/groups/billing/reset?to=latest",
    "/topics/orders/change",
    "/brokers/0",
    "/create-topic",
    "/brokers",
    "/security",
    "/security?principal=user%3Aann&name=orders",
    "/transactions",
    "/links",
    "/create-link",
    "/kafka",
    "/topics/orders/messages",
    "/topics/orders/messages/0/0",
    "/topics/payments/messages",
    "/topics/orders/tail",
    "/topics/latest/cleaning",
    "/topics/orders/cleaning",
    "/topics/orders/producers",
    "/topics/trips/voters",
    "/topics/orders/voters",
    "/topics/orders/produce",
    "/sign-in",
    "/",
    "/topics",
    "/topics?q=nothing-has-this-name",
    "/topics/orders",
    "/topics/absent",
    "/problems/no_leader",
]
ELSEWHERE = {"/links/{}", "/links/{}/change", "/transactions/{}"}
"""Pages of objects that only the tests of their changes have; these tests look for violations, too."""
NO_PAGES = {
    "/topics/{}/export",
    "/topics/{}/messages/{}/{}/{}",
    "/topics/{}/tail/events",
    "/sign-in/callback",
    "/sign-in/oidc",
}
"""Addresses that answer with a file, a stream or a redirect."""
WIDE = """() => [
  ...(document.documentElement.scrollWidth > 360 ? ["the page"] : []),
  ...[...document.querySelectorAll("form :is(input, select, textarea, button)")]
    .filter(each => each.offsetWidth && each.getBoundingClientRect().right > each.form.getBoundingClientRect().right)
    .map(each => each.outerHTML),
]"""
"""Script that returns what is wider than a phone or than its form."""


def test_every_page_is_in_the_list() -> None:
    """The tests of accessibility and of a phone's width open every page that the console has."""
    listed = {
        re.sub(r"/(?:orders|latest|trips|payments|absent|billing|no_leader|\d+)(?=/|$)", "/{}", path)
        for path in (each.partition("?")[0] for each in PAGES)
    }
    routes = {
        re.sub(r"\{\w+\}", "{}", route.path)  # type: ignore[attr-defined]
        for each in REGISTERED
        for route in each.router.routes
        if "GET" in route.methods  # type: ignore[attr-defined]
    }

    assert routes == listed | ELSEWHERE | NO_PAGES


@pytest.mark.parametrize("path", PAGES)
def test_pages_are_accessible(tab: Page, console: str, path: str) -> None:
    """axe-core finds no violation of its rules on any page, in both colour schemes."""
    tab.goto(console + path)

    assert violations(tab) == []


def test_a_search_needs_only_the_keyboard(tab: Page, console: str) -> None:
    """The key / focuses the search; the list shows only matching topics, and the address can be bookmarked."""
    tab.goto(f"{console}/topics")
    tab.keyboard.press("/")
    tab.keyboard.type("pay")

    expect(tab.get_by_role("rowheader")).to_have_text(["payments"])
    expect(tab).to_have_url(f"{console}/topics?q=pay")
    tab.reload()
    expect(tab.get_by_role("rowheader")).to_have_text(["payments"])


def test_a_search_does_not_wait_for_scripts(tab: Page, console: str) -> None:
    """A search that is typed while scripts are still loading is done once they are loaded."""
    held: list[Route] = []
    tab.route("**/htmx*", lambda route: held.append(route))  # noqa: PLW0108 - Playwright needs a function
    with tab.expect_request("**/htmx*"):
        tab.goto(f"{console}/topics", wait_until="commit")
    tab.get_by_label("Search").fill("pay")
    held[0].continue_()

    expect(tab.get_by_role("rowheader")).to_have_text(["payments"])
    expect(tab).to_have_url(f"{console}/topics?q=pay")


def test_a_refreshed_list_is_the_list_of_the_search(tab: Page, console: str) -> None:
    """After a search, the list refreshes itself with the words of the search."""
    tab.clock.install()
    tab.goto(f"{console}/topics")
    await_htmx(tab)
    tab.get_by_label("Search").fill("pay")
    tab.clock.fast_forward(1_000)
    expect(tab.get_by_role("rowheader")).to_have_text(["payments"])
    tab.get_by_role("heading", level=1).click()
    with tab.expect_response(f"{console}/topics?q=pay"):
        tab.clock.fast_forward(11_000)

    expect(tab.get_by_role("rowheader")).to_have_text(["payments"])


def test_a_page_refreshes_itself(tab: Page, console: str) -> None:
    """A refresh event replaces only the parts of the page that have changed, without loading the page again."""
    tab.goto(f"{console}/topics/orders")
    await_htmx(tab)
    tab.evaluate(
        "document.querySelector('h1').dataset.kept = 'yes'; document.querySelector('.figures').remove()"
    )
    tab.evaluate("document.getElementById('page').dispatchEvent(new CustomEvent('refresh'))")

    expect(tab.locator(".figures")).to_be_visible()


def test_a_page_is_requested_only_every_ten_seconds_while_it_is_visible(tab: Page, console: str) -> None:
    """An open page makes one request every ten seconds, as often as the console asks the cluster; a hidden one none."""
    requests: list[str] = []
    tab.clock.install()
    begun = tab.evaluate("Date.now()")
    tab.goto(f"{console}/groups")
    await_htmx(tab)
    tab.get_by_role("heading", level=1).click()
    tab.on("request", lambda each: requests.append(each.url) if each.url == f"{console}/groups" else None)
    for _ in range(3):
        with tab.expect_response(f"{console}/groups"):
            tab.clock.run_for(10_000)
        # Otherwise the clock would run beyond the time limit of a request in flight.
        expect(tab.locator("#page.htmx-request")).to_have_count(0)
    tab.evaluate("Object.defineProperty(document, 'hidden', {value: true})")
    visible = len(requests)
    seconds = (tab.evaluate("Date.now()") - begun) / 1000
    tab.clock.run_for(60_000)

    assert 3 <= visible <= seconds / 10
    assert len(requests) == visible


def test_times_are_local_with_utc_on_hover(browser: Browser, console: str) -> None:
    """A time is shown in the zone of the browser, and in UTC on hover."""
    context = browser.new_context(timezone_id="Asia/Kathmandu")
    page = context.new_page()
    page.goto(console)
    shown = page.locator(".asof time")
    expect(shown).not_to_contain_text("UTC")
    local, utc = str(shown.text_content()), str(shown.get_attribute("title"))
    context.close()

    distance = datetime.fromisoformat(local) - datetime.fromisoformat(utc.removesuffix(" UTC"))
    assert distance == timedelta(hours=5, minutes=45)


def test_pages_fit_a_phone(browser: Browser, console: str) -> None:
    """At the width of a phone, no page is wider than the screen, and no field is wider than its form."""
    context = browser.new_context(viewport={"width": 360, "height": 740})
    page = context.new_page()
    wide = []
    for path in PAGES:
        page.goto(console + path)
        wide += [f"{path}: {each}" for each in page.evaluate(WIDE)]
    context.close()

    assert wide == []


@pytest.mark.parametrize("removed", [set(), {"content-security-policy"}, {"x-frame-options"}])
def test_no_page_is_shown_in_a_frame(browser: Browser, console: str, removed: set[str]) -> None:
    """Each of two headers alone keeps the browser from showing the console in a frame; without both, it does."""

    def framed(without: set[str]) -> str:
        """Return the address of the frame of a page of another site, after headers were removed."""
        context = browser.new_context()
        page = context.new_page()

        def answer(route: Route) -> None:
            response = route.fetch()
            kept = {name: value for name, value in response.headers.items() if name not in without}
            route.fulfill(response=response, headers=kept)

        page.route(f"{console}/topics", answer)
        page.set_content(f'<iframe src="{console}/topics"></iframe>', wait_until="load")
        address = page.frames[1].url
        context.close()
        return address

    assert not framed(removed).startswith(console)
    assert framed({"content-security-policy", "x-frame-options"}) == f"{console}/topics"


def test_pages_work_without_scripts(browser: Browser, console: str) -> None:
    """Without scripts, links, search and plots work."""
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(f"{console}/topics")
    page.get_by_label("Search").fill("orders")
    page.keyboard.press("Enter")
    page.get_by_role("link", name="orders").click()
    heading = page.get_by_role("heading", level=1).text_content()
    context.close()

    assert heading == "orders"
