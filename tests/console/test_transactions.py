"""Pages of transactions: an open transaction is shown with its partitions, and can be aborted."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page, expect

from browser_kit import violations
from fairlead.blocking import Admin, Producer

pytestmark = pytest.mark.slow


def test_an_open_transaction_is_shown_and_aborted(tab: Page, console: str, bootstrap: str) -> None:
    """The page names the partition that waits; after the abort, readers of committed records no longer wait."""
    with Admin(bootstrap) as admin:
        admin.create_topic("ledger", partitions=1)
        try:
            with Producer(bootstrap, transactional="books") as producer, producer.transaction():
                producer.send("ledger", b"1").result()
                tab.goto(f"{console}/transactions?q=boo")
                tab.get_by_role("link", name="books").click()
                expect(tab.get_by_role("rowheader")).to_contain_text(["ledger-0"])
                assert violations(tab) == []
                transaction = admin.describe_transaction("books").transaction
                tab.get_by_text("Abort the transaction").first.click()
                tab.get_by_label(f"Type {transaction} to confirm").fill(transaction)
                tab.get_by_role("button", name="Abort the transaction").click()
                expect(tab.locator(".banner")).to_contain_text(transaction)
                state = admin.describe_transaction(transaction)
                raise InterruptedError
        except InterruptedError:
            assert state.ended is not None
            assert state.ended.state == "aborted"
        finally:
            admin.delete_topic("ledger")
            admin.forget_transactions("books")
