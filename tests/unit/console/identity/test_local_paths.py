"""Addresses to which a sign-in returns."""

from __future__ import annotations

from urllib.parse import urljoin, urlsplit

from hypothesis import given
from hypothesis import strategies as st

from fairlead_console.identity.local_paths import local_path

BASE = "https://console.example/sign-in"


@given(st.text(st.sampled_from("/\\.:@?#&%\t\r\n evil.exampleh"), max_size=20))
def test_an_address_stays_in_the_console(text: str) -> None:
    """A browser that goes to the address stays on the host, even if it reads backslashes as slashes."""
    found = local_path(text)
    read = urljoin(BASE, found.translate({9: None, 10: None, 13: None, ord("\\"): "/"}))

    assert urlsplit(read).netloc == "console.example"
    assert found.startswith("/")


def test_a_path_with_a_query_is_kept() -> None:
    """An address inside the console is unchanged after the sign-in."""
    assert local_path("/topics/orders?q=a%20b&at=2") == "/topics/orders?q=a%20b&at=2"
