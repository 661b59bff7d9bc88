"""Claims of signed tokens, and the caller that they name (rules A15, A16, A18)."""

from __future__ import annotations

import base64
import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead_api.problems import ProblemError
from fairlead_broker.access.caller import Caller
from fairlead_broker.credentials.claims import (
    GROUPS_MAX,
    LEEWAY_SECONDS,
    IssuerRules,
    Unverified,
    caller_of,
    is_signed,
    issuer_in,
    unverified,
)
from fairlead_broker.credentials.key_addresses import is_allowed, is_url

NOW = 1_700_000_000
RULES = IssuerRules(name="corp", issuer="https://i.example", audience="fairlead/main", groups_claim="groups")
CLAIMS = {"iss": RULES.issuer, "aud": RULES.audience, "sub": "ann", "iat": NOW, "exp": NOW + 600}
HEADER = {"alg": "ES256", "kid": "k", "typ": "at+jwt"}


def part(value: object) -> str:
    """Return a part of a token."""
    text = value if isinstance(value, bytes) else json.dumps(value).encode()
    return base64.urlsafe_b64encode(text).rstrip(b"=").decode()


def caller(rules: IssuerRules = RULES, after_us: int = 0, **changes: object) -> Caller | str:
    """Return the caller for changed claims, or the reason for the refusal; the value None removes a claim."""
    claims = {name: value for name, value in (CLAIMS | changes).items() if value is not None}
    try:
        return caller_of(rules, json.dumps(claims).encode(), "k", NOW * 1_000_000, after_us)
    except ProblemError as problem:
        return str(problem.data["reason"])


def read_unverified(header: object = HEADER, claims: object = CLAIMS) -> Unverified | None:
    """Return the unverified issuer, algorithm and key id of a token, or None if the token is refused."""
    try:
        return unverified(f"{part(header)}.{part(claims)}.x")
    except ProblemError:
        return None


def test_a_caller_has_the_names_of_its_claims() -> None:
    """Principal and groups begin with the name of the issuer.

    Groups with invalid names, and groups above the limit, are dropped.
    """
    groups = ["payments", "a b", "a,b", "*", "", 5, "x" * 201, *(f"g{number}" for number in range(70))]
    found = caller(groups=groups, aud=["other", RULES.audience], nbf=NOW)

    assert isinstance(found, Caller)
    assert (found.principal, found.groups[:2]) == ("corp:ann", ("group:corp:payments", "group:corp:g0"))
    assert len(found.groups) == GROUPS_MAX
    assert (found.issuer, found.key_sha256, found.expires_us) == ("corp", "k", (NOW + 600) * 1_000_000)
    assert found.accepted_until_us == (NOW + 600 + LEEWAY_SECONDS) * 1_000_000
    assert isinstance(plain := caller(replace(RULES, groups_claim=None), groups=["a"]), Caller)
    assert plain.groups == ()


@pytest.mark.parametrize(
    "changes",
    [
        {"iss": None}, {"iss": "https://i.example/"}, {"aud": None}, {"aud": "fairlead/other"}, {"aud": []},
        {"aud": {"fairlead/main": 1}}, {"sub": None}, {"sub": 7}, {"sub": ""}, {"sub": "a b"}, {"sub": "a,b"},
        {"sub": "*"}, {"sub": "a\n"}, {"sub": "\u00e9"}, {"sub": "x" * 201}, {"exp": None}, {"exp": "1"},
        {"exp": True}, {"exp": 1e300}, {"exp": -1}, {"iat": None}, {"iat": NOW + LEEWAY_SECONDS + 1},
        {"nbf": NOW + LEEWAY_SECONDS + 1}, {"nbf": "now"}, {"exp": NOW}, {"iat": NOW - 90_000},
    ],
    ids=str,
)  # fmt: skip
def test_claims_that_name_no_caller(changes: dict[str, object]) -> None:
    """A token is refused if a claim is missing, wrong or of a wrong type, or if the token is not valid now.

    A token with too long a lifetime is refused.
    """
    assert caller(**changes) == "refused"


def test_times_have_a_leeway() -> None:
    """The times in a token have a tolerance of a minute, after which an old token counts as expired (rule A8)."""
    late = NOW - 600

    assert isinstance(caller(iat=NOW + LEEWAY_SECONDS, nbf=NOW + LEEWAY_SECONDS, exp=NOW + 700), Caller)
    assert isinstance(caller(iat=late, exp=NOW - LEEWAY_SECONDS + 1), Caller)
    assert caller(iat=late, exp=NOW - LEEWAY_SECONDS) == "expired"
    assert caller(after_us=NOW * 1_000_000 + 1) == "refused"


def test_service_accounts() -> None:
    """A service account is identified by namespace and name, and other Kubernetes subjects are refused."""
    rules = replace(RULES, name="k8s", kubernetes=True)
    found = caller(rules, sub="system:serviceaccount:shop:orders")

    assert isinstance(found, Caller)
    assert (found.principal, found.groups) == ("k8s:shop:orders", ("group:k8s:shop",))
    for subject in ("ann", "system:serviceaccount:shop", "system:serviceaccount:a:b:c"):
        assert caller(rules, sub=subject) == "refused"


def test_what_a_token_says_about_itself() -> None:
    """Issuer, algorithm (by its newest name) and key id of a token are read, and a malformed token is refused."""
    assert read_unverified() == Unverified(RULES.issuer, "ES256", "k")
    assert read_unverified({"alg": "EdDSA"}) == Unverified(RULES.issuer, "Ed25519", None)
    refused: list[tuple[object, object]] = [
        ({}, CLAIMS), ({"alg": 5}, CLAIMS), ({**HEADER, "kid": 5}, CLAIMS), ({**HEADER, "crit": ["exp"]}, CLAIMS),
        ({**HEADER, "b64": False}, CLAIMS), ({**HEADER, "enc": "A128GCM"}, CLAIMS), ({**HEADER, "cty": "JWT"}, CLAIMS),
        ([], CLAIMS), (b"?", CLAIMS), (HEADER, {}), (HEADER, {"iss": 5}), (HEADER, b"[" * 5000),
    ]  # fmt: skip
    assert [read_unverified(*each) for each in refused] == [None] * len(refused)


@given(st.text(alphabet="abcAZ09-_=.{}\u00e9", max_size=40))
def test_no_text_is_an_error(text: str) -> None:
    """A malformed token of three parts is refused, and no text raises any other error."""
    if is_signed(text):
        with pytest.raises(ProblemError):
            unverified(text)
    assert issuer_in(text) is None


def test_the_issuer_of_a_token_of_our_own() -> None:
    """The issuer of a token is read without verification, and is None if the token names no issuer."""
    assert issuer_in(f"{part(HEADER)}.{part(CLAIMS)}.x\n") == RULES.issuer
    assert issuer_in(f"{part(HEADER)}.{part({'iss': 5})}.x") is None
    assert issuer_in(f"{part(HEADER)}.{part([])}.x") is None


def test_addresses_of_keys() -> None:
    """Keys are fetched by https, or by http from this machine; any text that is not a URL is a file path."""
    allowed = ["https://a.example/keys", "http://127.0.0.1:1/", "http://[::1]/", "http://localhost/x"]
    refused = [
        "http://a.example/",
        "ftp://a.example/",
        "https://",
        "http://127.0.0.1.a.example/",
        "https://[::1/",
    ]

    assert [is_allowed(url) for url in (*allowed, *refused)] == [True] * 4 + [False] * 5
    assert [is_url(text) for text in ("https://a", "/etc/keys.json")] == [True, False]
