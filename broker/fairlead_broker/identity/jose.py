"""Keys of issuers, and signatures of tokens. Only this module uses `joserfc` (rules A15, A19).

The package is imported at the first use, because brokers without issuers do not need it. Only the public members of a
key are read.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Final

import msgspec

from fairlead_api import base64url
from fairlead_api.excerpts import shown
from fairlead_broker.credentials.claims import OLD_ALGORITHM_NAMES

KEYS_MAX: Final = 100
RSA_BITS_MIN: Final = 2048
RSA_BITS_MAX: Final = 8192
"""Maximum size of an RSA key in bits. With a larger key, verifying a signature takes milliseconds."""
_PUBLIC: Final[Mapping[str, tuple[str, ...]]] = {
    "RSA": ("n", "e"),
    "EC": ("crv", "x", "y"),
    "OKP": ("crv", "x"),
}
_RSA: Final = frozenset({"RS256", "RS384", "RS512", "PS256", "PS384", "PS512"})
_CURVES: Final = {
    "P-256": frozenset({"ES256"}),
    "P-384": frozenset({"ES384"}),
    "Ed25519": frozenset({"Ed25519"}),
}


class KeysUnreadable(ValueError):
    """Raised for a document that is not a set of keys."""


@dataclass(frozen=True, slots=True)
class VerificationKey:
    """Public key of an issuer."""

    key_id: str | None
    algorithms: frozenset[str]
    """Algorithms that fit the type of the key."""
    public: Mapping[str, Any]
    """Public members of the key, in the form in which they are stored."""
    sha256: str
    """Fingerprint of the key."""
    _key: Any

    def payload(self, text: str, algorithm: str) -> bytes | None:
        """Return the content of a token, or None if its signature is not valid."""
        from joserfc import jws  # noqa: PLC0415 - see the docstring of the module
        from joserfc.errors import JoseError, SecurityWarning  # noqa: PLC0415

        names = [algorithm, *(old for old, new in OLD_ALGORITHM_NAMES.items() if new == algorithm)]
        registry = jws.JWSRegistry(algorithms=names, strict_check_header=False)
        try:
            if len(names) == 1:
                return jws.deserialize_compact(text, self._key, registry=registry).payload
            with warnings.catch_warnings():
                # `joserfc` warns about the old name of Ed25519.
                warnings.simplefilter("ignore", SecurityWarning)
                return jws.deserialize_compact(text, self._key, registry=registry).payload
        except (JoseError, ValueError, TypeError, RecursionError):
            return None


@dataclass(frozen=True, slots=True)
class SkippedKey:
    """Entry of a set that is not used as a key."""

    key_id: str | None
    reason: str
    """Reason why the entry is skipped, without any part of the key."""


@dataclass(frozen=True, slots=True)
class KeySet:
    """Keys of a set (JWKS)."""

    keys: tuple[VerificationKey, ...]
    skipped: tuple[SkippedKey, ...]


def read_keys(document: bytes) -> KeySet:
    """Return the keys of a set (JWKS). Weak keys, malformed keys and keys for other uses are skipped.

    Raises `KeysUnreadable`.
    """
    try:
        listed = msgspec.json.decode(document)["keys"]
        entries = [dict(each) for each in listed][:KEYS_MAX]
    except (msgspec.DecodeError, KeyError, TypeError, ValueError, RecursionError) as error:
        message = "the document is not a set of keys (JWKS)"
        raise KeysUnreadable(message) from error
    found = [_key(each) for each in entries]
    return KeySet(
        tuple(each for each in found if isinstance(each, VerificationKey)),
        tuple(each for each in found if isinstance(each, SkippedKey)),
    )


def _key(entry: Mapping[str, Any]) -> VerificationKey | SkippedKey:
    from joserfc.errors import JoseError  # noqa: PLC0415 - see the docstring of the module
    from joserfc.jwk import import_key  # noqa: PLC0415

    given = entry.get("kid")
    key_id = given if isinstance(given, str) else None
    fitting = _algorithms(entry)
    reason = _flaw(entry, fitting)
    if reason is not None:
        return SkippedKey(key_id, reason)
    kind = str(entry["kty"])
    public: dict[str, Any] = {"kty": kind, **{name: entry.get(name) for name in _PUBLIC[kind]}}
    try:
        key = import_key(public)
    except (JoseError, ValueError, TypeError):
        return SkippedKey(key_id, "the key is malformed")
    kept = {name: entry[name] for name in ("kid", "alg") if name in entry}
    fingerprint = sha256(msgspec.json.encode(public, order="sorted")).hexdigest()
    return VerificationKey(key_id, fitting, {**public, **kept}, fingerprint, key)


def _algorithms(entry: Mapping[str, Any]) -> frozenset[str]:
    """Return the accepted algorithms that fit the type, the curve and the member `alg` of an entry."""
    curve = entry.get("crv")
    fitting: frozenset[str] = frozenset()
    if entry.get("kty") == "RSA":
        fitting = _RSA
    elif isinstance(curve, str):
        fitting = _CURVES.get(curve, fitting)
    named = entry.get("alg")
    if isinstance(named, str):
        return fitting & {OLD_ALGORITHM_NAMES.get(named, named)}
    return frozenset() if "alg" in entry else fitting


def _flaw(entry: Mapping[str, Any], fitting: frozenset[str]) -> str | None:
    """Return the reason why an entry cannot be a key, from its members other than the key, or None."""
    kind, use = entry.get("kty"), entry.get("use", "sig")
    if not isinstance(kind, str) or kind not in _PUBLIC:
        return f"the type {shown(kind)} is not supported"
    if not isinstance(entry.get("kid"), str | None):
        return "the key id is not text"
    if use != "sig":
        return f"the use is {shown(use)} instead of sig"
    if not fitting:
        curve = f", curve {shown(entry.get('crv'))}" if kind != "RSA" else ""
        named = f", algorithm {shown(entry['alg'])}" if "alg" in entry else ""
        return f"no accepted algorithm fits the key: type {kind}{curve}{named}"
    if kind == "RSA" and not RSA_BITS_MIN <= (bits := _bits(entry.get("n"))) <= RSA_BITS_MAX:
        return f"the RSA key has {bits} bits; keys of {RSA_BITS_MIN} to {RSA_BITS_MAX} bits are accepted"
    return None


def _bits(text: object) -> int:
    """Return the number of bits in an integer of a key, or 0 if the text is not an integer."""
    try:
        data = base64url.decoded(str(text))
    except ValueError:
        return 0
    return int.from_bytes(data).bit_length()
