"""Changes in the browser: the effect of each form on the cluster, the command that the page shows, and refusals."""

from __future__ import annotations

import re
import shlex

import pytest
from playwright.sync_api import Browser, Page, expect

from browser_kit import command_of, violations, watched
from console_kit import ask, running_console
from fairlead import TopicPartition
from fairlead.blocking import Admin
from fairlead.errors import GroupNotFoundError, TopicNotFoundError

pytestmark = pytest.mark.slow
TABS_MAX = 60
FOCUSED = "(document.activeElement.labels?.[0] ?? document.activeElement).textContent.trim()"


def test_a_topic_is_created_changed_enlarged_and_deleted(tab: Page, console: str, bootstrap: str) -> None:
    """Each form changes the topic, and the page shows the command that does the same."""
    with Admin(bootstrap) as admin:
        tab.goto(f"{console}/topics")
        tab.get_by_role("link", name="Create a topic").click()
        assert violations(tab) == []
        tab.get_by_label("Name").fill("parcels")
        tab.get_by_label("Partitions").fill("2")
        tab.get_by_label("Settings").fill("retention.ms=60000")
        tab.get_by_role("button", name="Create").click()
        expect(tab.get_by_role("heading", level=1)).to_have_text("parcels")
        created = admin.describe_topic("parcels")

        assert (created.partitions, created.config["retention.ms"].value) == (2, "60000")
        assert command_of(tab)[:4] == ["fairlead", "topic", "create", "parcels"]

        tab.get_by_role("link", name="Change").click()
        assert violations(tab) == []
        tab.get_by_label("Setting").select_option("retention.ms")
        tab.get_by_role("button", name="Set").click()
        expect(tab.locator(".banner")).to_be_visible()

        assert admin.describe_topic("parcels").config["retention.ms"].source.value == "default"
        assert command_of(tab) == ["fairlead", "topic", "alter", "parcels", "--unset", "retention.ms"]

        tab.goto(f"{console}/topics/parcels/change")
        tab.get_by_label("Partitions, now 2").fill("5")
        tab.get_by_role("button", name="Add").click()
        expect(tab.locator(".banner")).to_be_visible()

        assert admin.describe_topic("parcels").partitions == 5

        tab.goto(f"{console}/topics/parcels/change")
        tab.get_by_label("Type parcels to confirm").fill("parcels")
        tab.get_by_role("button", name="Delete the topic").click()
        expect(tab).to_have_url(f"{console}/topics")

        with pytest.raises(TopicNotFoundError):
            admin.describe_topic("parcels")
        # The result of a change is shown only once.
        tab.reload()
        expect(tab.locator(".banner")).to_have_count(0)


def test_a_topic_is_created_and_deleted_with_the_keyboard(tab: Page, console: str, bootstrap: str) -> None:
    """Tab reaches every control in its order, Enter uses it, and the control that has the focus has an outline."""
    with Admin(bootstrap) as admin:
        tab.goto(f"{console}/topics")
        press_at(tab, "Skip to the content")
        press_at(tab, "Create a topic")
        # The first field has the focus.
        expect(tab.get_by_label("Name")).to_be_focused()
        tab.keyboard.type("by-keyboard")
        tab.keyboard.press("Enter")
        expect(tab.get_by_role("heading", level=1)).to_have_text("by-keyboard")
        assert "by-keyboard" in {each.name for each in admin.list_topics()}

        press_at(tab, "Change")
        expect(tab.get_by_role("heading", level=1)).to_have_text("Change by-keyboard")
        focus(tab, "Type by-keyboard to confirm")
        tab.keyboard.type("by-keyboard")
        press_at(tab, "Delete the topic")
        expect(tab).to_have_url(f"{console}/topics")
        assert "by-keyboard" not in {each.name for each in admin.list_topics()}


def focus(page: Page, name: str) -> None:
    """Press Tab until the focus is at a link, button or field with this text or label."""
    for _ in range(TABS_MAX):
        page.keyboard.press("Tab")
        if page.evaluate(FOCUSED) == name:
            assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") != "none"
            return
    pytest.fail(f"the keyboard does not reach {name!r}")


def press_at(page: Page, name: str) -> None:
    """Press Tab until the focus is at a link or button, and press Enter."""
    focus(page, name)
    page.keyboard.press("Enter")


def test_a_refusal_is_shown_above_the_form(tab: Page, console: str) -> None:
    """A form that the cluster refuses keeps its values, and names the problem."""
    tab.goto(f"{console}/create-topic")
    tab.get_by_label("Name").fill("bad-retention")
    tab.get_by_label("Settings").fill("retention.ms=soon")
    tab.get_by_role("button", name="Create").click()

    expect(tab.get_by_role("alert")).to_contain_text("retention.ms")
    expect(tab.get_by_label("Name")).to_have_value("bad-retention")
    assert violations(tab) == []


def test_a_group_is_reset_after_a_preview_and_deleted(tab: Page, console: str, bootstrap: str) -> None:
    """The preview shows how many records would be read again or skipped; the reset moves the offsets."""
    with Admin(bootstrap) as admin:
        ends = {place: admin.offsets(place.topic, place.partition).high_watermark for place in orders()}
        admin.commit_group_offsets("audit", dict.fromkeys(orders(), 5))
        tab.goto(f"{console}/groups/audit")
        assert violations(tab) == []
        tab.get_by_role("link", name="Reset offsets").click()
        tab.get_by_label("Position").select_option("shift")
        tab.get_by_label("Time, duration or number").fill("-3")
        tab.get_by_role("button", name="Preview").click()

        expect(tab.locator(".figures dd").first).to_have_text("9")
        assert violations(tab) == []
        assert {admin.group_offsets("audit")[place].offset for place in orders()} == {5}

        tab.get_by_label("Position").select_option("latest")
        tab.get_by_label("Time, duration or number").fill("")
        tab.get_by_role("button", name="Preview").click()
        tab.get_by_role("button", name="Reset 3 offsets").click()
        expect(tab.locator(".banner")).to_be_visible()

        assert {place: entry.offset for place, entry in admin.group_offsets("audit").items()} == ends
        assert command_of(tab) == ["fairlead", "group", "reset", "audit", "--to", "latest"]

        tab.get_by_text("Delete the group").first.click()
        tab.get_by_label("Type audit to confirm").fill("audit")
        tab.get_by_role("button", name="Delete the group").click()
        expect(tab).to_have_url(f"{console}/groups")

        with pytest.raises(GroupNotFoundError):
            admin.describe_group("audit")


def test_a_group_may_have_any_name(tab: Page, console: str, bootstrap: str) -> None:
    """A group whose name has a meaning in addresses, patterns and shells is opened, reset and deleted."""
    name = "team/a-b;$(id) '\"?x=1#%2F<b>.*"
    with Admin(bootstrap) as admin:
        admin.commit_group_offsets(name, dict.fromkeys(orders(), 5))
        tab.goto(f"{console}/topics/orders")
        while tab.get_by_role("link", name=name, exact=True).count() == 0:
            tab.reload()
        tab.get_by_role("link", name=name, exact=True).click()
        expect(tab.get_by_role("heading", level=1)).to_have_text(name)
        tab.get_by_role("link", name="Reset offsets").click()
        tab.get_by_role("button", name="Preview").click()
        tab.get_by_role("button", name="Reset 3 offsets").click()
        expect(tab.locator(".banner.good")).to_contain_text(name)
        assert command_of(tab) == ["fairlead", "group", "reset", name, "--to", "earliest"]
        assert {entry.offset for entry in admin.group_offsets(name).values()} == {0}

        copied = [
            shlex.split(str(each.get_attribute("data-copy")))
            for each in tab.locator("main [data-copy]").all()
        ]
        assert ["fairlead", "group", "delete", name] in copied
        assert ["fairlead", "consume", "orders", "--group", name] in copied
        tab.get_by_text("Delete the group").first.click()
        field = tab.get_by_label(f"Type {name} to confirm")
        field.fill("team")
        assert field.evaluate("field => field.validity.patternMismatch")
        field.fill(name)
        tab.get_by_role("button", name="Delete the group").click()
        expect(tab).to_have_url(f"{console}/groups")

        with pytest.raises(GroupNotFoundError):
            admin.describe_group(name)


def orders() -> list[TopicPartition]:
    """Return the partitions of the topic `orders`."""
    return [TopicPartition("orders", number) for number in range(3)]


def test_a_broker_is_cordoned_and_configured(tab: Page, console: str, bootstrap: str) -> None:
    """A broker is cordoned and uncordoned by buttons, and its settings can be changed."""
    with Admin(bootstrap) as admin:
        tab.goto(f"{console}/brokers")
        assert violations(tab) == []
        tab.get_by_role("rowheader").get_by_role("link", name="0").click()
        assert violations(tab) == []
        tab.get_by_role("button", name="Cordon").click()
        expect(tab.locator(".banner")).to_be_visible()

        assert [each.cordoned for each in admin.brokers()] == [True]
        assert command_of(tab) == ["fairlead", "broker", "cordon", "0"]

        tab.get_by_role("button", name="Uncordon").click()
        expect(tab.get_by_role("button", name="Cordon", exact=True)).to_be_visible()

        assert [each.cordoned for each in admin.brokers()] == [False]

        tab.get_by_text("Change a setting of this broker").click()
        tab.get_by_label("Setting").select_option("log.cleaner.backoff.ms")
        tab.get_by_label("Value").fill("20000")
        tab.get_by_role("button", name="Set").click()
        expect(tab.locator(".banner")).to_be_visible()

        assert admin.broker_config(0)["log.cleaner.backoff.ms"].value == "20000"
        assert command_of(tab)[:4] == ["fairlead", "cluster", "config", "--broker"]
        admin.alter_broker_config(0, {"log.cleaner.backoff.ms": None})


def test_a_compacted_topic_is_cleaned(tab: Page, console: str) -> None:
    """The button asks the leader for a round of cleaning, and the page shows the command that does the same."""
    tab.goto(f"{console}/topics/latest/cleaning")
    tab.get_by_role("button", name="Clean now").click()

    expect(tab.locator(".banner")).to_contain_text("latest-0")
    assert command_of(tab) == ["fairlead", "partition", "clean", "latest", "0"]
    assert violations(tab) == []


CHANGES = [
    ("/create-topic", "name=stolen"),
    ("/topics/orders/delete", "typed=orders&topic_id=x"),
    ("/topics/orders/partitions", "partitions=9&topic_id=x"),
    ("/topics/orders/settings", "key=retention.ms&value=1&topic_id=x"),
    ("/groups/billing/reset", "to=latest"),
    ("/groups/billing/delete", "typed=billing"),
    ("/brokers/0/drain", ""),
    ("/brokers/0/settings", "key=log.cleaner.backoff.ms&value=1"),
    ("/brokers/0/request-restart", ""),
    ("/brokers/0/unregister", "typed=0"),
    ("/brokers/cancel-move", "topic=orders&partition=0"),
    ("/topics/orders/produce", "value=1"),
    ("/transactions/1.0/abort", "typed=1.0"),
    ("/create-link", "name=stolen&source=http://other.example&topics=*"),
    ("/links/east/acknowledge", ""),
    ("/links/east/alter", "source=http://other.example&topics=*"),
    ("/links/east/adopt", "adopted=orders"),
    ("/links/east/delete", "typed=east"),
    ("/links/east/pause", ""),
    ("/links/east/promote", "typed=orders&topic=orders"),
    ("/links/east/take-back", "topic=orders"),
    ("/topics/orders/clean", "partition=0"),
    ("/topics/orders/produce-file", "key_column=x"),
]


@pytest.mark.parametrize(("path", "form"), CHANGES)
def test_a_form_of_another_site_changes_nothing(console: str, path: str, form: str) -> None:
    """A POST without the token of the page is refused, with and without the cookie of another browser."""
    _, headers, _ = ask(console, "/topics")
    cookie = str(headers["Set-Cookie"]).split(";")[0]
    _, _, foreign = ask(console, "/create-topic")
    found = re.search(r'name="csrf_token" value="(\w+)"', foreign.decode())
    assert found is not None
    of_another = f"{form}&csrf_token={found[1]}"
    url_encoded = {"Content-Type": "application/x-www-form-urlencoded"}

    assert ask(console, path, "POST", url_encoded, form)[0] == 403
    assert ask(console, path, "POST", url_encoded | {"Cookie": cookie}, form)[0] == 403
    assert ask(console, path, "POST", url_encoded | {"Cookie": cookie}, of_another)[0] == 403


def test_every_change_is_in_the_list_of_foreign_forms() -> None:
    """The test of forms from other sites covers every address that changes something."""
    from fairlead_console.pages import PAGES

    known = [re.sub(r"/(orders|billing|east|0|1[.]0)(?=/)", "/{}", path) for path, _ in CHANGES]
    changes = [
        re.sub(r"\{\w+\}", "{}", route.path)  # type: ignore[attr-defined]
        for each in PAGES
        for route in each.router.routes
        if "POST" in route.methods and not route.path.startswith("/sign-")  # type: ignore[attr-defined]
    ]

    verbs = {"/brokers/{}/{}": "/brokers/{}/drain", "/links/{}/{}": "/links/{}/pause"}
    assert {verbs.get(each, each) for each in changes} == set(known)


def test_a_read_only_console_changes_nothing(browser: Browser, bootstrap: str) -> None:
    """With --read-only, forms are disabled and refused."""
    with running_console(bootstrap, "--read-only") as address:
        context = browser.new_context()
        page, wrong = watched(context)
        page.goto(f"{address}/topics/orders/change")
        buttons = page.locator("form button:not([type])").all()
        enabled = [each.text_content() for each in buttons if each.is_enabled()]
        token = page.locator("[name=csrf_token]").first.get_attribute("value")
        answer = context.request.post(
            f"{address}/create-topic", form={"name": "x", "csrf_token": token or ""}
        )
        context.close()

    assert enabled == []
    assert answer.status == 403
    assert wrong == []
