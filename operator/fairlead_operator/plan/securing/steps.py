"""Steps to secure a Cluster: TLS between brokers, and the security mode, based on the brokers' reports.

Brokers of an existing Cluster receive the certificate in one rolling restart, and TLS between brokers in a second
rolling restart, because a broker calls each peer by the scheme in the peer's registration (section 7.3 of the security
contract). A new Cluster starts with TLS.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from typing import Final

from fairlead_api.configuration import SECURITY_MODE_KEY, ConfigSource
from fairlead_api.resources.cluster import Cluster
from fairlead_api.resources.cluster_security import ClusterSecurity
from fairlead_api.resources.condition_definitions import ConditionName
from fairlead_api.resources.conditions import Condition, Truth, condition, rfc3339
from fairlead_operator.naming import SKIP_OVERLAP_ANNOTATION, Scheme, service_account_name
from fairlead_operator.plan.actions import AlterConfig
from fairlead_operator.plan.observed import BrokersAnswer, Observed
from fairlead_operator.plan.roll import RollPlan
from fairlead_operator.plan.securing.certificates import Certificates, Report, Reports
from fairlead_operator.render.security import ACCOUNT_ISSUER, STRICTNESS, mode_of

EXPIRING: Final = timedelta(days=3)
"""Remaining validity of a certificate below which the condition reports that the certificate expires soon."""
SECURITY_LEVEL: Final = 2
"""Lowest feature level at which brokers support security modes, tokens and ACLs."""


def reports_of(answer: BrokersAnswer | None, etcd: frozenset[str] = frozenset()) -> Reports:
    """Return the peer listeners' certificates, as the brokers have loaded them.

    `etcd`: fingerprints of the authorities that members of a managed etcd have read.
    """
    if answer is None:
        return Reports(etcd=etcd)
    registered = frozenset(broker for broker in answer.brokers if answer.registered(broker))
    by_broker = {
        each.broker: Report(each.certificate_sha256, frozenset(each.authorities_sha256))
        for each in answer.certificates
        if each.listener == "peer"
    }
    return Reports(known=True, registered=registered, by_broker=by_broker, etcd=etcd)


def until_removed(cluster: Cluster, observed: Observed) -> Cluster:
    """Return the Cluster; a default `spec.security` is added while pods still need certificates after its removal.

    When `spec.security` is removed, the security mode is lowered first, while the operator still has a token. TLS
    between brokers and to etcd is removed after the mode has been lowered, and the certificates are removed last.
    """
    if cluster.spec.security is not None or not _needs_certificates(observed):
        return cluster
    spec = cluster.spec.model_copy(update={"security": ClusterSecurity()})
    return cluster.model_copy(update={"spec": spec})


def _needs_certificates(observed: Observed) -> bool:
    sets = [each for each in observed.sets if not each.terminating]
    if not any(each.peer_scheme for each in sets):
        return False
    etcd = observed.etcd_set
    schemes = {each.peer_scheme for each in sets} | {each.peer_scheme for each in observed.pods}
    if "https" in schemes or (etcd is not None and etcd.etcd_transport):
        return True
    answer = observed.brokers
    entry = None if answer is None else answer.config.get(SECURITY_MODE_KEY)
    return entry is not None and entry.value != STRICTNESS[0]


def peer_scheme(observed: Observed, authorities: Iterable[str]) -> Scheme:
    """Return the scheme of the peer listeners for the pod templates.

    `authorities`: SHA-256 of each authority in use. The scheme becomes https only when every broker trusts at least one
    authority in use.
    """
    sets = [each for each in observed.sets if not each.terminating]
    if not sets or any(each.peer_scheme == "https" for each in sets):
        return "https"
    reports, trusted = reports_of(observed.brokers), frozenset(authorities)
    have_all = bool(reports.registered) and all(
        broker in reports.by_broker and trusted & reports.by_broker[broker].authorities
        for broker in reports.registered
    )
    return "https" if have_all else "http"


def overlap_of(cluster: Cluster) -> timedelta:
    """Return the minimum time between two steps of a replacement, in which clients load the changed authorities."""
    security = cluster.spec.security
    if security is None or cluster.metadata.annotations.get(SKIP_OVERLAP_ANNOTATION) == "true":
        return timedelta()
    return timedelta(hours=security.overlap_hours)


def mode_change(cluster: Cluster, answer: BrokersAnswer | None, roll: RollPlan) -> tuple[AlterConfig, ...]:
    """Return the change to the cluster's security mode.

    A stricter mode is set only after all pending restarts, when every broker knows the superusers and the issuers,
    including the operator's principal and its issuer. Otherwise, the operator could lock itself out.
    """
    security = cluster.spec.security
    if security is None or answer is None or answer.feature_level < SECURITY_LEVEL:
        return ()
    wanted, entry = mode_of(security.mode), answer.config.get(SECURITY_MODE_KEY)
    if entry is None or (entry.value == wanted and entry.source == ConfigSource.CLUSTER):
        return ()
    if entry.value == wanted == STRICTNESS[0]:
        return ()
    now = str(entry.value)
    is_raised = now in STRICTNESS and STRICTNESS.index(wanted) > STRICTNESS.index(now)
    if is_raised and roll.pending:
        return ()
    return (AlterConfig({SECURITY_MODE_KEY: wanted}),)


def brokers_account(cluster: Cluster) -> str | None:
    """Return the principal of the brokers' pods, which ask for the permit to stop; None if the pods have no token."""
    security = cluster.spec.security
    if security is None or not security.service_accounts:
        return None
    return f"{ACCOUNT_ISSUER}:{cluster.namespace}:{service_account_name(cluster.name)}"


def certificates_condition(
    cluster: Cluster, observed: Observed, certificates: Certificates | None
) -> Condition | None:
    """Return the condition of the certificates; None for a Cluster without security."""
    if certificates is None:
        return None
    status, reason, message = _judged(reports_of(observed.brokers), observed, certificates)
    return condition(
        ConditionName.CERTIFICATES_READY,
        status,
        reason,
        message,
        now=observed.now,
        generation=cluster.metadata.generation,
    )


def _judged(reports: Reports, observed: Observed, certificates: Certificates) -> tuple[Truth, str, str]:
    leaf = certificates.leaf
    if certificates.foreign:
        return "False", "NotOurs", f"{certificates.foreign} exists and was not created by the operator"
    if certificates.missing:
        return "False", "Issuing", f"{certificates.missing} does not exist yet"
    if certificates.held:
        return "False", "Propagating", certificates.held
    if leaf is None or not reports.known:
        return "False", "Issuing", "the certificates are created, and no broker answers yet"
    if old := reports.without(leaf):
        return (
            "False",
            "Propagating",
            f"brokers {', '.join(map(str, old))} have not loaded the certificate yet",
        )
    if certificates.waits:
        return "True", "Replacing", f"the authority is being replaced: {certificates.waits}"
    if leaf.not_after - observed.now < EXPIRING:
        return "False", "Expiring", f"the brokers' certificate expires at {rfc3339(leaf.not_after)}"
    return "True", "Current", "every broker has the current certificate"
