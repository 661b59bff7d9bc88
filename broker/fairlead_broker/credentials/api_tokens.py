"""Verification of API tokens against their stored hashes (rules A9 to A12)."""

from __future__ import annotations

import hmac
from collections.abc import Callable
from typing import Final

from fairlead_api.token_text import TokenText, parse_token
from fairlead_broker.access.caller import Caller, CallerSource
from fairlead_broker.credentials.bearer import Refused, unauthenticated
from fairlead_broker.registry.security_records import TokenRecord

_NO_HASH: Final = "0" * 64
"""Hash that is compared for an unknown id, so that an unknown id takes as long as a wrong secret."""


def verified(
    text: str, token_of: Callable[[str], TokenRecord | None], now_us: int, valid_after_us: int
) -> Caller:
    """Return the caller that a token authenticates. Raises `unauthenticated`.

    `token_of` returns the record that is stored under a token's id. `valid_after_us`: tokens that were created before
    this time are refused.
    """
    token = parse_token(text)
    if token is None:
        raise unauthenticated(Refused.REFUSED)
    record = token_of(token.token_id)
    if not _has_secret(token, record) or record is None or record.created_us < valid_after_us:
        raise unauthenticated(Refused.REFUSED)
    if record.expires_us is not None and record.expires_us <= now_us:
        raise unauthenticated(Refused.EXPIRED)
    return Caller(
        principal=record.principal,
        source=CallerSource.API_TOKEN,
        token_id=token.token_id,
        expires_us=record.expires_us,
        issued_us=record.created_us,
    )


def _has_secret(token: TokenText, record: TokenRecord | None) -> bool:
    stored = _NO_HASH if record is None else record.secret_sha256
    return hmac.compare_digest(token.secret_sha256, stored)
