"""The values of the keys under `meta/security/`: API tokens, ACLs and quotas (rules A11, Z4, Q1).

Releases of feature level 1 do not know these keys. New fields require a new feature level. The module is pure.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from fairlead_api.access_needs import Kind
from fairlead_api.identifiers import TimestampUs
from fairlead_broker.registry.records import Record


class TokenRecord(Record, frozen=True, kw_only=True):
    """Value of `meta/security/tokens/<id>`. The secret itself is stored nowhere."""

    principal: str
    secret_sha256: str
    """SHA-256 of the secret, in lower-case hexadecimal digits."""
    created_us: TimestampUs
    created_by: str
    """Principal that created the token."""
    expires_us: TimestampUs | None = None
    note: str = ""
    owner: str | None = None
    """Program that manages the record, or None if no program manages it."""


class AclRecord(Record, frozen=True, kw_only=True):
    """Value of `meta/security/acls/<id>`. The id of an ACL is derived from the first five fields of its record."""

    effect: Literal["allow", "deny"]
    principal: str
    operations: tuple[str, ...]
    """Operations in alphabetical order, or the word `all`."""
    kind: Kind
    pattern: str
    created_us: TimestampUs
    created_by: str
    owner: str | None = None


class QuotaRecord(Record, frozen=True, kw_only=True):
    """Value of `meta/security/quotas/<subject>`. The quota sets only the limits that it names."""

    each: dict[str, int] = msgspec.field(default_factory=dict)
    """Limits for each individual principal."""
    shared: dict[str, int] = msgspec.field(default_factory=dict)
    """Limits that all matching principals, or topics, share."""
    changed_us: TimestampUs
    changed_by: str
    """Principal that changed the quota last."""
    owner: str | None = None
