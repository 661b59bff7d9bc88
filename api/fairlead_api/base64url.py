"""Base64 for URLs without padding: cursors of lists, and the parts of a JSON Web Signature (RFC 7515, section 2)."""

from __future__ import annotations

import base64


def encoded(data: bytes) -> str:
    """Return bytes as text without padding."""
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode("ascii")


def decoded(text: str) -> bytes:
    """Return the bytes of a text without padding. Raises `ValueError` for a character outside the alphabet."""
    return base64.b64decode(text + "=" * (-len(text) % 4), b"-_", validate=True)
