"""Names of the kinds, objects, labels, annotations, ports and paths that the operator creates or reads.

All packages of the operator and the tests use this module. Names must not change: a StatefulSet, a claim or a label
selector cannot be renamed while a cluster runs. The module must not depend on the content of the objects.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final, Literal, TypeAlias

Manifest: TypeAlias = dict[str, Any]
"""A Kubernetes object as plain data."""

Scheme: TypeAlias = Literal["http", "https"]

GROUP: Final = "fairlead.dev"
VERSION: Final = "v1alpha1"
API_VERSION: Final = f"{GROUP}/{VERSION}"
FIELD_MANAGER: Final = "fairlead-operator"
"""Field manager of all server-side applies."""
TOPIC_FINALIZER: Final = f"{GROUP}/topic"
REBALANCE_FINALIZER: Final = f"{GROUP}/rebalance"
USER_FINALIZER: Final = f"{GROUP}/user"
LINK_FINALIZER: Final = f"{GROUP}/link"

# ---------------------------------------------------------------------------------------------------- kinds


@dataclass(frozen=True, slots=True, order=True)
class Kind:
    """A kind of Kubernetes object: its names in manifests (`api_version`, `kind`) and in URLs (`plural`)."""

    api_version: str
    kind: str
    plural: str


@dataclass(frozen=True, slots=True, order=True)
class ObjectRef:
    """Reference to one object. The namespace is empty for cluster-scoped kinds."""

    kind: Kind
    namespace: str
    name: str

    def __str__(self) -> str:
        """Return the reference as text, `Kind namespace/name`."""
        return (
            f"{self.kind.kind} {self.namespace}/{self.name}"
            if self.namespace
            else f"{self.kind.kind} {self.name}"
        )


CLUSTER: Final = Kind(API_VERSION, "Cluster", "clusters")
TOPIC: Final = Kind(API_VERSION, "Topic", "topics")
REBALANCE: Final = Kind(API_VERSION, "Rebalance", "rebalances")
USER: Final = Kind(API_VERSION, "User", "users")
LINK: Final = Kind(API_VERSION, "Link", "links")
ETCD_BACKUP: Final = Kind(API_VERSION, "EtcdBackup", "etcdbackups")
CRON_JOB: Final = Kind("batch/v1", "CronJob", "cronjobs")
JOB: Final = Kind("batch/v1", "Job", "jobs")
STATEFUL_SET: Final = Kind("apps/v1", "StatefulSet", "statefulsets")
DEPLOYMENT: Final = Kind("apps/v1", "Deployment", "deployments")
POD: Final = Kind("v1", "Pod", "pods")
SERVICE: Final = Kind("v1", "Service", "services")
SECRET: Final = Kind("v1", "Secret", "secrets")
CERTIFICATE: Final = Kind("cert-manager.io/v1", "Certificate", "certificates")
SERVICE_ACCOUNT: Final = Kind("v1", "ServiceAccount", "serviceaccounts")
CONFIG_MAP: Final = Kind("v1", "ConfigMap", "configmaps")
CLAIM: Final = Kind("v1", "PersistentVolumeClaim", "persistentvolumeclaims")
NODE: Final = Kind("v1", "Node", "nodes")
NAMESPACE: Final = Kind("v1", "Namespace", "namespaces")
EVENT: Final = Kind("events.k8s.io/v1", "Event", "events")
STORAGE_CLASS: Final = Kind("storage.k8s.io/v1", "StorageClass", "storageclasses")
ROLE_BINDING: Final = Kind("rbac.authorization.k8s.io/v1", "RoleBinding", "rolebindings")
LEASE: Final = Kind("coordination.k8s.io/v1", "Lease", "leases")
DISRUPTION_BUDGET: Final = Kind("policy/v1", "PodDisruptionBudget", "poddisruptionbudgets")
NETWORK_POLICY: Final = Kind("networking.k8s.io/v1", "NetworkPolicy", "networkpolicies")
INGRESS: Final = Kind("networking.k8s.io/v1", "Ingress", "ingresses")
HTTP_ROUTE: Final = Kind("gateway.networking.k8s.io/v1", "HTTPRoute", "httproutes")
TLS_ROUTE: Final = Kind("gateway.networking.k8s.io/v1", "TLSRoute", "tlsroutes")
POD_MONITOR: Final = Kind("monitoring.coreos.com/v1", "PodMonitor", "podmonitors")
DEFINITION: Final = Kind("apiextensions.k8s.io/v1", "CustomResourceDefinition", "customresourcedefinitions")

FINALIZERS: Final[Mapping[Kind, str]] = MappingProxyType(
    {
        TOPIC: TOPIC_FINALIZER,
        REBALANCE: REBALANCE_FINALIZER,
        USER: USER_FINALIZER,
        LINK: LINK_FINALIZER,
    }
)
"""Kinds whose objects have a finalizer of the operator while they have state in a cluster, such as a topic."""

OWNED_KINDS: Final = (
    SERVICE_ACCOUNT,
    CONFIG_MAP,
    SERVICE,
    STATEFUL_SET,
    DEPLOYMENT,
    DISRUPTION_BUDGET,
    NETWORK_POLICY,
    INGRESS,
    HTTP_ROUTE,
    TLS_ROUTE,
    POD_MONITOR,
)
"""Kinds of the objects that are rendered for a Cluster."""
OPTIONAL_KINDS: Final = (HTTP_ROUTE, TLS_ROUTE, POD_MONITOR)
"""Kinds that are rendered only if the API server has their definitions."""

# ---------------------------------------------------------------------------------------------------- labels

NAME_LABEL: Final = "app.kubernetes.io/name"
INSTANCE_LABEL: Final = "app.kubernetes.io/instance"
COMPONENT_LABEL: Final = "app.kubernetes.io/component"
MANAGED_BY_LABEL: Final = "app.kubernetes.io/managed-by"
CLUSTER_LABEL: Final = f"{GROUP}/cluster"
POOL_LABEL: Final = f"{GROUP}/pool"
BACKUP_LABEL: Final = f"{GROUP}/etcd-backup"
"""Label with the name of an EtcdBackup, on its CronJob or Job and on its pods."""
BACKUP_OF_LABEL: Final = f"{GROUP}/etcd-backup-of"
"""Label with the name of the Cluster whose etcd a pod may read for a snapshot."""
APP_NAME: Final = "fairlead"
BROKER_COMPONENT: Final = "broker"
CONSOLE_COMPONENT: Final = "console"
ETCD_COMPONENT: Final = "etcd"
BACKUP_COMPONENT: Final = "etcd-backup"

POD_INDEX_LABEL: Final = "apps.kubernetes.io/pod-index"
"""Label with the ordinal of a pod, set by the StatefulSet controller. The ordinal of a broker pod equals the broker
id."""
POD_NAME_LABEL: Final = "statefulset.kubernetes.io/pod-name"
ZONE_LABEL: Final = "topology.kubernetes.io/zone"
HOST_LABEL: Final = "kubernetes.io/hostname"

# ---------------------------------------------------------------------------------------------------- annotations

PAUSED_ANNOTATION: Final = f"{GROUP}/paused"
"""Annotation on a Fairlead resource: if the value is `true`, the operator handles only the deletion of the resource."""
REBALANCE_ANNOTATION: Final = f"{GROUP}/rebalance"
"""Annotation on a Rebalance, which the operator removes once the annotation has taken effect: `approve` begins the
moves of the proposal, `refresh` requests another proposal, and `stop` cancels the moves."""
NO_RESTARTS_ANNOTATION: Final = f"{GROUP}/no-restarts"
"""Annotation on a Cluster: if the value is `true`, the operator reconciles the Cluster but restarts no broker."""
RESTART_ANNOTATION: Final = f"{GROUP}/restart"
"""Annotation that requests a restart. On a Cluster, the annotation restarts all brokers; on a broker's Pod, it restarts
only this broker. The value of the annotation is a reason or `true`. The operator removes the annotation when the
restart is done."""
DELETE_POD_AND_CLAIM_ANNOTATION: Final = f"{GROUP}/delete-pod-and-claim"
"""Annotation on a broker's Pod: if the value is `true`, the operator deletes the pod and its volume, and the broker
copies its replicas from the other brokers to an empty disk.
"""
POD_SPEC_HASH_ANNOTATION: Final = f"{GROUP}/pod-spec-hash"
"""Annotation on a pod and its template: fingerprint of the template without this annotation and
`RESTART_CONFIG_HASH_ANNOTATION`."""
RESTART_CONFIG_HASH_ANNOTATION: Final = f"{GROUP}/restart-config-hash"
"""Annotation on a pod and its template: fingerprint of the configuration that brokers read only at startup."""
ETCD_MEMBER_ANNOTATION: Final = f"{GROUP}/etcd-member"
"""Annotation on the claim of an etcd member: hexadecimal id of the member whose data the volume contains."""
PEER_SCHEME_ANNOTATION: Final = f"{GROUP}/peer-scheme"
"""Annotation on a pod template: scheme of the peer listener, if the pods have a certificate for it."""
ETCD_SCHEME_ANNOTATION: Final = f"{GROUP}/etcd-scheme"
"""Annotation on a broker's pod and its template: scheme of the calls to a managed etcd; absent for http."""
ETCD_TRANSPORT_ANNOTATION: Final = f"{GROUP}/etcd-transport"
"""Annotation on an etcd pod and its template: `both` for listeners both with and without TLS, `tls` for listeners with
TLS only; without the annotation, no listener has TLS.
"""
AUTHORITIES_SINCE_ANNOTATION: Final = f"{GROUP}/authorities-since"
"""Annotation on the ConfigMap with the authorities that clients trust: time of the last change of the authorities."""
ETCD_AUTHORITIES_ANNOTATION: Final = f"{GROUP}/etcd-authorities"
"""Annotation on an etcd pod and its template: fingerprint of the authorities, which a member reads at startup."""
SECURITY_FLOOR_ANNOTATION: Final = f"{GROUP}/security-floor"
"""Annotation on a pod and its template: least strict security mode of the broker."""
RENEW_CA_ANNOTATION: Final = f"{GROUP}/renew-ca"
"""Annotation on a Cluster that requests the replacement of its authority. The operator removes the annotation when the
next authority exists."""
SKIP_OVERLAP_ANNOTATION: Final = f"{GROUP}/skip-overlap"
"""Annotation on a Cluster: if the value is `true`, the replacement of an authority does not wait for clients."""
RENEW_TOKEN_ANNOTATION: Final = f"{GROUP}/renew-token"
"""Annotation on a User that requests another token. The operator removes the annotation when the Secret contains the
new token."""
ANNOUNCED_ADDRESS_ANNOTATION: Final = f"{GROUP}/told-address"
"""Annotation on a broker's claim: the external address for which the broker was last restarted or that it read at
startup. A broker is restarted once for each new address, and once when the address is removed."""
ADMINISTRATIVE_ANNOTATIONS: Final = (
    RESTART_ANNOTATION,
    DELETE_POD_AND_CLAIM_ANNOTATION,
    PAUSED_ANNOTATION,
    NO_RESTARTS_ANNOTATION,
)

# ---------------------------------------------------------------------------------------------------- ports, paths

DATA_PORT: Final = 9520
TLS_PORT: Final = 9524
"""Port at which brokers serve clients with TLS, whether or not the data port has TLS."""
EXTERNAL_PORT: Final = 9523
"""Port of the brokers' listener for clients outside the Kubernetes cluster."""
KAFKA_PORT: Final = 9092
CONSOLE_PORT: Final = 9580
PEER_PORT: Final = 9521
OPS_PORT: Final = 9522
DATA_PORT_NAME: Final = "http"
TLS_PORT_NAME: Final = "https"
EXTERNAL_PORT_NAME: Final = "external"
KAFKA_PORT_NAME: Final = "kafka"
PEER_PORT_NAME: Final = "http-peer"
OPS_PORT_NAME: Final = "http-ops"
ETCD_CLIENT_PORT: Final = 2379
ETCD_PEER_PORT: Final = 2380
ETCD_METRICS_PORT: Final = 2381
ETCD_TLS_CLIENT_PORT: Final = 2479
ETCD_TLS_PEER_PORT: Final = 2480
"""Ports of the listeners with TLS. The listeners without TLS have other ports, because a member has both kinds of
listeners while TLS is added to or removed from a running etcd."""
ETCD_CLIENT_PORT_NAME: Final = "client"
ETCD_PEER_PORT_NAME: Final = "peer"
ETCD_METRICS_PORT_NAME: Final = "metrics"
ETCD_TLS_CLIENT_PORT_NAME: Final = "client-tls"
ETCD_TLS_PEER_PORT_NAME: Final = "peer-tls"

BROKER_CONTAINER: Final = "broker"
CONSOLE_CONTAINER: Final = "console"
ETCD_CONTAINER: Final = "etcd"
DATA_VOLUME: Final = "data"
CONFIG_VOLUME: Final = "config"
TEMPORARY_VOLUME: Final = "tmp"
DATA_PATH: Final = "/var/lib/fairlead"
CONFIG_FOLDER: Final = "/etc/fairlead"
CONFIG_FILE: Final = "broker.yaml"
ETCD_DATA_PATH: Final = "/var/lib/etcd"
USER_ID: Final = 10_001
"""User id and group id of the process in every container."""

DEFAULT_BROKER_IMAGE: Final = "localhost/fairlead:dev"
DEFAULT_ETCD_IMAGE: Final = "localhost/fairlead-etcd:dev"

# ---------------------------------------------------------------------------------------------------- objects


def owned_labels(cluster: str, component: str | None = None, pool: str | None = None) -> dict[str, str]:
    """Return the labels of an owned object.

    The labels can also be used as a selector for all objects with at least these labels.
    """
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
    """Return the labels by which Services, disruption budgets, network policies and StatefulSets select pods."""
    selector = {CLUSTER_LABEL: cluster, COMPONENT_LABEL: component}
    if pool is not None:
        selector[POOL_LABEL] = pool
    return selector


def coordination_name(namespace: str, cluster: str) -> str:
    """Return the cluster name under which the brokers store their keys in etcd."""
    return f"{namespace}.{cluster}"


def service_account_name(cluster: str) -> str:
    """Return the name of the service account of brokers and etcd members."""
    return cluster


def config_map_name(cluster: str) -> str:
    """Return the name of the ConfigMap with the brokers' configuration file."""
    return f"{cluster}-config"


def authority_name(cluster: str) -> str:
    """Return the name of the Secret with the authority, and of the ConfigMap with all authorities that are trusted."""
    return f"{cluster}-ca"


def brokers_tls_name(cluster: str) -> str:
    """Return the name of the Secret with the brokers' certificate, signed by the operator's own authority."""
    return f"{cluster}-brokers-tls"


def etcd_tls_name(cluster: str) -> str:
    """Return the name of the Secret that contains the certificate for all members of a managed etcd."""
    return f"{cluster}-etcd-tls"


def etcd_client_name(cluster: str) -> str:
    """Return the name of the Secret with the client certificate of brokers and snapshots for a managed etcd."""
    return f"{cluster}-etcd-client"


def clients_tls_name(cluster: str) -> str:
    """Return the name of the cert-manager Certificate for client listeners, which is also the name of its Secret."""
    return f"{cluster}-clients-tls"


def audience_of(namespace: str, cluster: str) -> str:
    """Return the audience of service account tokens for the brokers of a Cluster."""
    return f"fairlead/{namespace}/{cluster}"


def pool_set_name(cluster: str, pool: str) -> str:
    """Return the name of a pool's StatefulSet."""
    return f"{cluster}-{pool}"


def broker_pod_name(cluster: str, pool: str, broker_id: int) -> str:
    """Return the name of a broker's pod. The pod's ordinal is the broker id."""
    return f"{pool_set_name(cluster, pool)}-{broker_id}"


def broker_claim_name(cluster: str, pool: str, broker_id: int) -> str:
    """Return the name of the claim with a broker's data."""
    return f"{DATA_VOLUME}-{broker_pod_name(cluster, pool, broker_id)}"


def brokers_service_name(cluster: str) -> str:
    """Return the name of the headless Service that gives each broker of each pool its own DNS name."""
    return f"{cluster}-brokers"


def bootstrap_service_name(cluster: str) -> str:
    """Return the name of the bootstrap Service."""
    return f"{cluster}-bootstrap"


def external_service_name(cluster: str) -> str:
    """Return the name of the bootstrap Service for external clients, which exists unless the listener is internal."""
    return f"{cluster}-external"


def kafka_service_name(cluster: str, broker_id: int) -> str:
    """Return the name of the Service of one broker for clients of Kafka's protocol outside of Kubernetes."""
    return f"{cluster}-kafka-{broker_id}"


def broker_service_name(cluster: str, broker_id: int) -> str:
    """Return the name of the Service of one broker, which exists if the listener has a Service for each broker."""
    return f"{cluster}-broker-{broker_id}"


def brokers_budget_name(cluster: str) -> str:
    """Return the name of the PodDisruptionBudget for all brokers."""
    return f"{cluster}-brokers"


def brokers_policy_name(cluster: str) -> str:
    """Return the name of the brokers' NetworkPolicy."""
    return f"{cluster}-brokers"


def metrics_user_name(cluster: str) -> str:
    """Return the name of the User whose token Prometheus uses to read metrics, which is also the name of its Secret."""
    return f"{cluster}-metrics"


def link_credentials_name(cluster: str) -> str:
    """Return the name of the Secret with the credentials of all links, which the brokers' pods mount."""
    return f"{cluster}-link-credentials"


def console_name(cluster: str) -> str:
    """Return the name of the console: its Deployment, Service, NetworkPolicy and route."""
    return f"{cluster}-console"


def pod_monitor_name(cluster: str) -> str:
    """Return the name of the PodMonitor."""
    return cluster


def etcd_name(cluster: str) -> str:
    """Return the name of the managed etcd: its StatefulSet, client Service, budget and NetworkPolicy."""
    return f"{cluster}-etcd"


def etcd_peers_service_name(cluster: str) -> str:
    """Return the name of the headless Service for the etcd members."""
    return f"{cluster}-etcd-peers"


def etcd_member_name(cluster: str, ordinal: int) -> str:
    """Return the name of an etcd member, which is also the name of its pod."""
    return f"{etcd_name(cluster)}-{ordinal}"


def etcd_claim_name(cluster: str, ordinal: int) -> str:
    """Return the name of the claim with an etcd member's data."""
    return f"{DATA_VOLUME}-{etcd_member_name(cluster, ordinal)}"


def backup_job_name(backup: str) -> str:
    """Return the name of the CronJob or Job of an EtcdBackup."""
    return f"{backup}-backup"


def etcd_client_url(
    namespace: str, cluster: str, ordinal: int | None = None, *, scheme: Scheme = "http"
) -> str:
    """Return the client URL of one etcd member; without `ordinal`, the URL of the Service for all members."""
    port = ETCD_CLIENT_PORT if scheme == "http" else ETCD_TLS_CLIENT_PORT
    host = (
        f"{etcd_name(cluster)}.{namespace}.svc"
        if ordinal is None
        else _etcd_host(namespace, cluster, ordinal)
    )
    return f"{scheme}://{host}:{port}"


def etcd_peer_url(namespace: str, cluster: str, ordinal: int, *, scheme: Scheme = "http") -> str:
    """Return the peer URL of an etcd member."""
    port = ETCD_PEER_PORT if scheme == "http" else ETCD_TLS_PEER_PORT
    return f"{scheme}://{_etcd_host(namespace, cluster, ordinal)}:{port}"


def _etcd_host(namespace: str, cluster: str, ordinal: int) -> str:
    return f"{etcd_member_name(cluster, ordinal)}.{etcd_peers_service_name(cluster)}.{namespace}.svc"
