"""Inputs of rendering in addition to the Cluster itself, created by `plan`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias

from fairlead_operator.naming import Scheme

ClusterState: TypeAlias = Literal["new", "existing"]
EtcdPhase: TypeAlias = Literal["plain", "both", "tls"]
"""Listeners of the etcd members: without TLS, of both kinds while a running etcd changes, or with TLS only."""

NO_MEMBER_JOINS: Final = "nobody=http://127.0.0.1:2380"
"""Initial cluster of etcd members while no member joins. etcd ignores the initial cluster if a member's volume has
data. A member with an empty volume does not find its own name in the initial cluster and refuses to start, so that the
member cannot return under its old id without its data. The plan replaces a member whose volume is empty with a new
member."""


@dataclass(frozen=True, slots=True)
class Images:
    """Images to run, which the plan chooses from the resource, the settings and the running images."""

    broker: str
    etcd: str


@dataclass(frozen=True, slots=True)
class EtcdTransport:
    """Listeners of a managed etcd, and the URL schemes for calls to its members, in the current step."""

    phase: EtcdPhase = "plain"
    peer_scheme: Scheme = "http"
    """Scheme of the peer URLs that members should have."""
    client_scheme: Scheme = "http"
    """URL scheme that brokers use to call the members."""
    authorities: str = ""
    """Fingerprint of the authorities that members read at startup; empty without TLS."""


PLAIN_ETCD: Final = EtcdTransport()
"""An etcd without TLS."""


@dataclass(frozen=True, slots=True)
class EtcdInputs:
    """Inputs for rendering a managed etcd in the current step of its plan."""

    replicas: int
    """Number of etcd pods in this step."""
    initial_cluster: str = NO_MEMBER_JOINS
    """Initial cluster for members with an empty volume: all members as `name=url,...`, or `NO_MEMBER_JOINS`."""
    state: ClusterState = "existing"
    """Initial cluster state: `new` until every initial member has been seen running, then `existing`."""
    volume_bytes: int | None = None
    """Size of the smallest existing volume in bytes; None before the first volume exists."""
    transport: EtcdTransport = PLAIN_ETCD
    restores: bool = False
    """Whether the first member starts from the snapshot in the spec."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Transport:
    """Inputs of a Cluster with `spec.security`."""

    authorities: str
    """Certificates of all authorities that clients trust, in PEM."""
    authorities_since: str = ""
    """Time (RFC 3339) of the last change of `authorities`; empty if no pass needs to know the time."""
    peer_scheme: Scheme = "https"
    """Scheme of the peer listener: `http` while brokers of the Cluster lack a certificate."""
    superusers: tuple[str, ...] = ()
    """Principals of the superusers: the operator itself."""
    names: tuple[str, ...] = ()
    """Names in the certificate of the brokers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RenderInputs:
    """Decisions of the plan, and the observed facts on which rendered objects depend."""

    images: Images
    etcd: EtcdInputs | None = None
    """Inputs for a managed etcd; None for an external etcd."""
    pool_replicas: Mapping[str, int] = field(default_factory=dict)
    """Number of pods of each pool in this step; the default is the number in the spec."""
    advertised: Mapping[int, str] = field(default_factory=dict)
    """`host:port` of each broker for which external clients use a separate address; see `addresses`."""
    external: bool = True
    """Whether the brokers have the listener for external clients; brokers of older releases lack this listener."""
    kinds: frozenset[str] = frozenset()
    """Names of the optional kinds that the API server has."""
    operator_namespace: str = ""
    """Namespace of the operator's own pod, for the network policies; empty if the operator runs outside of
    Kubernetes."""
    transport: Transport | None = None
    """Inputs of a Cluster with `spec.security`; None for other Clusters."""
    storage: Mapping[str, str] = field(default_factory=dict)
    """Size in the claim template of each StatefulSet, where this size differs from the size in the spec."""
