"""Plan of a User: its access rules, whether its namespace may grant them, and when its token is replaced.

`reconcile.user` calls this module with the ACLs, tokens and quotas that the brokers list. The module does no I/O: the
time is an argument. Records of other owners are never changed (rule K11).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from fairlead_api.access_needs import Kind
from fairlead_api.bodies.quotas import QuotaDescription
from fairlead_api.bodies.security import AclDescription, TokenDescription
from fairlead_api.patterns import contains
from fairlead_api.resources.cluster_security import NamespaceQuota, QuotaLimits
from fairlead_api.resources.quantities import quantity
from fairlead_api.resources.user import User, UserAcl
from fairlead_operator.naming import RENEW_TOKEN_ANNOTATION, Manifest
from fairlead_operator.plan.findings import Finding
from fairlead_operator.plan.topic_admission import is_leaving

KEPT_AFTER_RENEWAL: Final = timedelta(hours=24)
"""Time for which the previous token remains valid, so that mounted copies of the Secret can be updated."""
NAMED_KINDS: Final = (("topics", Kind.TOPIC), ("groups", Kind.GROUP), ("producers", Kind.PRODUCER))


@dataclass(frozen=True, slots=True, order=True)
class WantedAcl:
    """Access rule of a User, without its principal."""

    effect: str
    operations: tuple[str, ...]
    kind: str
    pattern: str


@dataclass(frozen=True, slots=True)
class AclPlan:
    """Access rules to create and, by id, to remove."""

    missing: tuple[WantedAcl, ...]
    unwanted: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class QuotaPlan:
    """Change to a principal's quota."""

    put: bool = False
    remove: bool = False
    conflict: str = ""
    """Reason why the quota cannot be set; empty if the quota can be set."""


@dataclass(frozen=True, slots=True)
class TokenPlan:
    """Whether a token is created, and the ids of the tokens to revoke."""

    create: bool
    revoke: tuple[str, ...] = ()
    current: TokenDescription | None = None
    """The valid token in the Secret; None if the Secret has no valid token."""


def owner_of(user: User) -> str:
    """Return the owner name with which a User's tokens and access rules are marked."""
    return f"{user.namespace}/User/{user.metadata.uid}"


def refusal(user: User, cluster: Manifest | None) -> Finding | None:
    """Return the reason why the User cannot have access to its Cluster; None if access is allowed (rule K10)."""
    name = f"{user.cluster_namespace}/{user.spec.cluster_ref.name}"
    if cluster is None or is_leaving(cluster):
        return Finding("ClusterNotFound", f"there is no Cluster {name}")
    security = cluster.get("spec", {}).get("security")
    if security is None:
        return Finding("SecurityNotConfigured", f"Cluster {name} has no spec.security")
    if user.spec.service_account_name is not None and not security.get("serviceAccounts", True):
        return Finding("NotAllowed", f"Cluster {name} accepts no tokens of service accounts")
    if user.namespace == user.cluster_namespace:
        return None
    granted = next(
        (each for each in security.get("users") or [] if each.get("namespace") == user.namespace), None
    )
    if granted is None:
        return Finding(
            "NotAllowed", f"Cluster {name} does not list namespace {user.namespace} in spec.security.users"
        )
    outside = [*_outside(user.spec.acls, granted), *_above(user, granted)]
    if outside:
        return Finding(
            "NotAllowed",
            f"spec.security.users of Cluster {name} does not allow {user.namespace} to grant {', '.join(outside)}",
        )
    return None


def _outside(acls: Iterable[UserAcl], granted: Mapping[str, Any]) -> Iterable[str]:
    """Yield the patterns of Allow rules that exceed what the Cluster grants the namespace; Deny is not limited."""
    for acl in acls:
        if acl.effect != "Allow":
            continue
        for field, kind in NAMED_KINDS:
            for pattern in getattr(acl, field):
                if not any(contains(each, pattern) for each in granted.get(field) or ()):
                    yield f"{kind.value}:{pattern}"


def _above(user: User, granted: Mapping[str, Any]) -> Iterable[str]:
    """Yield the limits of the User's quota that are larger than the namespace's maximum, or that have no maximum.

    A User's quota is compared with the maximum because the quota of a principal takes precedence over lower quotas of
    patterns.
    """
    most = NamespaceQuota.model_validate(granted.get("quotaMax") or {})
    # A limit that the Users of the namespace share applies in addition to the User's own limit.
    allowed = limits_of(most.shared) | limits_of(most.each)
    for name, limit in wanted_limits(user).items():
        if limit > allowed.get(name, 0):
            yield f"{name} {limit}"


def wanted_acls(user: User) -> frozenset[WantedAcl]:
    """Return the access rules of a User."""
    return frozenset(
        WantedAcl(acl.effect.lower(), tuple(sorted(set(acl.operations))), kind.value, pattern)
        for acl in user.spec.acls
        for field, kind in NAMED_KINDS
        for pattern in getattr(acl, field)
    )


def plan_acls(wanted: frozenset[WantedAcl], owner: str, stored: Iterable[AclDescription]) -> AclPlan:
    """Return the differences between the wanted rules and the stored rules of the principal."""
    known = {
        WantedAcl(each.effect, tuple(sorted(each.operations)), each.kind, each.pattern): each
        for each in stored
    }
    return AclPlan(
        missing=tuple(sorted(wanted - known.keys())),
        unwanted=tuple(
            each.acl_id for rule, each in sorted(known.items()) if rule not in wanted and each.owner == owner
        ),
    )


def wanted_limits(user: User) -> dict[str, int]:
    """Return the limits of the User's quota; empty for a User without a quota."""
    return {} if user.spec.quota is None else limits_of(user.spec.quota.each)


def limits_of(limits: QuotaLimits | None) -> dict[str, int]:
    """Return the limits of a quota, keyed by their names in the brokers' API; empty for None."""
    if limits is None:
        return {}
    sizes = {
        "produce_bytes_per_second": limits.produce_bytes_per_second,
        "fetch_bytes_per_second": limits.fetch_bytes_per_second,
    }
    counts = {
        "requests_per_second": limits.requests_per_second,
        "concurrent_requests": limits.concurrent_requests,
    }
    return {
        **{name: max(1, int(quantity(size))) for name, size in sizes.items() if size is not None},
        **{name: count for name, count in counts.items() if count is not None},
    }


def plan_quota(wanted: Mapping[str, int], owner: str, stored: QuotaDescription | None) -> QuotaPlan:
    """Return the change to the quota of the User's principal; `stored` is the current quota."""
    if stored is not None and stored.owner != owner:
        other = stored.owner or "another program"
        return QuotaPlan(conflict=f"{stored.subject} has a quota of {other}" if wanted else "")
    if not wanted:
        return QuotaPlan(remove=stored is not None)
    return QuotaPlan(put=stored is None or stored.each != wanted or bool(stored.shared))


def plan_token(user: User, held: str, stored: Iterable[TokenDescription], now: datetime) -> TokenPlan:
    """Return which tokens of a User without a service account to create and revoke.

    `held` is the id of the token in the Secret; empty if the Secret has no token. A token that was never stored in the
    Secret is revoked at once, because its text is lost.
    """
    own = {each.token_id: each for each in stored if each.owner == owner_of(user)}
    current = own.pop(held, None)
    if current is not None and _ends(current) is not None and _ends(current) <= now:  # type: ignore[operator]
        own[current.token_id], current = current, None
    if current is None:
        return TokenPlan(create=True, revoke=tuple(sorted(own)))
    begun = datetime.fromisoformat(current.created_at)
    over = [
        each.token_id
        for each in own.values()
        if datetime.fromisoformat(each.created_at) > begun or begun + KEPT_AFTER_RENEWAL <= now
    ]
    due = RENEW_TOKEN_ANNOTATION in user.metadata.annotations or _is_due(user, current, now)
    return TokenPlan(create=due, revoke=tuple(sorted(over)), current=current)


def _is_due(user: User, token: TokenDescription, now: datetime) -> bool:
    """Return whether it is time to replace a token, at the earliest after half of its validity.

    Admission refuses a User whose token expires before its renewal, but does not check Users that are already stored.
    """
    end = _ends(token)
    if end is None:
        return False
    half = (end - datetime.fromisoformat(token.created_at)) / 2
    return end - min(timedelta(hours=hours_of(user.token.renew_before)), half) <= now


def hours_of(text: str) -> int:
    """Return the number of hours of a duration such as `168h`."""
    return int(text.removesuffix("h"))


def bootstrap_of(cluster: Manifest) -> str:
    """Return the bootstrap URL for the User's programs: with TLS if the Cluster has a listener with TLS."""
    listeners = (cluster.get("status") or {}).get("listeners") or []
    found = [str(each.get("bootstrap") or "") for each in listeners if each.get("name") != "external"]
    return next((each for each in found if each.startswith("https://")), found[0] if found else "")


def _ends(token: TokenDescription) -> datetime | None:
    return None if token.expires_at is None else datetime.fromisoformat(token.expires_at)
