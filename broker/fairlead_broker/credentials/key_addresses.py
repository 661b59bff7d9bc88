"""Addresses from which keys of issuers may be fetched (rules A14, A17)."""

from __future__ import annotations

from typing import Final
from urllib.parse import urlsplit

LOOPBACK: Final = frozenset({"127.0.0.1", "::1", "localhost"})


def is_url(text: str) -> bool:
    """Return whether a text is the URL of a web server, and not a file."""
    return text.startswith(("https://", "http://"))


def is_allowed(url: str) -> bool:
    """Return whether keys may be fetched from a URL: by https, or by http from this machine."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return False
    if not parts.hostname:
        return False
    return parts.scheme == "https" or (parts.scheme == "http" and parts.hostname in LOOPBACK)
