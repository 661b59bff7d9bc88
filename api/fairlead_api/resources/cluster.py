"""Custom resource Cluster: brokers in pools, the etcd that coordinates them, and their listeners."""

from __future__ import annotations

from itertools import combinations
from typing import Annotated, Final, Literal, Self, TypeAlias

from pydantic import ConfigDict, Field, model_validator

from fairlead_api.resources.cluster_console import Console
from fairlead_api.resources.cluster_listeners import Listeners
from fairlead_api.resources.cluster_parts import (
    POOL_IDS,
    POOLS_MAX,
    BrokerPool,
    ClaimPolicy,
    Etcd,
    ManagedEtcd,
    NetworkPolicySettings,
    PodMonitorSettings,
    TopicNamespace,
)
from fairlead_api.resources.cluster_security import ClusterSecurity
from fairlead_api.resources.cluster_status import ClusterStatus
from fairlead_api.resources.resource import Part, Resource
from fairlead_api.resources.schema_rules import Rule, RuleReason, kubernetes, rules
from fairlead_api.resources.texts import ConfigMap, Image, Release
from fairlead_api.versions import FEATURE_LEVEL

CLUSTER_NAME_LENGTH_MAX: Final = 40
STATEFUL_SET_NAME_LENGTH_MAX: Final = 52
"""Maximum length of a StatefulSet's name: Kubernetes appends a hash of 11 characters and uses the result as a label,
which has at most 63 characters."""
FORMAT_VERSION_READ_MAX: Final = 1_000
"""Largest format version in a stored Cluster that the operator reads; the API server accepts only formats of this \
release, but earlier definitions accepted more."""
DeletionPolicy: TypeAlias = Literal["Delete", "Retain"]


class ClusterSpec(Part):
    """Desired state of the cluster."""

    version: Release | None = None
    """Release of the brokers; by default the release of the operator. A change of the release restarts brokers one at \
a time."""
    image: Image | None = None
    """Image of the brokers; by default the image of the operator, with `version` as its tag."""
    format_version: (
        Annotated[int, Field(ge=1, le=FORMAT_VERSION_READ_MAX), kubernetes(maximum=FEATURE_LEVEL)] | None
    ) = None
    """Newest format in which brokers may store data, the feature level of the cluster. Set a later format, one step \
at a time, once all brokers run a release that supports it; until then a downgrade to the old release is possible. \
formatVersion must not be lower than the format in which brokers store data (status.formatVersion)."""
    brokers: Annotated[
        tuple[BrokerPool, ...],
        kubernetes(
            Rule("self.exists(pool, pool.replicas > 0)", "at least one pool must have a broker"),
            Rule(
                f"self.all(a, self.exists_one(b, a.firstBrokerId < b.firstBrokerId + {POOL_IDS} && "
                f"b.firstBrokerId < a.firstBrokerId + {POOL_IDS}))",
                f"pools overlap: each pool reserves the {POOL_IDS} broker ids from its firstBrokerId on",
            ),
            **{
                "minItems": 1,
                "maxItems": POOLS_MAX,
                "x-kubernetes-list-type": "map",
                "x-kubernetes-list-map-keys": ["name"],
            },
        ),
    ]
    """Pools of brokers, 1 to 16."""
    listeners: Listeners = Listeners()
    """Listeners through which clients reach the brokers."""
    etcd: Etcd = Etcd(managed=ManagedEtcd())
    """Etcd with the coordination data; by default a managed etcd with three members."""
    config: ConfigMap = Field(default_factory=dict)
    """Configuration of the cluster: values of Kafka's configuration keys, always strings. Dynamic keys are changed \
without a restart; other keys restart the brokers one at a time. Unknown and forbidden keys are ignored and named in \
the condition Warning."""
    security: ClusterSecurity | None = None
    """TLS, tokens and access rules. Without security settings, clients call without TLS and no caller is refused."""
    console: Console | None = None
    """Console, a web application with which people see and steer the cluster; by default the cluster has no \
console."""
    network_policy: NetworkPolicySettings = NetworkPolicySettings()
    """Network access to the brokers."""
    pod_monitor: PodMonitorSettings = PodMonitorSettings()
    """PodMonitor with which Prometheus scrapes the brokers."""
    deletion_policy: DeletionPolicy = "Delete"
    """Whether brokers and etcd are deleted together with the Cluster. Delete: brokers and etcd are deleted, and \
claimPolicy applies to claims. Retain: brokers and etcd continue to run without an operator until a Cluster of the \
same name adopts them."""
    claim_policy: ClaimPolicy = ClaimPolicy()
    """Whether the claims of volumes are retained or deleted."""
    topic_namespaces: Annotated[
        tuple[TopicNamespace, ...], kubernetes(**{"maxItems": 64, "x-kubernetes-list-type": "set"})
    ] = ()
    """Other namespaces whose Topics may refer to this Cluster; * allows all namespaces. The Cluster's own namespace \
is always allowed."""

    @model_validator(mode="after")
    def _holds_together(self) -> Self:
        # Two brokers with the same id would lose data, so overlaps are checked here in addition to the schema.
        for one, other in combinations(self.brokers, 2):
            if one.name == other.name or abs(one.first_broker_id - other.first_broker_id) < POOL_IDS:
                problem = f"pools {one.name} and {other.name} overlap in their name or broker ids"
                raise ValueError(problem)
        if (self.etcd.managed is None) == (self.etcd.external is None):
            problem = "exactly one of etcd.managed and etcd.external must be set"
            raise ValueError(problem)
        return self


_FORMAT_IS_KEPT: Final = (
    "!has(oldSelf.status) || !has(oldSelf.status.formatVersion) || "
    "(has(self.spec.formatVersion) == has(oldSelf.spec.formatVersion) && "
    "(!has(self.spec.formatVersion) || self.spec.formatVersion == oldSelf.spec.formatVersion))"
)
"""First condition of each rule about formatVersion, under which an update is allowed: brokers have not reported their \
format yet, or the update keeps spec.formatVersion. The rules about formatVersion \
never refuse an update of the status."""


_OPEN_TO_ALL: Final = (
    "({0}.spec.security.mode != 'Enforce' && "
    "(!has({0}.spec.security.tls) || {0}.spec.security.tls.mode != 'Required'))"
)
"""CEL condition that is true if `self` or `oldSelf` serves clients without TLS and without a token."""


class Cluster(Resource):
    """A Fairlead cluster: brokers in pools, and the etcd that coordinates them."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            Rule(
                f"self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$') && "
                f"self.metadata.name.size() <= {CLUSTER_NAME_LENGTH_MAX}",
                f"a Cluster's name must begin with a letter and have at most {CLUSTER_NAME_LENGTH_MAX} "
                "of a-z, 0-9 and '-': the names of Services begin with it",
                ".metadata.name",
            ),
            Rule(
                "self.spec.brokers.all(pool, self.metadata.name.size() + pool.name.size() < "
                f"{STATEFUL_SET_NAME_LENGTH_MAX})",
                "the names of Cluster and pool must together have at most "
                f"{STATEFUL_SET_NAME_LENGTH_MAX - 1} characters",
                ".spec.brokers",
            ),
            Rule(
                "!has(self.spec.listeners) || !has(self.spec.listeners.data) || "
                "!has(self.spec.listeners.data.route) || self.spec.listeners.data.route.kind != 'TLSRoute' || "
                "(has(self.spec.security) && has(self.spec.security.tls) && self.spec.security.tls.mode == 'Required')",
                "a TLSRoute requires brokers with TLS: set security.tls.mode to Required",
                ".spec.listeners.data.route.kind",
            ),
            Rule(
                "oldSelf.spec.brokers.all(old, self.spec.brokers.exists(new, new.name == old.name) || "
                "(old.replicas == 0 && (!has(oldSelf.status) || !has(oldSelf.status.pools) || "
                "!oldSelf.status.pools.exists(seen, seen.name == old.name && seen.replicas > 0))))",
                "a pool can be removed when it has no brokers: set its replicas to 0 and wait until status.pools "
                "also reports 0",
                ".spec.brokers",
                RuleReason.FORBIDDEN,
            ),
            Rule(
                f"{_FORMAT_IS_KEPT} || "
                "(has(self.spec.formatVersion) && self.spec.formatVersion >= oldSelf.status.formatVersion)",
                "formatVersion can neither be removed nor be lower than status.formatVersion, because stored data has "
                "that format",
                ".spec.formatVersion",
                RuleReason.FORBIDDEN,
            ),
            Rule(
                f"{_FORMAT_IS_KEPT} || "
                "!has(self.spec.formatVersion) || self.spec.formatVersion <= oldSelf.status.formatVersion + 1",
                "formatVersion must be increased one step at a time: at most one above status.formatVersion",
                ".spec.formatVersion",
                RuleReason.FORBIDDEN,
            ),
            Rule(
                f"has(oldSelf.spec.security) || !has(self.spec.security) || {_OPEN_TO_ALL.format('self')}",
                "the security of an existing Cluster must begin with mode Open or Observe and tls.mode Off or Both, "
                "because otherwise clients without TLS and a token would be refused at once",
                ".spec.security",
                RuleReason.FORBIDDEN,
            ),
            Rule(
                f"has(self.spec.security) || !has(oldSelf.spec.security) || {_OPEN_TO_ALL.format('oldSelf')}",
                "lower mode and tls.mode before security is removed, because otherwise clients with TLS would be "
                "refused at once",
                ".spec.security",
                RuleReason.FORBIDDEN,
            ),
        )
    )

    spec: ClusterSpec
    """Desired state of the cluster."""
    status: ClusterStatus = ClusterStatus()
    """Observed state of the cluster."""
