"""Checks of signed tokens: forged tokens, unknown keys, and the limit on checks (rules A6, A15, A17; proof V5)."""

from __future__ import annotations

import asyncio
import hmac
import json
import random
import time
from collections.abc import Callable
from typing import Any, Final

import pytest
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from fairlead_api.problems import ProblemError
from fairlead_broker.clock import SystemClock
from fairlead_broker.credentials.claims import IssuerRules
from fairlead_broker.identity import signed_tokens
from fairlead_broker.identity.issuer_keys import (
    ATTEMPT_SECONDS_MIN,
    HELD_SECONDS,
    UNKNOWN_MAX,
    UNKNOWN_SECONDS,
    IssuerKeys,
)
from fairlead_broker.identity.jose import KeysUnreadable, read_keys
from fairlead_broker.identity.signed_tokens import CallerPending, SignedTokens
from issuer_kit import AUDIENCE, TestIssuer, encoded, key_of

ISSUER: Final = TestIssuer()
RSA: Final = TestIssuer("https://rsa.example", "RSA", "RS256")
STRANGER: Final = TestIssuer()


def keys_of(issuer: TestIssuer, name: str = "corp", **rules: Any) -> IssuerKeys:
    """Return the fetched keys of an issuer."""
    keys = IssuerKeys(IssuerRules(name=name, issuer=issuer.issuer, audience=AUDIENCE, **rules))
    keys.replace(read_keys(issuer.jwks).keys, int(time.time() * 1e6))
    return keys


def tokens(**rules: Any) -> SignedTokens:
    """Return the signed tokens of two issuers whose keys cannot be fetched again."""
    issuers = {"corp": keys_of(ISSUER, **rules), "rsa": keys_of(RSA, "rsa", **rules)}
    return SignedTokens(issuers, lambda *_: None, SystemClock())


def reason(signed: SignedTokens, text: str) -> str | None:
    """Return the reason why a token is refused, or None if the token is accepted."""
    try:
        signed.caller(text, 0, waited=True)
    except ProblemError as problem:
        return str(problem.data.get("reason", problem.code))
    return None


def with_header(token: str, **header: object) -> str:
    """Return a token whose header was replaced after it was signed."""
    _, claims, signature = token.split(".")
    told = {"alg": "ES256", "kid": ISSUER.key.kid} | header
    return f"{encoded({k: v for k, v in told.items() if v is not None})}.{claims}.{signature}"


def by_public_key(algorithm: str, form: Encoding) -> str:
    """Return a token that is signed with HMAC, using a public key of the issuer as the secret."""
    secret = RSA.key.public_key.public_bytes(form, PublicFormat.SubjectPublicKeyInfo)
    content = f"{encoded({'alg': algorithm, 'kid': RSA.key.kid})}.{encoded(RSA.claims())}"
    digest = hmac.digest(secret, content.encode(), algorithm.replace("HS", "sha"))
    return f"{content}.{encoded(digest)}"


def changed(token: str, part: int, change: Callable[[str], str]) -> str:
    """Return a token with one part changed."""
    parts = token.split(".")
    parts[part] = change(parts[part])
    return ".".join(parts)


def embedded(**header: object) -> str:
    """Return a token that is signed by a foreign key, and whose header contains that key or its address."""
    return STRANGER.token({"kid": ISSUER.key.kid, **header})


FORGERIES: Final[dict[str, Callable[[], str]]] = {
    "no algorithm": lambda: changed(with_header(ISSUER.token(), alg="none"), 2, lambda _: ""),
    "no algorithm, in capitals": lambda: changed(with_header(ISSUER.token(), alg="NONE"), 2, lambda _: ""),
    "no algorithm with a signature": lambda: with_header(ISSUER.token(), alg="none"),
    "missing algorithm": lambda: with_header(ISSUER.token(), alg=None),
    "algorithm in small letters": lambda: with_header(ISSUER.token(), alg="es256"),
    "HS256 with the public key in PEM": lambda: by_public_key("HS256", Encoding.PEM),
    "HS512 with the public key in DER": lambda: by_public_key("HS512", Encoding.DER),
    "algorithm of another key type": lambda: with_header(ISSUER.token(), alg="RS256"),
    "algorithm of another curve": lambda: with_header(ISSUER.token(), alg="ES384"),
    "PS256 for RS256": lambda: RSA.token() and with_header(RSA.token(), alg="PS256", kid=RSA.key.kid),
    "key of a stranger": lambda: STRANGER.token({"kid": ISSUER.key.kid}),
    "embedded key": lambda: embedded(jwk=STRANGER.key.as_dict(private=False)),
    "address of keys": lambda: embedded(jku="https://evil.example/keys"),
    "address of certificates": lambda: embedded(x5u="https://evil.example/chain"),
    "embedded chain": lambda: embedded(x5c=["MIIB"]),
    "critical header": lambda: with_header(ISSUER.token(), crit=["exp"], exp=1),
    "unencoded content": lambda: with_header(ISSUER.token(), b64=False, crit=["b64"]),
    "compressed content": lambda: with_header(ISSUER.token(), zip="DEF"),
    "nested token": lambda: with_header(ISSUER.token(), cty="JWT"),
    "key of another issuer": lambda: RSA.token(iss=ISSUER.issuer),
    "unknown key id": lambda: ISSUER.token({"kid": "other"}),
    "key id as a path": lambda: with_header(ISSUER.token(), kid="../../dev/null"),
    "key id as a number": lambda: with_header(ISSUER.token(), kid=1),
    "header of another token": lambda: with_header(ISSUER.token()),
    "claims of another token": lambda: changed(ISSUER.token(), 1, lambda _: encoded(ISSUER.claims(sub="root"))),
    "signature with zeros": lambda: changed(ISSUER.token(), 2, lambda _: encoded(bytes(64))),
    "empty signature": lambda: changed(ISSUER.token(), 2, lambda _: ""),
    "signature cut": lambda: ISSUER.token()[:-4],
    "signature with padding": lambda: ISSUER.token() + "==",
    "parts with spaces": lambda: changed(ISSUER.token(), 1, lambda text: text[:9] + " " + text[9:]),
    "header nested deeply": lambda: changed(ISSUER.token(), 0, lambda _: encoded(b'{"a":' * 1500)),
    "array of claims": lambda: changed(ISSUER.token(), 1, lambda _: encoded([ISSUER.claims()])),
}  # fmt: skip


@pytest.mark.parametrize("forgery", FORGERIES)
def test_forged_tokens_are_refused(forgery: str) -> None:
    """Every forged token is refused."""
    assert reason(tokens(), FORGERIES[forgery]()) == "refused"


def test_good_tokens_of_every_algorithm() -> None:
    """A valid token of each algorithm is accepted, with and without a key id, and with both names of Ed25519."""
    for kind, algorithm in [
        ("RSA", "RS256"), ("RSA", "RS512"), ("RSA", "PS384"), ("P-256", "ES256"), ("P-384", "ES384"),
        ("Ed25519", "Ed25519"), ("Ed25519", "EdDSA"),
    ]:  # fmt: skip
        issuer = TestIssuer(f"https://{algorithm}.example", kind, algorithm)
        signed = SignedTokens({"corp": keys_of(issuer)}, lambda *_: None, SystemClock())

        assert [reason(signed, each) for each in (issuer.token(), issuer.token({"kid": None}))] == [
            None,
            None,
        ]
        assert signed.caller(issuer.token(), 0, waited=False).principal == "corp:ann"


def test_changed_tokens_are_refused() -> None:
    """A token with one changed character is refused."""
    chance, signed, good = random.Random(1), tokens(), ISSUER.token()
    alphabet = "ABCXYZabcxyz0189-_.= "
    for _ in range(400):
        at = chance.randrange(len(good) - 1)
        text = good[:at] + chance.choice(alphabet) + good[at + 1 :]
        if text != good and text.count(".") == 2:
            assert reason(signed, text) == "refused", text


def test_only_configured_algorithms_are_accepted() -> None:
    """A token with a valid signature is refused if its algorithm is not configured for the issuer."""
    assert reason(tokens(algorithms=frozenset({"RS256"})), ISSUER.token()) == "refused"
    assert reason(tokens(), ISSUER.token(iss="https://nobody.example")) == "refused"
    assert [tokens().source_of(text) for text in (ISSUER.token(), "a.b.c")] == ["corp", "none"]


def test_weak_and_foreign_keys_are_left_out() -> None:
    """Only the valid public signature keys in a key set are used.

    Short RSA keys, unsupported curves, keys for other uses, secrets and malformed entries are skipped. The reason for
    each skipped entry has its values, but no part of the key.
    """
    good, short = key_of("P-256", "good"), key_of("RSA", "short").as_dict(private=False)
    public, size = good.as_dict(private=False), encoded(b"\x80" + bytes(127))
    entries: list[tuple[dict[str, Any], str | None, str]] = [
        ({**short, "n": size}, "short", "1024 bits"),
        ({**short, "n": "!"}, "short", "0 bits"),
        (key_of("secp256k1", "koblitz").as_dict(private=False), "koblitz", "secp256k1"),
        ({**public, "use": "enc"}, "good", "enc"),
        ({**public, "use": ["sig"]}, "good", "array"),
        ({**public, "alg": "RS256"}, "good", "RS256"),
        ({**public, "alg": 5}, "good", "algorithm 5"),
        ({**public, "crv": ["P-256"]}, "good", "array"),
        ({**public, "kid": 5}, None, "not text"),
        ({**public, "x": "!"}, "good", "malformed"),
        ({"kty": "oct", "k": "AAAA", "kid": "secret"}, "secret", "oct"),
        ({"kty": ["EC"]}, None, "array"),
        ({"kty": "EC"}, None, "null"),
        ({}, None, "null"),
    ]
    listed = [*(entry for entry, _, _ in entries), {**good.as_dict(private=True), "kid": "kept"}]
    found = read_keys(json.dumps({"keys": listed}).encode())
    [kept] = found.keys

    assert (kept.key_id, set(kept.public)) == ("kept", {"kty", "crv", "x", "y", "kid"})
    assert [each.key_id for each in found.skipped] == [key_id for _, key_id, _ in entries]
    for skipped, (_, _, value) in zip(found.skipped, entries, strict=True):
        assert value in skipped.reason
        assert not any(part in skipped.reason for part in (size, public["x"], public["y"], "AAAA"))
    for document in (b"", b"[]", b'{"keys": 5}', b'{"keys": [5]}'):
        with pytest.raises(KeysUnreadable):
            read_keys(document)


def test_a_key_that_goes_takes_its_callers_along() -> None:
    """Replacing the keys of an issuer raises the revision, unless the new keys equal the old ones.

    Tokens signed by a removed key are no longer accepted, and all keys expire a day after the last successful fetch.
    """
    keys = keys_of(ISSUER)
    signed = SignedTokens({"corp": keys}, lambda *_: None, SystemClock())
    caller = signed.caller(ISSUER.token(), 0, waited=False)
    more = json.dumps(
        {"keys": [*json.loads(ISSUER.jwks)["keys"], *json.loads(STRANGER.jwks)["keys"]]}
    ).encode()
    revisions = [signed.revision]
    for document in (ISSUER.jwks, more, RSA.jwks):
        keys.replace(read_keys(document).keys, int(time.time() * 1e6))
        revisions.append(signed.revision)

    assert revisions == [1, 1, 2, 3]
    assert not signed.holds(caller)
    assert keys.find(RSA.key.kid, int((time.time() + HELD_SECONDS + 1) * 1e6)) is None
    assert signed.revision == 4


def test_unknown_key_ids_cause_few_fetches() -> None:
    """Unknown key ids cause at most one fetch per ten seconds, and the same key id at most one per minute."""
    keys = keys_of(ISSUER)
    first = keys.wants_fetch("a", 100)
    keys.attempt(100)
    keys.note_unknown("a", 100)
    for number in range(UNKNOWN_MAX - 1):
        keys.note_unknown(f"x{number}", 100)

    assert first
    assert not keys.wants_fetch("b", 100 + ATTEMPT_SECONDS_MIN - 1)
    assert keys.wants_fetch("b", 100 + ATTEMPT_SECONDS_MIN)
    assert not keys.wants_fetch("a", 100 + UNKNOWN_SECONDS - 1)
    keys.note_unknown("one too many", 100)
    assert keys.wants_fetch("a", 100 + UNKNOWN_SECONDS - 1)


def test_a_failed_fetch_does_not_make_a_key_unknown() -> None:
    """After a failed fetch, the next token with an unknown key causes another fetch as soon as fetches may follow."""
    keys = keys_of(ISSUER)
    signed = SignedTokens({"corp": keys}, lambda *_: None, SystemClock())
    text, now = with_header(ISSUER.token(), kid="new"), SystemClock().monotonic()
    keys.fail("no answer")
    refused = reason(signed, text)
    after_failure = keys.wants_fetch("new", now)
    keys.replace(keys.keys, int(time.time() * 1e6))
    reason(signed, text)

    assert refused == "refused"
    assert (after_failure, keys.wants_fetch("new", now)) == (True, False)


async def test_a_call_waits_for_a_fetch_and_for_its_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call whose token has an unknown key waits for a fetch.

    Above the limit of checks per second, a call waits once, and is then throttled.
    """
    fetch = asyncio.get_running_loop().create_task(asyncio.sleep(0))  # noqa: TID251 - a task that ends at once
    signed = SignedTokens({"corp": keys_of(ISSUER)}, lambda *_: fetch, SystemClock())
    with pytest.raises(CallerPending) as pending:
        signed.caller(ISSUER.token({"kid": "new"}), 0, waited=False)
    await pending.value.wait()
    monkeypatch.setattr(signed_tokens, "CHECKS_PER_SECOND_MAX", 0)
    with pytest.raises(CallerPending) as turn:
        signed.caller(ISSUER.token(), 0, waited=False)
    await turn.value.wait()

    assert fetch.done()
    assert reason(signed, ISSUER.token()) == "throttled"
