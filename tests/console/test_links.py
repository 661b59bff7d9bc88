"""Pages of links: mirrors with their lag, pause, resume and promotion, each with the command that does the same."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

import pytest
from playwright.sync_api import Page, expect

from broker_process import BrokerProcess
from browser_kit import violations
from fairlead.blocking import Admin, Producer
from fairlead_api.bodies.links import CreateLinkRequest, LinkSource, NamePatterns

pytestmark = pytest.mark.slow


@pytest.fixture
def link(bootstrap: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Run a second cluster with one topic that the console's cluster mirrors."""
    source = BrokerProcess(tmp_path_factory.mktemp("source") / "data")
    source.start()
    try:
        with Admin(source.url) as admin, Producer(source.url) as producer:
            admin.create_topic("flights", partitions=1)
            producer.send("flights", b"1").result()
        with Admin(bootstrap) as admin:
            request = CreateLinkRequest(
                name="east",
                source=LinkSource(bootstrap=[source.url]),
                topics=NamePatterns(include=["flights"]),
                prefix="east-",
            )
            admin.create_link(request)
            yield "east"
            admin.delete_link("east")
            admin.delete_topic("east-flights")
    finally:
        source.kill()


def test_a_link_is_paused_resumed_and_its_mirror_promoted(
    tab: Page, console: str, bootstrap: str, link: str
) -> None:
    """The page of a link shows its mirrors; its forms pause, resume and promote, and show the commands."""

    def command() -> list[str]:
        return shlex.split(tab.locator(".banner .same code").inner_text())

    tab.goto(f"{console}/links")
    tab.get_by_role("link", name=link).click()
    expect(tab.get_by_role("heading", level=1)).to_have_text(link)
    while tab.get_by_role("rowheader", name="east-flights").count() == 0:
        tab.reload()
    assert violations(tab) == []
    tab.get_by_role("button", name="Pause").click()
    expect(tab.get_by_role("button", name="Resume")).to_be_visible()
    assert command() == ["fairlead", "link", "pause", link]
    with Admin(bootstrap) as admin:
        assert admin.describe_link(link).state == "paused"
        tab.get_by_role("button", name="Resume").click()
        expect(tab.get_by_role("button", name="Pause")).to_be_visible()
        assert admin.describe_link(link).state == "running"
        tab.get_by_text("Promote a mirror").first.click()
        tab.get_by_label("Type the name of the mirror to confirm").fill("east-flights")
        tab.get_by_role("button", name="Promote").click()
        expect(tab.locator(".banner")).to_contain_text("east-flights")
        assert command() == ["fairlead", "link", "promote", link, "east-flights"]
        while {each.state for each in admin.link_topics(link)} - {"promoted"}:
            tab.reload()
        tab.reload()

        expect(tab.get_by_role("button", name="Take back")).to_have_count(0)
