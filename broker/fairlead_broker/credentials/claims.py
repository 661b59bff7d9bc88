"""Signed tokens: the issuer and key id before verification, and the caller after it (rules A14 to A18).

The package `identity` reads the unverified statements of a token, verifies the signature, and then gets the caller. The
module reads no clock: the time is an argument. The module must not depend on keys or cryptography.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NoReturn

import msgspec

from fairlead_api import base64url
from fairlead_broker.access.caller import Caller, CallerSource
from fairlead_broker.credentials.bearer import Refused, unauthenticated

ALGORITHMS: Final = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "Ed25519")
"""Accepted signature algorithms. Algorithms with shared secrets are not accepted."""
OLD_ALGORITHM_NAMES: Final[Mapping[str, str]] = {"EdDSA": "Ed25519"}
LEEWAY_SECONDS: Final = 60
"""Seconds of clock difference that are allowed for each time in a token (rule A8)."""
GROUPS_MAX: Final = 64
PARTS: Final = 3
_NAME: Final = re.compile(r"[!-)+\-./0-~]{1,200}")
_SERVICE_ACCOUNT: Final = re.compile(r"system:serviceaccount:([^:]+):([^:]+)")
_REFUSED_HEADERS: Final = frozenset({"crit", "b64", "enc", "zip"})
"""Header members that change the signed bytes or the meaning of the content. A token with any of these header members
is refused.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class IssuerRules:
    """Requirements for the tokens of an issuer."""

    name: str
    """Name of the issuer in principals."""
    issuer: str
    """Exact value of the claim `iss`."""
    audience: str
    """Value that the claim `aud` must equal or contain."""
    principal_claim: str = "sub"
    groups_claim: str | None = None
    algorithms: frozenset[str] = frozenset(ALGORITHMS)
    token_seconds_max: int = 86_400
    """Maximum number of seconds between `iat` and `exp`."""
    kubernetes: bool = False
    """Whether the issuer is a Kubernetes API server, which issues tokens of service accounts (rule A18)."""


@dataclass(frozen=True, slots=True)
class Unverified:
    """Unverified statements of a token about its issuer, algorithm and key."""

    issuer: str
    algorithm: str
    key_id: str | None


def is_signed(text: str) -> bool:
    """Return whether a token has the form of a signed token (rule A4)."""
    return text.count(".") == PARTS - 1


def unverified(text: str) -> Unverified:
    """Return issuer, algorithm and key id of a token. Raises `unauthenticated`."""
    header_text, claims_text, _ = text.split(".")
    header, claims = _object(header_text), _object(claims_text)
    algorithm, key_id, issuer = header.get("alg"), header.get("kid"), claims.get("iss")
    if not isinstance(algorithm, str) or not isinstance(issuer, str) or not isinstance(key_id, str | None):
        _refuse()
    if not _REFUSED_HEADERS.isdisjoint(header) or str(header.get("cty", "")).lower() == "jwt":
        _refuse()
    return Unverified(issuer, OLD_ALGORITHM_NAMES.get(algorithm, algorithm), key_id)


def caller_of(
    rules: IssuerRules, payload: bytes, key_sha256: str, now_us: int, valid_after_us: int
) -> Caller:
    """Return the caller of a token whose signature is valid. Raises `unauthenticated`.

    `key_sha256`: fingerprint of the key that signed the token. `valid_after_us`: tokens that were issued before this
    time are refused.
    """
    claims = _decoded(payload)
    audience = claims.get("aud")
    audiences = audience if isinstance(audience, list) else [audience]
    if claims.get("iss") != rules.issuer or rules.audience not in audiences:
        _refuse()
    expires, issued = _time(claims, "exp"), _time(claims, "iat")
    begins = _time(claims, "nbf") if "nbf" in claims else issued
    latest = now_us / 1e6 + LEEWAY_SECONDS
    if issued > latest or begins > latest or not 0 < expires - issued <= rules.token_seconds_max:
        _refuse()
    if issued * 1e6 < valid_after_us:
        _refuse()
    if expires + LEEWAY_SECONDS <= now_us / 1e6:
        raise unauthenticated(Refused.EXPIRED)
    principal, groups = _names(rules, claims)
    return Caller(
        principal=principal,
        groups=groups,
        source=CallerSource.ISSUER,
        issuer=rules.name,
        key_sha256=key_sha256,
        issued_us=int(issued * 1e6),
        expires_us=int(expires * 1e6),
        leeway_us=LEEWAY_SECONDS * 1_000_000,
    )


def issuer_in(text: str) -> str | None:
    """Return the issuer named in a token, such as the broker's service account token; None if there is none."""
    parts = text.strip().split(".")
    if len(parts) != PARTS:
        return None
    try:
        issuer = _decoded(base64url.decoded(parts[1])).get("iss")
    except ValueError:
        return None
    return issuer if isinstance(issuer, str) else None


def _names(rules: IssuerRules, claims: Mapping[str, object]) -> tuple[str, tuple[str, ...]]:
    """Return the principal and the groups that the claims name (rules A16, A18)."""
    name = claims.get(rules.principal_claim)
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        _refuse()
    if rules.kubernetes:
        account = _SERVICE_ACCOUNT.fullmatch(name)
        if account is None:
            _refuse()
        return f"{rules.name}:{account[1]}:{account[2]}", (f"group:{rules.name}:{account[1]}",)
    groups = claims.get(rules.groups_claim) if rules.groups_claim is not None else None
    listed = groups if isinstance(groups, list) else []
    named = [each for each in listed if isinstance(each, str) and _NAME.fullmatch(each)]
    return f"{rules.name}:{name}", tuple(f"group:{rules.name}:{each}" for each in named[:GROUPS_MAX])


def _time(claims: Mapping[str, object], name: str) -> float:
    """Return a claim in seconds since 1970."""
    value = claims.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        _refuse()
    if not 0 <= value < 2**40:
        _refuse()
    return float(value)


def _object(part: str) -> Mapping[str, object]:
    try:
        return _decoded(base64url.decoded(part))
    except ValueError:
        _refuse()


def _decoded(data: bytes) -> Mapping[str, object]:
    """Return the members of a JSON object. Raises ValueError."""
    try:
        value = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        message = "not JSON"
        raise ValueError(message) from error
    if not isinstance(value, dict):
        message = "not an object"
        raise ValueError(message)  # noqa: TRY004 - the content is invalid, not an argument's type
    return value


def _refuse() -> NoReturn:
    raise unauthenticated(Refused.REFUSED)
