"""Pages and forms of links: mirrors with their lag, and each change with the command that does the same."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import Page, expect

from broker_process import BrokerProcess
from browser_kit import command_of, violations
from fairlead.blocking import Admin, Producer
from fairlead_api.bodies.links import CreateLinkRequest, LinkSource, NamePatterns
from waiting import pause_blocking

LOOKS_MAX = 900
NAMES = ("Gaps", "Tails")
"""Sections of the page of a link that has lost records."""
pytestmark = pytest.mark.slow


@pytest.fixture
def source(bootstrap: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Run a second cluster with one topic, and finally remove links and mirrors that are left."""
    broker = BrokerProcess(tmp_path_factory.mktemp("source") / "data")
    broker.start()
    try:
        with Admin(broker.url) as admin, Producer(broker.url) as producer:
            admin.create_topic("flights", partitions=1)
            producer.send("flights", b"1").result()
        yield broker.url
        with Admin(bootstrap) as admin:
            for topic in admin.list_topics():
                if topic.name.startswith("east-") or topic.name == "ferries":
                    admin.delete_topic(topic.name)
            for link in admin.links():
                admin.delete_link(link.name)
    finally:
        broker.kill()


def test_a_link_is_created_changed_promoted_and_deleted(
    tab: Page, console: str, bootstrap: str, source: str
) -> None:
    """Forms create a link, pause and resume it, change it, promote its mirror and delete it, and show the commands."""
    tab.goto(f"{console}/links")
    tab.get_by_role("link", name="Create a link").click()
    assert violations(tab) == []
    tab.get_by_label("Name", exact=True).fill("east")
    tab.get_by_label("Addresses of the source").fill(source)
    tab.get_by_label("Topics", exact=True).fill("flights\ntrips-*")
    tab.get_by_label("Text before the name of each mirror").fill("east-")
    tab.get_by_role("button", name="Create").click()
    expect(tab.get_by_role("heading", level=1)).to_have_text("east")
    assert command_of(tab)[:6] == ["fairlead", "link", "create", "east", "--source", source]
    while tab.get_by_role("rowheader", name="east-flights").count() == 0:
        tab.reload()
    assert violations(tab) == []
    tab.get_by_role("button", name="Pause").click()
    expect(tab.get_by_role("button", name="Resume")).to_be_visible()
    assert command_of(tab) == ["fairlead", "link", "pause", "east"]
    with Admin(bootstrap) as admin:
        assert admin.describe_link("east").state == "paused"
        tab.get_by_role("button", name="Resume").click()
        expect(tab.get_by_role("button", name="Pause")).to_be_visible()
        assert admin.describe_link("east").state == "running"

        tab.get_by_role("link", name="Change").click()
        assert violations(tab) == []
        tab.get_by_label("Topics", exact=True).fill("flights")
        tab.get_by_label("Bytes a second at most").fill("50000000")
        tab.get_by_role("button", name="Change").click()
        expect(tab.locator(".banner")).to_contain_text("east")
        changed = admin.describe_link("east")
        assert (changed.topics.include, changed.bytes_per_second) == (["flights"], 50_000_000)
        assert command_of(tab)[-2:] == ["--rate", "50000000"]

        tab.get_by_text("Promote a mirror").first.click()
        tab.get_by_label("Type the name of the mirror to confirm").fill("east-flights")
        tab.get_by_role("button", name="Promote").click()
        expect(tab.locator(".banner")).to_contain_text("east-flights")
        assert command_of(tab) == ["fairlead", "link", "promote", "east", "east-flights"]
        while {each.state for each in admin.link_topics("east")} - {"promoted"}:
            tab.reload()
        tab.reload()
        expect(tab.get_by_role("button", name="Take back")).to_have_count(0)

        tab.goto(f"{console}/links/east/change")
        tab.get_by_label("Type east to confirm").fill("east")
        tab.get_by_role("button", name="Delete the link").click()
        expect(tab).to_have_url(f"{console}/links")
        assert command_of(tab) == ["fairlead", "link", "delete", "east"]
        assert admin.links() == []


def until(met: Callable[[], bool]) -> None:
    """Wait until a condition holds."""
    for _ in range(LOOKS_MAX):
        if met():
            return
        pause_blocking(0.1)
    pytest.fail("the condition does not hold in time")


def linked(admin: Admin, name: str, source: str, topic: str, prefix: str = "") -> None:
    """Create a link for one topic, and wait until the topic is mirrored."""
    admin.create_link(
        CreateLinkRequest(
            name=name,
            source=LinkSource(bootstrap=[source]),
            topics=NamePatterns(include=[topic]),
            prefix=prefix,
        )
    )
    until(lambda: [each.lag_records for each in admin.link_topics(name)] == [0])


def test_a_hand_over_is_taken_back(tab: Page, console: str, bootstrap: str, source: str) -> None:
    """A hand-over that waits for records of the source can be taken back, and the source accepts records again."""
    with Admin(bootstrap) as admin, Producer(source) as producer:
        linked(admin, "east", source, "flights", "east-")
        admin.pause_link("east")
        until(lambda: admin.describe_link("east").state == "paused")
        producer.send("flights", b"2").result()
        tab.goto(f"{console}/links/east")
        tab.get_by_text("Promote a mirror").first.click()
        tab.get_by_label("Type the name of the mirror to confirm").fill("east-flights")
        tab.get_by_role("button", name="Promote").click()
        expect(tab.locator(".banner.good")).to_contain_text("east-flights")
        # The page refreshes itself.
        tab.get_by_role("button", name="Take back").click()
        expect(tab.locator(".banner.good")).to_contain_text("east-flights")
        command = command_of(tab)
        producer.send("flights", b"3").result()
        admin.resume_link("east")
        until(lambda: [each.lag_records for each in admin.link_topics("east")] == [0])
        [mirror] = admin.link_topics("east")

    assert command == ["fairlead", "link", "take-back", "east", "east-flights"]
    assert mirror.state == "mirroring"


def test_a_topic_is_adopted_after_a_hand_over(tab: Page, console: str, bootstrap: str, source: str) -> None:
    """A topic that another cluster has taken over becomes a mirror of its promoted copy."""
    with Admin(bootstrap) as admin, Admin(source) as other, Producer(source) as producer:
        admin.create_topic("ferries", partitions=1)
        linked(other, "west", bootstrap, "ferries")
        other.promote_link("west", ["ferries"])
        until(lambda: {each.state for each in other.link_topics("west")} <= {"promoted"})
        producer.send("ferries", b"written there").result()
        tab.goto(f"{console}/create-link")
        tab.get_by_label("Name", exact=True).fill("back")
        tab.get_by_label("Addresses of the source").fill(source)
        tab.get_by_label("Topics", exact=True).fill("ferries")
        tab.get_by_role("button", name="Create").click()
        expect(tab.get_by_role("heading", level=1)).to_have_text("back")
        tab.get_by_role("link", name="Change").click()
        tab.get_by_label("Topics of this cluster").fill("ferries")
        tab.get_by_role("button", name="Adopt").click()
        expect(tab.locator(".banner.good")).to_contain_text("ferries")
        until(lambda: [each.lag_records for each in admin.link_topics("back")] == [0])
        ends = [each.offsets("ferries", 0).high_watermark for each in (admin, other)]

    assert command_of(tab) == ["fairlead", "link", "adopt", "back", "ferries"]
    assert ends[0] == ends[1] > 0


def test_gaps_and_tails_are_shown_until_they_are_acknowledged(
    tab: Page, console: str, bootstrap: str, source: str
) -> None:
    """Records that were cut when a topic became a mirror are shown as a gap and as a file, each with its command."""
    with Admin(bootstrap) as admin, Admin(source) as other, Producer(bootstrap) as producer:
        admin.create_topic("ferries", partitions=1)
        producer.send("ferries", b"copied").result()
        linked(other, "west", bootstrap, "ferries")
        other.pause_link("west")
        until(lambda: other.describe_link("west").state == "paused")
        producer.send("ferries", b"never copied").result()
        other.promote_link("west", ["ferries"], "failover")
        until(lambda: {each.state for each in other.link_topics("west")} <= {"promoted"})
        admin.create_link(
            CreateLinkRequest(
                name="back",
                source=LinkSource(bootstrap=[source]),
                topics=NamePatterns(include=["ferries"]),
            )
        )
        admin.adopt_link("back", ["ferries"])
        until(lambda: admin.describe_link("back").gaps == 1 and admin.link_tails("back") != [])
        [tail] = admin.link_tails("back")
        tab.goto(f"{console}/links/back")
        gaps, tails = (
            tab.locator("section").filter(has=tab.get_by_role("heading", name=name)) for name in NAMES
        )
        expect(gaps.get_by_role("row").last).to_have_text("ferries-0 1 2 0 1".replace(" ", ""))
        commands = [each.locator("code").last.inner_text().split() for each in (gaps, tails)]
        read = tails.get_by_role("row").last.locator("code").inner_text().split()
        assert violations(tab) == []
        gaps.get_by_role("button", name="Acknowledge").click()
        expect(tab.locator(".banner.good")).to_contain_text("back")
        expect(tab.get_by_role("heading", name="Gaps")).to_have_count(0)
        expect(tab.get_by_role("heading", name="Tails")).to_have_count(1)
        left = admin.describe_link("back").gaps

    assert command_of(tab) == commands[0] == ["fairlead", "link", "acknowledge", "back"]
    assert commands[1] == ["fairlead", "link", "tails", "back"]
    assert read == ["fairlead", "consume", "ferries", "--file", tail.path]
    assert left == 0


def test_a_refused_form_of_a_link_keeps_its_fields(tab: Page, console: str, source: str) -> None:
    """A link to a source that does not answer, a mirror that does not exist, and a link in use are refused by name."""
    tab.goto(f"{console}/create-link")
    tab.get_by_label("Name", exact=True).fill("east")
    tab.get_by_label("Addresses of the source").fill("not an address")
    tab.get_by_label("Topics", exact=True).fill("flights")
    tab.get_by_label("Text before the name of each mirror").fill("east-")
    tab.get_by_role("button", name="Create").click()
    expect(tab.get_by_role("alert")).to_contain_text("invalid_link")
    tab.get_by_label("Addresses of the source").fill(source)
    tab.get_by_role("button", name="Create").click()
    expect(tab.get_by_role("heading", level=1)).to_have_text("east")
    while tab.get_by_role("rowheader", name="east-flights").count() == 0:
        tab.reload()
    tab.goto(f"{console}/links/east/change")
    tab.get_by_label("Topics of this cluster").fill("absent")
    tab.get_by_role("button", name="Adopt").click()
    expect(tab.get_by_role("alert")).to_contain_text("topic_not_found")
    tab.get_by_label("Type east to confirm").fill("east")
    tab.get_by_role("button", name="Delete the link").click()

    expect(tab.get_by_role("alert")).to_contain_text("link_in_use")
