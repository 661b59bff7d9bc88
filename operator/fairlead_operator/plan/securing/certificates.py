"""Decisions about the operator's own authority and certificates: when each is created, replaced and removed.

An authority is replaced in phases (rule K5). The phase is derived from the live state, so that an interrupted
replacement continues: the Secret of the authority, the certificate in the Secret of the brokers, and the certificates
that brokers report as loaded. The module must not depend on how keys are created.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import Enum, auto
from typing import Final

from fairlead_api.resources.cluster import Cluster
from fairlead_operator.naming import (
    bootstrap_service_name,
    broker_service_name,
    brokers_service_name,
    brokers_tls_name,
    etcd_client_name,
    etcd_name,
    etcd_peers_service_name,
    etcd_tls_name,
    external_service_name,
)
from fairlead_operator.render.addresses import broker_hosts, broker_ids, kafka_hosts

ETCD_CLIENT_NAMES: Final = ("etcd-client",)
"""Names in the certificate that clients present to etcd; etcd does not read the names."""
AUTHORITY_LIFE: Final = timedelta(days=3650)
LEAF_LIFE: Final = timedelta(days=90)
AUTHORITY_USED: Final = 0.8
"""Fraction of an authority's validity after which the authority is replaced."""
LEAF_USED: Final = 2 / 3
"""Fraction of a certificate's validity after which the certificate is replaced."""
BACKDATED: Final = timedelta(minutes=5)
"""Time by which a certificate's validity begins before its creation, for machines whose clock is behind."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CertificateFacts:
    """Facts about one certificate."""

    sha256: str
    not_before: datetime
    not_after: datetime
    authority: str = ""
    """Identifier of the key that signed the certificate."""
    key: str = ""
    """Identifier of the certificate's own key."""
    names: frozenset[str] = frozenset()
    """Host names and IP addresses."""

    @property
    def created(self) -> datetime:
        """Time at which the certificate was created."""
        return self.not_before + BACKDATED

    def is_used(self, now: datetime, part: float) -> bool:
        """Return whether this fraction of the certificate's validity has passed."""
        return now >= self.not_before + (self.not_after - self.not_before) * part


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenAuthority:
    """The certificates in the Secret of the authority."""

    current: CertificateFacts
    following: CertificateFacts | None = None
    """Next signing authority, which is already trusted."""
    previous: CertificateFacts | None = None
    """Previous signing authority, which is still trusted."""

    @property
    def trusted(self) -> tuple[CertificateFacts, ...]:
        """All authorities that clients and brokers trust."""
        return tuple(each for each in (self.current, self.following, self.previous) if each is not None)


@dataclass(frozen=True, slots=True)
class Report:
    """The certificate of a broker's peer listener, as the broker has loaded it."""

    sha256: str
    authorities: frozenset[str]


@dataclass(frozen=True, slots=True)
class Reports:
    """The reports of all registered brokers; `known` is false while no broker answers."""

    known: bool = False
    registered: frozenset[int] = frozenset()
    by_broker: Mapping[int, Report] = field(default_factory=dict)
    etcd: frozenset[str] = frozenset()
    """Fingerprints of the authorities that the members of a managed etcd have read at startup."""

    def behind(self, authorities: Iterable[CertificateFacts]) -> list[int]:
        """Return the registered brokers that do not trust all authorities."""
        wanted = {each.sha256 for each in authorities}
        return sorted(
            broker
            for broker in self.registered
            if broker not in self.by_broker or not wanted <= self.by_broker[broker].authorities
        )

    def without(self, leaf: CertificateFacts) -> list[int]:
        """Return the registered brokers that have not loaded this certificate."""
        return sorted(
            broker
            for broker in self.registered
            if broker not in self.by_broker or self.by_broker[broker].sha256 != leaf.sha256
        )


class AuthorityStep(Enum):
    """Next step of the authority."""

    KEEP = auto()
    ADD_FOLLOWING = auto()
    """Create the next authority, which brokers and clients trust from this step on."""
    PROMOTE = auto()
    """Sign certificates with the next authority from this step on."""
    DROP_PREVIOUS = auto()
    """Stop trusting the previous authority."""


@dataclass(frozen=True, slots=True)
class AuthorityPlan:
    """Next step of the authority, and the reason why the replacement must wait; empty if it need not wait."""

    step: AuthorityStep
    waits: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Renewal:
    """Inputs that decide when an authority is replaced."""

    now: datetime
    overlap: timedelta
    """Minimum time between two steps of a replacement, in which clients load the changed authorities."""
    asked: bool = False
    """Whether a user has requested a new authority."""


AGAIN_SECONDS: Final = 10.0
"""Time until the next pass while a step waits: brokers load new files, and other programs create Secrets, without an
event for the operator."""


CLIENTS_FOLLOW: Final = timedelta(seconds=150)
"""Time in which clients load changed authorities: a kubelet updates mounted files within 90 s, and clients of the SDK
read their files every 30 s."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificates:
    """Certificates of a Cluster after a step; pods may be created only if `authorities` is set."""

    names: tuple[str, ...] = ()
    """Names in the brokers' certificate."""
    authorities: str = ""
    """Certificates of all trusted authorities, in PEM."""
    client_authorities: str = ""
    """Certificates of all authorities that clients trust, in PEM, including the issuers of foreign certificates."""
    missing: str = ""
    """Secret with the certificate for clients, if another program has not created the Secret yet."""
    client_authorities_since: str = ""
    """Time (RFC 3339) of the last change of `client_authorities`; empty without a foreign certificate."""
    held: str = ""
    """Reason why brokers do not present another certificate yet; empty if nothing delays the other certificate."""
    trusted: frozenset[str] = frozenset()
    """SHA-256 of the trusted authorities."""
    leaf: CertificateFacts | None = None
    etcd_authorities: str = ""
    """Fingerprint of the authorities for the members of a managed etcd."""
    etcd_client: tuple[bytes, bytes] = field(default=(b"", b""), repr=False)
    """Certificate and key for calls to a managed etcd, in PEM; empty for an external etcd."""
    foreign: str = ""
    """Object of another program that prevents all writes; empty if there is no such object."""
    waits: str = ""
    """Reason why the replacement of the authority must wait; empty if nothing delays the replacement."""

    @property
    def requeue_seconds(self) -> float | None:
        """Seconds until the next pass; None if no step is waiting."""
        return AGAIN_SECONDS if self.waits or self.missing or self.held else None


def plan_authority(
    seen: SeenAuthority, leaf: CertificateFacts | None, reports: Reports, renewal: Renewal
) -> AuthorityPlan:
    """Return the next step of the authority (rule K5)."""
    if seen.following is not None:
        return _towards_following(seen.following, seen, reports, renewal)
    if seen.previous is not None:
        return _without_previous(seen, leaf, reports, renewal)
    if renewal.asked or seen.current.is_used(renewal.now, AUTHORITY_USED):
        return AuthorityPlan(AuthorityStep.ADD_FOLLOWING)
    return AuthorityPlan(AuthorityStep.KEEP)


def _towards_following(
    following: CertificateFacts, seen: SeenAuthority, reports: Reports, renewal: Renewal
) -> AuthorityPlan:
    if not reports.known:
        return AuthorityPlan(AuthorityStep.KEEP, "no broker answers")
    if behind := reports.behind(seen.trusted):
        return AuthorityPlan(AuthorityStep.KEEP, f"{_brokers(behind)} not loaded the next authority yet")
    if reports.etcd - {etcd_fingerprint(seen)}:
        return AuthorityPlan(AuthorityStep.KEEP, "members of etcd have not loaded the next authority yet")
    if renewal.now < following.created + renewal.overlap:
        return AuthorityPlan(AuthorityStep.KEEP, "clients need more time to load the next authority")
    return AuthorityPlan(AuthorityStep.PROMOTE)


def _without_previous(
    seen: SeenAuthority, leaf: CertificateFacts | None, reports: Reports, renewal: Renewal
) -> AuthorityPlan:
    if leaf is None or leaf.authority != seen.current.key:
        return AuthorityPlan(
            AuthorityStep.KEEP, "the brokers' certificate is not signed by the new authority yet"
        )
    if not reports.known:
        return AuthorityPlan(AuthorityStep.KEEP, "no broker answers")
    if old := reports.without(leaf):
        return AuthorityPlan(AuthorityStep.KEEP, f"{_brokers(old)} not loaded the new certificate yet")
    if reports.etcd - {etcd_fingerprint(seen)}:
        return AuthorityPlan(AuthorityStep.KEEP, "members of etcd have not loaded the new certificate yet")
    if renewal.now < leaf.created + renewal.overlap:
        return AuthorityPlan(AuthorityStep.KEEP, "clients may need the previous authority during the overlap")
    return AuthorityPlan(AuthorityStep.DROP_PREVIOUS)


@dataclass(frozen=True, slots=True)
class LeafWish:
    """A certificate that the Cluster needs: the name of its Secret, and its host names and IP addresses."""

    secret: str
    names: tuple[str, ...]


def leaves_of(cluster: Cluster) -> tuple[LeafWish, ...]:
    """Return the certificates of a Cluster (rule K1); the certificate of the brokers comes first."""
    brokers = LeafWish(brokers_tls_name(cluster.name), broker_names(cluster))
    if cluster.spec.etcd.managed is None:
        return (brokers,)
    return (
        brokers,
        LeafWish(etcd_tls_name(cluster.name), etcd_names(cluster)),
        LeafWish(etcd_client_name(cluster.name), ETCD_CLIENT_NAMES),
    )


def etcd_fingerprint(seen: SeenAuthority) -> str:
    """Return the fingerprint of the authorities; members of etcd restart when the fingerprint changes.

    etcd reads the trusted authorities only at startup. The authority that signs is a part of the fingerprint, so that
    each member has also read its new certificate before the previous authority is removed.
    """
    parts = [seen.current.sha256, *sorted(each.sha256 for each in seen.trusted)]
    return hashlib.sha256(" ".join(parts).encode()).hexdigest()[:16]


def leaf_is_due(
    leaf: CertificateFacts | None, authority: CertificateFacts, names: Iterable[str], now: datetime
) -> bool:
    """Return whether a certificate is missing, lacks a name, expires soon, or was signed by another authority."""
    return (
        leaf is None
        or leaf.authority != authority.key
        or not set(names) <= leaf.names
        or leaf.is_used(now, LEAF_USED)
    )


def broker_names(cluster: Cluster) -> tuple[str, ...]:
    """Return the names in the certificate that all brokers of a Cluster share (rule K1)."""
    name, namespace = cluster.name, cluster.namespace
    services = [bootstrap_service_name(name), external_service_name(name)]
    services += [broker_service_name(name, broker) for _, broker in broker_ids(cluster, {})]
    security = cluster.spec.security
    extra = security.tls.extra_names if security is not None else ()
    named = (f"*.{brokers_service_name(name)}", *services)
    return tuple(
        dict.fromkeys(
            [
                "localhost",
                *(
                    f"{each}.{namespace}{suffix}"
                    for each in named
                    for suffix in (".svc", ".svc.cluster.local")
                ),
                *(f"{each}.{namespace}" for each in services),
                *_advertised_hosts(cluster),
                *extra,
            ]
        )
    )


def etcd_names(cluster: Cluster) -> tuple[str, ...]:
    """Return the names in the certificate that all members of a managed etcd share."""
    namespace = cluster.namespace
    named = (f"*.{etcd_peers_service_name(cluster.name)}", etcd_name(cluster.name))
    return (
        "localhost",
        "127.0.0.1",
        *(f"{each}.{namespace}{suffix}" for each in named for suffix in (".svc", ".svc.cluster.local")),
    )


def _advertised_hosts(cluster: Cluster) -> list[str]:
    """Return the hosts that the Cluster advertises to clients: the hosts of its route and of each broker."""
    route = cluster.spec.listeners.data.route
    hosts = (*broker_hosts(cluster, {}).values(), *kafka_hosts(cluster, {}).values())
    return [*([] if route is None else [route.host]), *hosts]


def _brokers(ids: list[int]) -> str:
    named = ", ".join(map(str, ids))
    return f"broker {named} has" if len(ids) == 1 else f"brokers {named} have"
