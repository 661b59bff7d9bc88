"""Identity: sign-in and its abuse, sessions, what each role sees and changes, hidden records."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from playwright.sync_api import Browser, expect

from broker_process import BrokerProcess
from browser_kit import violations, watched
from console_kit import ask, running_console
from fairlead import TopicPartition
from fairlead.blocking import Admin, Producer
from visitor import Visitor
from waiting import pause_blocking

SESSION = "fairlead_session"
FAR = "https://127.0.0.1:1"
LOOKS_MAX = 300
"""Maximum number of times that a page is loaded until it shows what a test waits for."""
ROLES = ("admin", "viewer", "reader", "writer", "nobody")


@dataclass(frozen=True)
class Secured:
    """A broker in `enforce` mode, a console for it, and one token for each role."""

    bootstrap: str
    console: str
    tokens: dict[str, str]

    def visitor(self, role: str) -> Visitor:
        """Return a browser that has signed in."""
        visitor = Visitor(self.console)
        status, _, body = visitor.sign_in(self.tokens[role])
        assert status == 303, body
        return visitor


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    """Run the broker and the console, with two topics and a group."""
    folder = tmp_path_factory.mktemp("secured")
    file = folder / "admin.token"
    broker = BrokerProcess(
        folder / "data", arguments=("--security", "enforce", "--admin-token-file", str(file))
    )
    broker.start()
    try:
        tokens = {"admin": file.read_text().strip()}
        with Admin(broker.url, token=tokens["admin"]) as admin:
            for name in ("orders", "payroll"):
                admin.create_topic(name, partitions=1)
            admin.commit_group_offsets("billing", {TopicPartition("orders", 0): 0})
            for role in ROLES[1:]:
                tokens[role] = admin.create_token(f"user:{role}").token
            for kind in ("cluster", "topic", "group"):
                admin.create_acl("user:viewer", ["describe"], kind, "*")
            admin.create_acl("user:reader", ["describe", "read"], "topic", "*")
            admin.create_acl("user:writer", ["write", "describe"], "topic", "orders")
        with Producer(broker.url, token=tokens["admin"]) as producer:
            for name in ("orders", "payroll"):
                producer.send(name, b"contents-of-a-record").result()
        options = ("--hide-records", "pay*", "--oidc-issuer", FAR)
        with running_console(broker.url, *options) as console:
            yield Secured(broker.url, console, tokens)
    finally:
        broker.kill()


@pytest.mark.parametrize("path", ["/", "/topics", "/topics/orders", "/groups", "/brokers", "/topics?q=a%26b"])
def test_a_stranger_is_sent_to_the_sign_in_and_back(secured: Secured, path: str) -> None:
    """Without a session, no page shows data of the cluster; after the sign-in, the page opens."""
    visitor = Visitor(secured.console)
    status, headers, _ = visitor.get(path)
    form = visitor.get(headers["Location"])[2]
    assert status == 303
    assert headers["Location"].startswith("/sign-in?next=")
    assert f'name="next" value="{path.replace("&", "&amp;")}"' in form

    status, headers, _ = visitor.sign_in(secured.tokens["admin"], path)

    assert (status, headers["Location"]) == (303, path)
    assert visitor.get(path)[0] == 200


def test_a_session_is_an_encrypted_cookie_for_this_site_only(secured: Secured) -> None:
    """The cookie is HttpOnly, Secure and SameSite=Strict, and neither it nor a page contains the token."""
    visitor = secured.visitor("reader")
    cookie = visitor.cookies[SESSION]
    page = visitor.get("/topics")[2]

    assert (cookie["httponly"], cookie["secure"], cookie["samesite"]) == (True, True, "strict")
    assert cookie["path"] == "/"
    assert not cookie["domain"]
    assert secured.tokens["reader"] not in cookie.value + page
    assert "user:reader" in page


@pytest.mark.parametrize("token", ["wrong", "flt_aaaaaaaaaaaa_bbbb", " ", "two words"])
def test_a_wrong_token_opens_no_session(secured: Secured, token: str) -> None:
    """After a refused sign-in, the form names the reason, and the browser gets no session."""
    visitor = Visitor(secured.console)
    status, _, body = visitor.sign_in(token)

    assert status == 401
    assert 'role="alert"' in body
    assert SESSION not in visitor.cookies


def test_a_changed_cookie_is_no_session(secured: Secured) -> None:
    """A changed cookie, or the cookie of another console, gives no session."""
    visitor = secured.visitor("admin")
    good = visitor.cookies[SESSION].value
    middle = len(good) // 2
    for wrong in (good[:-4], good[:middle] + ("A" if good[middle] != "A" else "B") + good[middle + 1 :], "x"):
        visitor.cookies[SESSION].set(SESSION, wrong, wrong)
        assert visitor.get("/topics")[0] == 303
    with running_console(secured.bootstrap) as other:
        stranger = Visitor(other)
        stranger.cookies[SESSION] = secured.visitor("admin").cookies[SESSION]

        assert stranger.get("/topics")[0] == 303


def test_a_sign_in_makes_earlier_values_of_the_browser_worthless(secured: Secured) -> None:
    """Form tokens and cookies that were planted before a sign-in have no effect after the sign-in (fixation)."""
    visitor = Visitor(secured.console)
    planted_token = visitor.token()
    planted_cookie = visitor.cookies["fairlead_csrf"].value
    assert visitor.sign_in(secured.tokens["admin"])[0] == 303
    fresh_cookie = visitor.cookies["fairlead_csrf"].value
    first_session = visitor.cookies[SESSION].value

    assert fresh_cookie != planted_cookie
    assert visitor.post("/create-topic", planted_token, name="stolen")[0] == 403
    visitor.cookies["fairlead_csrf"].set("fairlead_csrf", planted_cookie, planted_cookie)
    assert visitor.post("/create-topic", planted_token, name="stolen")[0] == 403
    assert visitor.sign_in(secured.tokens["admin"])[0] == 303
    assert visitor.cookies[SESSION].value != first_session


def test_a_sign_in_of_another_site_is_refused(secured: Secured) -> None:
    """A form without the token of the console's own page signs no browser in or out."""
    visitor = secured.visitor("reader")

    assert visitor.post("/sign-in", "", token=secured.tokens["admin"])[0] == 403
    assert visitor.post("/sign-out", "")[0] == 403
    assert visitor.get("/topics")[0] == 200


@pytest.mark.parametrize(
    "target",
    ["//evil.example", "https://evil.example", "/\\evil.example", "\\\\evil.example", "/\t/evil.example",
     "javascript:1", "evil.example", "", "/ok\r\nSet-Cookie: a=b"],
)  # fmt: skip
def test_a_sign_in_redirects_only_into_the_console(secured: Secured, target: str) -> None:
    """A sign-in whose return address is on another server leads to the first page."""
    status, headers, _ = Visitor(secured.console).sign_in(secured.tokens["reader"], target)

    assert (status, headers["Location"]) == (303, "/")


def test_a_sign_out_ends_the_session(secured: Secured) -> None:
    """A sign-out removes the session cookie, and later pages require a sign-in."""
    visitor = secured.visitor("reader")
    token = visitor.token("/topics")
    status, headers, _ = visitor.post("/sign-out", token)

    assert (status, headers["Location"]) == (303, "/sign-in")
    assert SESSION not in visitor.cookies
    assert visitor.get("/topics")[0] == 303


def test_a_revoked_token_ends_its_session(secured: Secured) -> None:
    """A page of a session whose token was revoked leads to the sign-in, and shows nothing."""
    with Admin(secured.bootstrap, token=secured.tokens["admin"]) as admin:
        created = admin.create_token("user:viewer")
        visitor = Visitor(secured.console)
        assert visitor.sign_in(created.token)[0] == 303
        assert visitor.get("/topics/orders")[0] == 200
        admin.revoke_token(created.token_id)

    status, headers, _ = visitor.get("/topics/orders")
    assert status == 303
    assert "ended=1" in headers["Location"]
    assert visitor.get("/topics/orders", HX_Request="true")[0] == 401


def test_the_page_of_security_needs_its_own_right(secured: Secured) -> None:
    """The page lists principals, rules and quotas with their use, and a check names the deciding rule."""
    with Admin(secured.bootstrap, token=secured.tokens["admin"]) as admin:
        admin.put_quota("user:writer", each={"produce_bytes_per_second": 1_048_576})
        rules = {(each.principal, each.kind): each.acl_id for each in admin.acls()}
        visitor = secured.visitor("admin")
        page = visitor.get("/security")[2]
        yes = visitor.get("/security?principal=user:reader&operation=read&kind=topic&name=orders")[2]
        no = visitor.get("/security?principal=user:reader&operation=write&kind=topic&name=orders")[2]
        admin.remove_quota("user:writer")

    assert all(each in page for each in ("user:reader", "topic:*", "superuser", "1 MiB", "enforce"))
    assert rules["user:reader", "topic"] in yes.partition("because:")[2].partition("</p>")[0]
    assert "may not" in no
    assert secured.visitor("viewer").get("/security")[0] == 403


@pytest.mark.slow
def test_the_audit_log_is_shown_and_followed(secured: Secured) -> None:
    """In a cluster that writes its audit log into a topic, the page of security leads to its records and their tail."""
    with Admin(secured.bootstrap, token=secured.tokens["admin"]) as admin:
        admin.alter_cluster_config({"audit.topic.enable": "true"})
        try:
            visitor = secured.visitor("admin")
            until_contains(visitor, "/security", "/topics/__audit/tail")
            assert secured.visitor("reader").post("/create-topic", name="refused-topic")[0] == 403
            until_contains(visitor, "/topics/__audit/messages", "refused-topic")
            tail = visitor.get("/topics/__audit/tail")[0]
        finally:
            admin.alter_cluster_config({"audit.topic.enable": None})

    assert tail == 200
    assert secured.visitor("reader").get("/security")[0] == 403


def until_contains(visitor: Visitor, path: str, text: str) -> None:
    """Wait until a page contains a text."""
    for _ in range(LOOKS_MAX):
        if text in visitor.get(path)[2]:
            return
        pause_blocking(0.2)
    pytest.fail(f"{path} does not show {text}")


ALL = set(ROLES)
SEEN_BY = {
    "/": ALL,
    "/topics": ALL,
    "/create-topic": ALL,
    "/groups": ALL,
    "/create-link": ALL,
    "/transactions": ALL,
    "/topics/orders": ALL - {"nobody"},
    "/topics/orders/change": ALL - {"nobody"},
    "/topics/orders/cleaning": ALL - {"nobody"},
    "/topics/orders/voters": ALL - {"nobody"},
    "/topics/orders/produce": ALL - {"nobody"},
    "/topics/orders/tail": ALL - {"nobody"},
    "/topics/orders/producers": {"admin", "reader"},
    "/topics/orders/messages": {"admin", "reader"},
    "/topics/orders/messages/0/0": {"admin", "reader"},
    "/topics/orders/messages/0/0/value": {"admin", "reader"},
    "/topics/orders/export": {"admin", "reader"},
    "/groups/billing": {"admin", "viewer"},
    "/groups/billing/reset?to=latest": {"admin"},
    "/brokers": {"admin", "viewer"},
    "/brokers/0": {"admin", "viewer"},
    "/links": {"admin", "viewer"},
    "/kafka": {"admin", "viewer"},
    "/security": {"admin"},
}
"""Roles that may see each page. Lists open for all roles, and omit what a role may not see."""


@pytest.mark.parametrize("role", ROLES)
def test_each_role_sees_only_what_it_may(secured: Secured, role: str) -> None:
    """A caller's pages show only what its identity may see: lists omit other entries, and other pages are forbidden."""
    visitor = secured.visitor(role)
    found = {path: visitor.get(path) for path in SEEN_BY}
    listed = {each for each in ("orders", "payroll") if f'href="/topics/{each}"' in found["/topics"][2]}
    contents = {path for path, (_, _, body) in found.items() if "contents-of-a-record" in body}

    assert {path: status for path, (status, _, _) in found.items()} == {
        path: 200 if role in roles else 403 for path, roles in SEEN_BY.items()
    }
    assert listed == {"writer": {"orders"}, "nobody": set()}.get(role, {"orders", "payroll"})
    assert ("billing" in found["/groups"][2]) == (role in ("admin", "viewer"))
    assert bool(contents) == (role in ("admin", "reader"))


CHANGES = {
    "/create-topic": {"name": "made"},
    "/topics/orders/produce": {"value": "new"},
    "/brokers/0/cordon": {},
    "/groups/absent/delete": {"typed": "absent"},
}


@pytest.mark.parametrize("role", ROLES)
def test_each_role_changes_only_what_it_may(secured: Secured, role: str) -> None:
    """A change is made with the caller's identity, and the cluster refuses it if the caller may not make it."""
    visitor = secured.visitor(role)
    token = visitor.token("/topics")
    found = [visitor.post(path, token, **fields)[0] for path, fields in CHANGES.items()]
    with Admin(secured.bootstrap, token=secured.tokens["admin"]) as admin:
        topics = {each.name for each in admin.list_topics()}
        if role == "admin":
            admin.uncordon_broker(0)
            admin.delete_topic("made")

    allowed = {"admin": [303, 303, 303, 404], "writer": [403, 303, 403, 403]}
    assert found == allowed.get(role, [403, 403, 403, 403])
    assert ("made" in topics) == (role == "admin")


@pytest.mark.parametrize(
    "path", ["/messages", "/messages/0/0", "/messages/0/0/value", "/export", "/tail", "/tail/events"]
)
def test_hidden_records_are_shown_to_no_role(secured: Secured, path: str) -> None:
    """Records of a hidden topic are shown to no role, but the topic itself is shown."""
    visitor = secured.visitor("admin")
    status, _, body = visitor.get(f"/topics/payroll{path}")

    assert status == 403
    assert "contents-of-a-record" not in body
    assert visitor.get("/topics/payroll")[0] == 200


def test_a_foreign_name_of_the_console_is_refused(secured: Secured) -> None:
    """A site whose name resolves to this machine cannot read the console (DNS rebinding)."""
    assert Visitor(secured.console, host="evil.example").get("/topics")[0] == 421
    assert Visitor(secured.console, host="localhost").get("/sign-in")[0] == 200


def test_a_token_is_not_taken_over_an_open_connection(secured: Secured) -> None:
    """Without https, only a browser on the same machine may sign in; behind a proxy with https, cookies are Secure."""
    with running_console(secured.bootstrap, "--public-url", "http://console.example") as console:
        visitor = Visitor(console, host="console.example")

        assert visitor.sign_in(secured.tokens["reader"])[0] == 403
        assert SESSION not in visitor.cookies
        assert Visitor(console).get("/")[0] == 421
        assert ask(console, "/healthz")[0] == 200
    with running_console(secured.bootstrap, "--public-url", "https://console.example") as console:
        visitor = Visitor(console, host="console.example")

        assert visitor.sign_in(secured.tokens["reader"])[0] == 303
        assert visitor.cookies[f"__Host-{SESSION}"]["secure"]
        assert visitor.cookies["fairlead_csrf"]["secure"]
        assert visitor.get("/topics")[0] == 200


def test_a_sign_in_at_an_issuer_must_have_begun_in_the_browser(secured: Secured) -> None:
    """A sign-in code that the browser did not request is refused; an issuer that does not answer is named."""
    visitor = Visitor(secured.console)

    assert visitor.get("/sign-in/callback?state=x&code=y")[0] == 403
    assert visitor.get("/sign-in/oidc?next=/topics")[0] == 502
    assert SESSION not in visitor.cookies


@pytest.mark.slow
def test_the_sign_in_in_a_browser(browser: Browser, secured: Secured) -> None:
    """A browser keeps the session, sends it with each page, and loses it at the sign-out; pages are accessible."""
    context = browser.new_context(reduced_motion="reduce")
    page, wrong = watched(context)
    page.goto(f"{secured.console}/topics/orders")
    assert violations(page) == []
    page.get_by_label("Token").fill(secured.tokens["reader"])
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("orders")
    assert violations(page) == []
    page.get_by_role("link", name="Brokers").click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("not")
    assert violations(page) == []
    page.get_by_role("button", name="Sign out").click()
    expect(page).to_have_url(f"{secured.console}/sign-in")
    cookies = {each.get("name") for each in context.cookies()}
    context.close()

    assert SESSION not in cookies
    assert wrong == []
