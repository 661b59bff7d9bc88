"""Keys of issuers, and signatures of tokens. Only this module uses `joserfc` (rules A15, A19).

The package is imported at the first use, because brokers without issuers do not need it. Only the public members of a
key are read.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Final

import msgspec

from fairlead_api import base64url
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


def read_keys(document: bytes) -> Sequence[VerificationKey]:
    """Return the usable keys of a set (JWKS). Weak keys and keys for other uses are left out.

    Raises `KeysUnreadable`.
    """
    try:
        listed = msgspec.json.decode(document)["keys"]
        entries = [dict(each) for each in listed][:KEYS_MAX]
    except (msgspec.DecodeError, KeyError, TypeError, ValueError, RecursionError) as error:
        message = "the document is not a set of keys (JWKS)"
        raise KeysUnreadable(message) from error
    return tuple(key for each in entries if (key := _key(each)) is not None)


def _key(entry: Mapping[str, Any]) -> VerificationKey | None:
    from joserfc.errors import JoseError  # noqa: PLC0415 - see the docstring of the module
    from joserfc.jwk import import_key  # noqa: PLC0415

    kind, key_id = str(entry.get("kty")), entry.get("kid")
    if kind not in _PUBLIC or not isinstance(key_id, str | None) or entry.get("use", "sig") != "sig":
        return None
    public: dict[str, Any] = {"kty": kind, **{name: entry.get(name) for name in _PUBLIC[kind]}}
    fitting = _RSA if kind == "RSA" else _CURVES.get(str(entry.get("crv")), frozenset())
    if "alg" in entry:
        named = str(entry["alg"])
        fitting &= {OLD_ALGORITHM_NAMES.get(named, named)}
    if not fitting or (kind == "RSA" and not RSA_BITS_MIN <= _bits(public["n"]) <= RSA_BITS_MAX):
        return None
    try:
        key = import_key(public)
    except (JoseError, ValueError, TypeError):
        return None
    kept = {name: entry[name] for name in ("kid", "alg") if name in entry}
    fingerprint = sha256(msgspec.json.encode(public, order="sorted")).hexdigest()
    return VerificationKey(key_id, fitting, {**public, **kept}, fingerprint, key)


def _bits(text: object) -> int:
    """Return the number of bits in an integer of a key, or 0 if the text is not an integer."""
    try:
        data = base64url.decoded(str(text))
    except ValueError:
        return 0
    return int.from_bytes(data).bit_length()
