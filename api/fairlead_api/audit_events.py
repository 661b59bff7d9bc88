"""Records of the audit log: one JSON line for each refusal and each change (rules U1 to U3).

The broker writes the records. A record names a caller and its operation; it never contains a token, a secret, a hash, a
header, a body, or a key or value of a record. This module must not depend on how records are written.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

import msgspec

AUDIT_LOGGER: Final = "fairlead.audit"
"""Name of the logger of the audit log."""
AUDIT_TOPIC: Final = "__audit"
"""Name of the topic for audit records; the key `audit.topic.enable` of the cluster turns the topic on."""
NAME_LENGTH_MAX: Final = 249
"""Maximum length of a name in a record; longer names are truncated."""


class AuditEvent(StrEnum):
    """Kind of event that a record reports."""

    AUTHENTICATION_FAILED = "authentication_failed"
    """A token was not accepted, or a caller of the peer listener did not prove that it is a broker."""
    DENIED = "denied"
    """An operation was refused."""
    WOULD_BE_DENIED = "would_be_denied"
    """An operation was executed that `enforce` mode would refuse."""
    ADMIN = "admin"
    """A call that changes the cluster was answered."""
    SECURITY_CHANGED = "security_changed"
    """A call that changes tokens, ACLs, quotas or security configuration keys was answered."""
    CERTIFICATE_RELOADED = "certificate_reloaded"
    """A listener began to use a new certificate."""
    ISSUER_KEYS_CHANGED = "issuer_keys_changed"
    """The keys of an issuer of signed tokens changed."""
    CONNECTION_CUT = "connection_cut"
    """Connections were closed because of the behaviour of their clients."""


class AuditOutcome(StrEnum):
    """Outcome of an audited event."""

    REFUSED = "refused"
    """Nothing was done, because the caller is not known or not allowed."""
    OBSERVED = "observed"
    """The operation was executed, although `enforce` mode would have refused it."""
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    """The call failed for a reason other than a missing permission."""


class AuditRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One line of the audit log. Fields without a value are left out."""

    at: str
    """Time of the event. In a record that counts several refusals, the time of the last refusal."""
    cluster_id: str
    broker: int
    event: AuditEvent
    outcome: AuditOutcome
    principal: str | None = None
    groups: tuple[str, ...] = ()
    token_id: str | None = None
    """Id of the caller's API token."""
    issuer: str | None = None
    """Name of the issuer of the caller's signed token."""
    kid: str | None = None
    """Id of the issuer's key with which the token was verified."""
    address: str | None = None
    """Address of the client."""
    route: str | None = None
    """Name of the call in the route table, or `kafka:` and the name of an API of Kafka's protocol."""
    operation: str | None = None
    resource: str | None = None
    status: int | None = None
    """HTTP status of the answer."""
    problem: str | None = None
    """Code of the problem in the answer to the call."""
    traceparent: str | None = None
    """Value of the header `traceparent`, which connects the request with a trace."""
    count: int = 1
    """Number of equal refusals since the previous record of the same refusal."""
    change: dict[str, object] | None = None
    """The changed object with its new values, and with its previous values if they are known."""


def cut(name: str) -> str:
    """Return a name, truncated to the maximum length in a record."""
    return name if len(name) <= NAME_LENGTH_MAX else name[:NAME_LENGTH_MAX]
