"""Bodies of the calls about tokens, ACLs and the security of the cluster (section 3.4 of the security contract)."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from fairlead_api.access_needs import ALL_OPERATIONS, SINGLE_KINDS, SINGLE_NAME, Kind, Operation
from fairlead_api.bodies.json_bodies import Request
from fairlead_api.bodies.metadata import Answer
from fairlead_api.excerpts import shortened, shown
from fairlead_api.patterns import is_name_pattern
from fairlead_api.principals import check_principal_pattern, check_user
from fairlead_api.problems import ProblemError

LIFE_SECONDS_DEFAULT = 90 * 86_400
LIFE_SECONDS_MAX = 100 * 365 * 86_400
NOTE_LENGTH_MAX = 200
OWNER_LENGTH_MAX = 300
Owner = Annotated[str, Meta(min_length=1, max_length=OWNER_LENGTH_MAX)]


class CreateTokenRequest(Request, frozen=True, kw_only=True):
    """Body of `POST /v1/tokens`; `expires_in_seconds` null means that the token never expires."""

    principal: str
    expires_in_seconds: Annotated[int, Meta(ge=1, le=LIFE_SECONDS_MAX)] | None = LIFE_SECONDS_DEFAULT
    note: Annotated[str, Meta(max_length=NOTE_LENGTH_MAX)] = ""
    owner: Owner | None = None
    """Program that manages the token; a token with an owner is revoked only with `force`."""

    def __post_init__(self) -> None:
        """Raise `invalid_principal` unless the principal is `user:NAME`."""
        check_user(self.principal)


class TokenDescription(Answer, frozen=True, kw_only=True):
    """An API token without its secret."""

    token_id: str
    principal: str
    created_at: str
    created_by: str
    expires_at: str | None
    note: str
    owner: str | None


class CreatedToken(Answer, frozen=True, kw_only=True):
    """Answer to `POST /v1/tokens`, the only answer that contains the text of the token."""

    token: str
    token_id: str
    principal: str
    expires_at: str | None
    applied_everywhere: bool


class Applied(Answer, frozen=True, kw_only=True):
    """Answer to a removal: whether all running brokers have applied the removal."""

    applied_everywhere: bool


class AclRequest(Request, frozen=True, kw_only=True):
    """Body of `POST /v1/acls`."""

    effect: Literal["allow", "deny"] = "allow"
    principal: str
    operations: Annotated[tuple[str, ...], Meta(min_length=1, max_length=7)]
    kind: Kind
    pattern: str
    owner: Owner | None = None
    """Program that manages the ACL; an ACL with an owner is removed only with `force`."""

    def __post_init__(self) -> None:
        """Raise `invalid_principal` or `invalid_acl` for a value that is not allowed."""
        check_principal_pattern(self.principal)
        allowed = (*Operation, ALL_OPERATIONS)
        for operation in self.operations:
            if operation not in allowed:
                raise _invalid("operations", operation, ", ".join(allowed))
        check_pattern(self.kind, self.pattern)


class AclDescription(Answer, frozen=True, kw_only=True):
    """A stored ACL."""

    acl_id: str
    effect: str
    principal: str
    operations: list[str]
    kind: str
    pattern: str
    created_at: str
    created_by: str
    owner: str | None


class CreatedAcl(AclDescription, frozen=True, kw_only=True):
    """Answer to `POST /v1/acls`."""

    applied_everywhere: bool


class CheckRequest(Request, frozen=True, kw_only=True):
    """Body of `POST /v1/acls:check`; without a principal, the access of the caller is checked."""

    principal: str | None = None
    groups: Annotated[tuple[str, ...], Meta(max_length=64)] = ()
    operation: Operation
    kind: Kind
    name: str


class CheckAnswer(Answer, frozen=True, kw_only=True):
    """Decision and its reason: `superuser`, `mode`, the id of the deciding ACL, or `no ACL allows it`."""

    allowed: bool
    because: str


class OwnLimit(Answer, frozen=True, kw_only=True):
    """Limit that applies to the caller."""

    limit: str
    value: int
    """Value for the whole cluster."""
    subject: str
    """Principals to which the quota applies."""
    shared: bool
    """Whether the principals to which the quota applies share the limit."""
    use: float
    """Usage by the caller, or by all principals that share the limit, as known to the answering broker."""


class WhoAmI(Answer, frozen=True, kw_only=True):
    """Identity of the caller, as determined by the answering broker."""

    principal: str
    groups: list[str]
    source: str
    token_id: str | None
    expires_at: str | None
    superuser: bool
    mode: str
    limits: list[OwnLimit] = msgspec.field(default_factory=list)
    """Quota limits that apply to the caller; empty in `open` mode."""


class DeniedDescription(Answer, frozen=True, kw_only=True):
    """Operation that `enforce` mode would refuse, with the number of its occurrences."""

    principal: str
    operation: str
    resource: str
    count: int


class IssuerDescription(Answer, frozen=True, kw_only=True):
    """Issuer of signed tokens, in the answer to `GET /v1/security`."""

    name: str
    """Name of the issuer in principals."""
    issuer: str
    """Value of the `iss` claim."""
    keys: int
    """Number of usable keys."""
    fetched_at: str | None
    """Time of the last successful fetch of the keys."""
    failing: str | None
    """Reason why the last fetch of the keys failed; null if the fetch succeeded."""


class CertificateDescription(Answer, frozen=True, kw_only=True):
    """Certificate that a broker uses now, in the answer to `GET /v1/security`."""

    broker: int
    listener: Literal["data", "peer"]
    certificate_sha256: str
    """SHA-256 of the broker's certificate in lower-case hexadecimal digits."""
    not_after: str
    authorities_sha256: list[str]
    """SHA-256 of the certificates of the authorities in the broker's `ca.crt`."""
    in_use: bool
    """Whether the listener uses TLS. A broker can load the certificate of its peer listener before it turns TLS on."""


class SecurityStatus(Answer, frozen=True, kw_only=True):
    """Answer to `GET /v1/security`: the state of the answering broker, and certificates and denials of all brokers."""

    mode: str
    floor: str
    superusers: list[str]
    tokens: int
    acls: int
    would_be_denied: list[DeniedDescription]
    """Operations that `enforce` mode would refuse. In `observe` mode, the counts of all running brokers are added; a
    broker that another broker asks, or that may not forward the call, answers with its own counts.
    """
    silent_brokers: list[int] = msgspec.field(default_factory=list)
    """Running brokers that did not answer, whose counts are missing from `would_be_denied`."""
    issuers: list[IssuerDescription] = msgspec.field(default_factory=list)
    certificates: list[CertificateDescription] = msgspec.field(default_factory=list)


def check_pattern(kind: Kind, pattern: str) -> None:
    """Raise `invalid_acl` unless a kind allows this pattern of names."""
    if kind in SINGLE_KINDS and pattern != SINGLE_NAME:
        raise _invalid("pattern", pattern, f"{SINGLE_NAME}, because {kind} has no names")
    if not is_name_pattern(pattern):
        raise _invalid("pattern", pattern, "a name, a prefix that ends in '*', or '*'")


def _invalid(field: str, value: str, allowed: str) -> ProblemError:
    return ProblemError(
        "invalid_acl",
        f"{field} {shown(value)} is not allowed; expected {allowed}",
        data={"field": field, "value": shortened(value), "allowed": allowed},
    )
