"""Callers of requests, in the form that access decisions use: a principal and its groups."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from fairlead_api.principals import ANONYMOUS


class CallerSource(StrEnum):
    """Method by which a caller was authenticated."""

    NONE = "none"
    API_TOKEN = "api_token"  # noqa: S105 - the name of a source
    ISSUER = "issuer"
    """A signed token of an issuer."""
    CERTIFICATE = "certificate"
    """A client certificate that the listener has verified."""
    PEER = "peer"
    """The broker that forwarded the call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """Caller of a request."""

    principal: str
    groups: tuple[str, ...] = ()
    source: CallerSource = CallerSource.NONE
    token_id: str | None = None
    expires_us: int | None = None
    """Wall-clock time in microseconds at which the token expires, or None for a token that does not expire."""
    leeway_us: int = 0
    """Microseconds for which an expired token is still accepted, because the clocks of its issuer and of brokers differ
    (rule A8).
    """
    issuer: str | None = None
    """Name of the issuer that signed the token."""
    key_sha256: str | None = None
    """Fingerprint of the key that verified a signed token."""
    key_id: str | None = None
    """Id (`kid`) of the key that verified a signed token, or None for a key without an id."""
    issued_us: int | None = None
    """Wall-clock time in microseconds at which the token was created."""

    @property
    def names(self) -> tuple[str, ...]:
        """Principal and groups, which are matched against the principal patterns of ACLs."""
        return (self.principal, *self.groups)

    @property
    def accepted_until_us(self) -> int | None:
        """Wall-clock time in microseconds from which the token is refused, or None if it does not expire."""
        return None if self.expires_us is None else self.expires_us + self.leeway_us

    @property
    def is_anonymous(self) -> bool:
        """Whether the caller sent neither a token nor a certificate with a name."""
        return self.principal == ANONYMOUS


NOBODY = Caller(principal=ANONYMOUS)
"""The caller of a request without a token."""
