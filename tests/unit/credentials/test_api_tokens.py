"""API tokens and the header `Authorization`: accepted forms, and the reason for each refusal."""

from __future__ import annotations

import pytest

from fairlead_api.problems import ProblemError
from fairlead_api.token_text import TokenText
from fairlead_broker.access.caller import Caller
from fairlead_broker.credentials.api_tokens import verified
from fairlead_broker.credentials.bearer import bearer_token, too_many_failures
from fairlead_broker.registry.security_records import TokenRecord

TOKEN = TokenText("abcdefghijkl", "S" * 43)
NOW_US = 1_000_000


def record(**fields: object) -> TokenRecord:
    """Return the stored record of the token."""
    values = {
        "principal": "user:ann",
        "secret_sha256": TOKEN.secret_sha256,
        "created_us": NOW_US - 10,
        "created_by": "user:admin",
        **fields,
    }
    return TokenRecord(**values)  # type: ignore[arg-type]


def verify(text: str, stored: TokenRecord | None, valid_after_us: int = 0) -> Caller:
    """Verify a text against a store with at most one token."""
    tokens = {} if stored is None else {TOKEN.token_id: stored}
    return verified(text, tokens.get, NOW_US, valid_after_us)


def test_a_valid_token_names_its_principal() -> None:
    """The caller of a valid token has the principal, the id and the expiry of the record (rule A12)."""
    caller = verify(TOKEN.text, record(expires_us=NOW_US + 1))

    assert (caller.principal, caller.token_id, caller.expires_us) == ("user:ann", TOKEN.token_id, NOW_US + 1)


@pytest.mark.parametrize(
    ("text", "stored", "valid_after_us", "reason"),
    [
        (TOKEN.text, None, 0, "refused"),
        (TOKEN.text, record(secret_sha256="0" * 64), 0, "refused"),
        (TOKEN.text, record(), NOW_US, "refused"),
        (TokenText(TOKEN.token_id, "T" * 43).text, record(expires_us=1), 0, "refused"),
        (TOKEN.text[:-1], record(), 0, "refused"),
        ("a.b.c", record(), 0, "refused"),
        (TOKEN.text, record(expires_us=NOW_US), 0, "expired"),
    ],
)
def test_unknown_and_wrong_tokens_get_the_same_refusal(
    text: str, stored: TokenRecord | None, valid_after_us: int, reason: str
) -> None:
    """Unknown, revoked, wrong and invalidated tokens are refused for the same reason (rules A4, A7).

    Only a caller with the right secret learns that its token has expired.
    """
    with pytest.raises(ProblemError) as refused:
        verify(text, stored, valid_after_us)

    assert (refused.value.code, refused.value.data) == ("unauthenticated", {"reason": reason})


@pytest.mark.parametrize(
    "values",
    [
        [b"Bearer a", b"Bearer b"],
        [b"Basic abc"],
        [b"Bearer"],
        [b"Bearer "],
        [b""],
        [b"Bearer a b"],
        [b"Bearer a\tb"],
        [b"Bearer \xc3\xa9"],
        [b"Bearer " + b"a" * 8192],
    ],
)
def test_a_malformed_header_is_refused(values: list[bytes]) -> None:
    """Two headers, another scheme, a missing or too long token, and invalid characters are malformed (rule A1)."""
    with pytest.raises(ProblemError) as refused:
        bearer_token(values)

    assert refused.value.data == {"reason": "malformed"}


def test_the_scheme_has_no_case() -> None:
    """The name of the scheme is case-insensitive, as RFC 9110 requires."""
    assert [bearer_token([scheme + b" x"]) for scheme in (b"bearer", b"BEARER", b"Bearer ")] == ["x"] * 3


def test_an_address_with_too_many_refused_tokens_waits() -> None:
    """The problem for an address that sent too many refused tokens has the time after which the address may retry."""
    problem = too_many_failures(2.5)

    assert (problem.code, problem.retry_after_seconds) == ("throttled", 2.5)
