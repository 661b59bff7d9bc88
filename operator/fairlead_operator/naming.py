"""Every name that the operator gives or reads: kinds, objects, labels, annotations, ports, paths.

Read by all rooms of the operator and by tests. Names are a promise: a StatefulSet, a claim or a label selector cannot
be renamed under a running cluster. Must not know the content of the objects.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, TypeAlias

Manifest: TypeAlias = dict[str, Any]
"""An object of Kubernetes as plain data."""

GROUP: Final = "fairlead.dev"
VERSION: Final = "v1alpha1"
API_VERSION: Final = f"{GROUP}/{VERSION}"
FIELD_MANAGER: Final = "fairlead-operator"
"""Under this name all server-side applies are made."""
TOPIC_FINALIZER: Final = f"{GROUP}/topic"

# ---------------------------------------------------------------------------------------------------- kinds


@dataclass(frozen=True, slots=True, order=True)
class Kind:
    """A kind of object, as a manifest (`api_version`, `kind`) and as a URL (`plural`) name it."""

    api_version: str
    kind: str
    plural: str


@dataclass(frozen=True, slots=True, order=True)
class ObjectRef:
    """One object. The namespace is empty for kinds that live outside namespaces."""

    kind: Kind
    namespace: str
    name: str

    def __str__(self) -> str:
        """Read as `Kind namespace/name`."""
        return (
            f"{self.kind.kind} {self.namespace}/{self.name}"
            if self.namespace
            else f"{self.kind.kind} {self.name}"
        )


CLUSTER: Final = Kind(API_VERSION, "Cluster", "clusters")
TOPIC: Final = Kind(API_VERSION, "Topic", "topics")
STATEFUL_SET: Final = Kind("apps/v1", "StatefulSet", "statefulsets")
POD: Final = Kind("v1", "Pod", "pods")
SERVICE: Final = Kind("v1", "Service", "services")
SERVICE_ACCOUNT: Final = Kind("v1", "ServiceAccount", "serviceaccounts")
CONFIG_MAP: Final = Kind("v1", "ConfigMap", "configmaps")
CLAIM: Final = Kind("v1", "PersistentVolumeClaim", "persistentvolumeclaims")
NODE: Final = Kind("v1", "Node", "nodes")
NAMESPACE: Final = Kind("v1", "Namespace", "namespaces")
EVENT: Final = Kind("events.k8s.io/v1", "Event", "events")
STORAGE_CLASS: Final = Kind("storage.k8s.io/v1", "StorageClass", "storageclasses")
LEASE: Final = Kind("coordination.k8s.io/v1", "Lease", "leases")
DISRUPTION_BUDGET: Final = Kind("policy/v1", "PodDisruptionBudget", "poddisruptionbudgets")
NETWORK_POLICY: Final = Kind("networking.k8s.io/v1", "NetworkPolicy", "networkpolicies")
POD_MONITOR: Final = Kind("monitoring.coreos.com/v1", "PodMonitor", "podmonitors")
DEFINITION: Final = Kind("apiextensions.k8s.io/v1", "CustomResourceDefinition", "customresourcedefinitions")

OWNED_KINDS: Final = (
    SERVICE_ACCOUNT,
    CONFIG_MAP,
    SERVICE,
    STATEFUL_SET,
    DISRUPTION_BUDGET,
    NETWORK_POLICY,
    POD_MONITOR,
)
"""Kinds that are rendered for a Cluster; PodMonitor only where it exists."""

# ---------------------------------------------------------------------------------------------------- labels

NAME_LABEL: Final = "app.kubernetes.io/name"
INSTANCE_LABEL: Final = "app.kubernetes.io/instance"
COMPONENT_LABEL: Final = "app.kubernetes.io/component"
MANAGED_BY_LABEL: Final = "app.kubernetes.io/managed-by"
CLUSTER_LABEL: Final = f"{GROUP}/cluster"
POOL_LABEL: Final = f"{GROUP}/pool"
APP_NAME: Final = "fairlead"
BROKER_COMPONENT: Final = "broker"
ETCD_COMPONENT: Final = "etcd"

POD_INDEX_LABEL: Final = "apps.kubernetes.io/pod-index"
"""The StatefulSet's controller puts the ordinal of a pod here; for a broker it is its id."""
POD_NAME_LABEL: Final = "statefulset.kubernetes.io/pod-name"
ZONE_LABEL: Final = "topology.kubernetes.io/zone"
HOST_LABEL: Final = "kubernetes.io/hostname"

# ---------------------------------------------------------------------------------------------------- annotations

PAUSED_ANNOTATION: Final = f"{GROUP}/paused"
"""On a Cluster or Topic, `true`: nothing is reconciled but deletion."""
NO_RESTARTS_ANNOTATION: Final = f"{GROUP}/no-restarts"
"""On a Cluster, `true`: everything but restarts of brokers is done."""
RESTART_ANNOTATION: Final = f"{GROUP}/restart"
"""On a Cluster (all brokers) or on a broker's Pod (that one): a reason or `true`; removed when it is done."""
DELETE_POD_AND_CLAIM_ANNOTATION: Final = f"{GROUP}/delete-pod-and-claim"
"""On a broker's Pod, `true`: pod and volume are deleted, and the broker fills an empty disk from the others."""
POD_SPEC_HASH_ANNOTATION: Final = f"{GROUP}/pod-spec-hash"
"""On a pod and its template: fingerprint of the template without this and the next annotation."""
RESTART_CONFIG_HASH_ANNOTATION: Final = f"{GROUP}/restart-config-hash"
"""On a pod and its template: fingerprint of the configuration that is only read at the start."""
ETCD_MEMBER_ANNOTATION: Final = f"{GROUP}/etcd-member"
"""On the claim of a member of etcd: the hexadecimal id of the member whose data is in the volume."""
TOLD_ADDRESS_ANNOTATION: Final = f"{GROUP}/told-address"
"""On a broker's claim: the address from outside that the broker was restarted for, or learned at its start: it is
restarted once for each, and once to forget it."""
ADMINISTRATIVE_ANNOTATIONS: Final = (
    RESTART_ANNOTATION,
    DELETE_POD_AND_CLAIM_ANNOTATION,
    PAUSED_ANNOTATION,
    NO_RESTARTS_ANNOTATION,
)

# ---------------------------------------------------------------------------------------------------- ports, paths

DATA_PORT: Final = 9520
PEER_PORT: Final = 9521
OPS_PORT: Final = 9522
DATA_PORT_NAME: Final = "http"
PEER_PORT_NAME: Final = "http-peer"
OPS_PORT_NAME: Final = "http-ops"
ETCD_CLIENT_PORT: Final = 2379
ETCD_PEER_PORT: Final = 2380
ETCD_METRICS_PORT: Final = 2381
ETCD_CLIENT_PORT_NAME: Final = "client"
ETCD_PEER_PORT_NAME: Final = "peer"
ETCD_METRICS_PORT_NAME: Final = "metrics"

BROKER_CONTAINER: Final = "broker"
ETCD_CONTAINER: Final = "etcd"
DATA_VOLUME: Final = "data"
CONFIG_VOLUME: Final = "config"
TEMPORARY_VOLUME: Final = "tmp"
DATA_PATH: Final = "/var/lib/fairlead"
CONFIG_FOLDER: Final = "/etc/fairlead"
CONFIG_FILE: Final = "broker.yaml"
ETCD_DATA_PATH: Final = "/var/lib/etcd"
USER_ID: Final = 10_001
"""Uid and gid of every container."""

DEFAULT_BROKER_IMAGE: Final = "localhost/fairlead:dev"
DEFAULT_ETCD_IMAGE: Final = "localhost/fairlead-etcd:dev"

# ---------------------------------------------------------------------------------------------------- objects


def owned_labels(cluster: str, component: str | None = None, pool: str | None = None) -> dict[str, str]:
    """Return the labels that an owned object bears; also a selector of everything that bears at least these."""
    labels = {
        NAME_LABEL: APP_NAME,
        INSTANCE_LABEL: cluster,
        MANAGED_BY_LABEL: FIELD_MANAGER,
        CLUSTER_LABEL: cluster,
    }
    if component is not None:
        labels[COMPONENT_LABEL] = component
    if pool is not None:
        labels[POOL_LABEL] = pool
    return labels


def pod_selector(cluster: str, component: str, pool: str | None = None) -> dict[str, str]:
    """Return the labels by which Services, budgets, policies and StatefulSets choose pods."""
    selector = {CLUSTER_LABEL: cluster, COMPONENT_LABEL: component}
    if pool is not None:
        selector[POOL_LABEL] = pool
    return selector


def coordination_name(namespace: str, cluster: str) -> str:
    """Return the cluster name that brokers give in coordination."""
    return f"{namespace}.{cluster}"


def service_account_name(cluster: str) -> str:
    """Return the name of the account that brokers and members of etcd run as."""
    return cluster


def config_map_name(cluster: str) -> str:
    """Return the name of the ConfigMap with the brokers' configuration file."""
    return f"{cluster}-config"


def pool_set_name(cluster: str, pool: str) -> str:
    """Return the name of a pool's StatefulSet."""
    return f"{cluster}-{pool}"


def broker_pod_name(cluster: str, pool: str, broker_id: int) -> str:
    """Return the name of a broker's pod; its ordinal is its id."""
    return f"{pool_set_name(cluster, pool)}-{broker_id}"


def broker_claim_name(cluster: str, pool: str, broker_id: int) -> str:
    """Return the name of the claim that holds a broker's data."""
    return f"{DATA_VOLUME}-{broker_pod_name(cluster, pool, broker_id)}"


def brokers_service_name(cluster: str) -> str:
    """Return the name of the headless Service that gives every broker of every pool a name of its own."""
    return f"{cluster}-brokers"


def bootstrap_service_name(cluster: str) -> str:
    """Return the name of the Service that clients begin at."""
    return f"{cluster}-bootstrap"


def broker_service_name(cluster: str, broker_id: int) -> str:
    """Return the name of the Service of one broker, where the listener asks for them."""
    return f"{cluster}-broker-{broker_id}"


def brokers_budget_name(cluster: str) -> str:
    """Return the name of the PodDisruptionBudget over all brokers."""
    return f"{cluster}-brokers"


def brokers_policy_name(cluster: str) -> str:
    """Return the name of the NetworkPolicy of the brokers."""
    return f"{cluster}-brokers"


def pod_monitor_name(cluster: str) -> str:
    """Return the name of the PodMonitor."""
    return cluster


def etcd_name(cluster: str) -> str:
    """Return the name of the managed etcd: its StatefulSet, client Service, budget and NetworkPolicy."""
    return f"{cluster}-etcd"


def etcd_peers_service_name(cluster: str) -> str:
    """Return the name of the headless Service of etcd's members."""
    return f"{cluster}-etcd-peers"


def etcd_member_name(cluster: str, ordinal: int) -> str:
    """Return the name of a member of etcd, which is that of its pod."""
    return f"{etcd_name(cluster)}-{ordinal}"


def etcd_claim_name(cluster: str, ordinal: int) -> str:
    """Return the name of the claim that holds a member's data."""
    return f"{DATA_VOLUME}-{etcd_member_name(cluster, ordinal)}"


def etcd_client_url(namespace: str, cluster: str, ordinal: int | None = None) -> str:
    """Return the URL of one member for clients, or of the Service before all of them."""
    if ordinal is None:
        return f"http://{etcd_name(cluster)}.{namespace}.svc:{ETCD_CLIENT_PORT}"
    return f"http://{_etcd_host(namespace, cluster, ordinal)}:{ETCD_CLIENT_PORT}"


def etcd_peer_url(namespace: str, cluster: str, ordinal: int) -> str:
    """Return the URL of a member for the other members."""
    return f"http://{_etcd_host(namespace, cluster, ordinal)}:{ETCD_PEER_PORT}"


def _etcd_host(namespace: str, cluster: str, ordinal: int) -> str:
    return f"{etcd_member_name(cluster, ordinal)}.{etcd_peers_service_name(cluster)}.{namespace}.svc"
