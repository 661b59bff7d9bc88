"""Access rules and quotas that belong to a Cluster itself, not to a User.

The brokers' own service account may ask for the permit to stop a broker, Prometheus may read metrics that need a token,
and the Users of a namespace share the limits of `spec.security.users`. `reconcile.cluster` calls this module with the
records that the brokers list. Records of other owners are never changed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from fairlead_api.access_needs import Kind
from fairlead_api.bodies.quotas import QuotaDescription
from fairlead_api.resources.cluster import Cluster
from fairlead_operator.naming import metrics_user_name
from fairlead_operator.plan.securing.steps import brokers_account
from fairlead_operator.plan.securing.user import WantedAcl, limits_of
from fairlead_operator.render.security import ACCOUNT_ISSUER

CLUSTER_OWNER: Final = "cluster"
"""Owner of the records that belong to a Cluster itself."""


@dataclass(frozen=True, slots=True)
class SharedQuotaPlan:
    """Changes to the quotas that the Users of a namespace share."""

    put: Mapping[str, Mapping[str, int]]
    """Shared limits of the quotas to set, by subject."""
    remove: tuple[str, ...]
    conflicts: tuple[str, ...]
    """Reasons why other quotas cannot be set."""


def cluster_acls(cluster: Cluster) -> Mapping[str, frozenset[WantedAcl]]:
    """Return the access rules of each principal; for an empty set, the operator removes the principal's rules."""
    security = cluster.spec.security
    assert security is not None, "only Clusters with security have access rules"
    reads = _on_cluster("describe") if security.metrics == "Token" else frozenset()
    rules = {f"user:{cluster.namespace}.{metrics_user_name(cluster.name)}": reads}
    account = brokers_account(cluster)
    return rules if account is None else {**rules, account: _on_cluster("alter")}


def shared_limits(cluster: Cluster) -> Mapping[str, Mapping[str, int]]:
    """Return the limits that the Users of each namespace share, by the patterns of their principals."""
    security = cluster.spec.security
    assert security is not None, "only Clusters with security have quotas"
    granted = {each.namespace: each.quota_max for each in security.users}
    return {
        subject: limits
        for namespace, most in granted.items()
        if most is not None and (limits := limits_of(most.shared))
        for subject in (f"user:{namespace}.*", f"{ACCOUNT_ISSUER}:{namespace}:*")
    }


def plan_shared_quotas(
    wanted: Mapping[str, Mapping[str, int]], stored: Iterable[QuotaDescription]
) -> SharedQuotaPlan:
    """Return the differences between the wanted quotas and the stored quotas."""
    known = {each.subject: each for each in stored}
    own = {subject for subject, each in known.items() if each.owner == CLUSTER_OWNER}
    return SharedQuotaPlan(
        put={
            subject: limits
            for subject, limits in wanted.items()
            if subject not in known
            or (subject in own and (known[subject].shared != limits or bool(known[subject].each)))
        },
        remove=tuple(sorted(own - wanted.keys())),
        conflicts=tuple(_conflicts(wanted.keys() & known.keys() - own, known)),
    )


def _conflicts(subjects: Iterable[str], known: Mapping[str, QuotaDescription]) -> Iterator[str]:
    for subject in sorted(subjects):
        yield f"spec.security.users: {subject} has a quota of {known[subject].owner or 'another program'}"


def _on_cluster(operation: str) -> frozenset[WantedAcl]:
    return frozenset({WantedAcl("allow", (operation,), Kind.CLUSTER.value, "*")})
