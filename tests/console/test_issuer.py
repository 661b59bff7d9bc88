"""Sign-in through a real OIDC provider, in a browser."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from broker_process import BrokerProcess
from browser_kit import watched
from console_kit import running_console
from fairlead.blocking import Admin
from oidc_server import CLIENTS, PASSWORD, SECRET, USER, USER_ID, OidcServer, program


@pytest.mark.slow
@pytest.mark.scenario
@pytest.mark.timeout(900)
def test_a_person_signs_in_at_a_provider(browser: Browser, tmp_path: Path) -> None:
    """The provider's page asks for the password; afterwards the console shows what the person may see.

    The code of a browser is exchanged with the verifier (PKCE), and the session cookie arrives although the navigation
    began at the provider.
    """
    program()
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    provider = OidcServer.create(tmp_path / "issuer", f"http://127.0.0.1:{port}/sign-in/callback")
    token, secret = tmp_path / "admin.token", tmp_path / "secret"
    secret.write_text(f"{SECRET}\n")
    issuer = "FAIRLEAD_ISSUERS__CORP__"
    broker = BrokerProcess(
        tmp_path / "data",
        {
            f"{issuer}ISSUER": provider.issuer,
            f"{issuer}CA": str(provider.ca),
            f"{issuer}AUDIENCE": CLIENTS[0],
        },
        arguments=("--security", "enforce", "--admin-token-file", str(token)),
    )
    options = ("--listen", f"127.0.0.1:{port}", "--oidc-issuer", provider.issuer, "--oidc-client-id", CLIENTS[0],
               "--oidc-client-secret-file", str(secret), "--oidc-ca-file", str(provider.ca))  # fmt: skip
    provider.start()
    try:
        broker.start()
        with Admin(broker.url, token=token.read_text().strip()) as admin:
            admin.create_topic("orders", partitions=1)
            admin.create_topic("payroll", partitions=1)
            admin.create_acl(f"corp:{USER_ID}", ["describe"], "topic", "orders")
        with running_console(broker.url, *options) as console:
            context = browser.new_context(ignore_https_errors=True)
            page, wrong = watched(context)
            page.goto(f"{console}/topics?sort=rate")
            page.get_by_role("link", name="Sign in with").click()
            page.locator("input[name=username]").fill(USER)
            page.locator("input[name=password]").fill(PASSWORD)
            page.locator("button[type=submit], input[type=submit]").click()

            expect(page.get_by_role("rowheader")).to_have_text(["orders"])
            expect(page).to_have_url(f"{console}/topics?sort=rate")
            expect(page.locator(".identity .tag")).to_have_text(f"corp:{USER_ID}")
            cookies = {str(each.get("name")): each for each in context.cookies(console)}
            session = cookies["fairlead_session"]
            assert (session.get("sameSite"), session.get("httpOnly"), session.get("secure")) == (
                "Strict",
                True,
                True,
            )
            assert "fairlead_sign_in" not in cookies
            context.close()
    finally:
        broker.kill()
        provider.stop()

    assert [each for each in wrong if console in each] == []
