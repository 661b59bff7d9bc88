"""Parts of a Cluster's spec: pools of brokers, their storage and pods, etcd, network, claims."""

from __future__ import annotations

from typing import Annotated, Final, Literal, TypeAlias

from pydantic import ConfigDict, Field, JsonValue

from fairlead_api.resources.quantities import AmountOfResource, Size
from fairlead_api.resources.resource import Part
from fairlead_api.resources.schema_rules import Rule, RuleReason, kubernetes, rules
from fairlead_api.resources.texts import (
    AnnotationValue,
    Image,
    LabelKey,
    LabelValue,
    ObjectName,
)

POOLS_MAX: Final = 16
POOL_IDS: Final = 100
"""Number of broker ids that are reserved for a pool, starting at its firstBrokerId."""
BROKER_ID_MAX: Final = 1_000_000
ETCD_ENDPOINTS_MAX: Final = 9
PEERS_MAX: Final = 32
LABELS_MAX: Final = 64

KeptOrDeleted: TypeAlias = Literal["Retain", "Delete"]
Kept: KeptOrDeleted = "Retain"
Labels = Annotated[dict[str, LabelValue], kubernetes(maxProperties=LABELS_MAX)]
Annotations = Annotated[dict[str, AnnotationValue], kubernetes(maxProperties=LABELS_MAX)]
Amounts = Annotated[dict[str, AmountOfResource], kubernetes(maxProperties=16)]


class Storage(Part):
    """Volume of a broker or an etcd member."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            Rule(
                "has(self.storageClassName) == has(oldSelf.storageClassName) && "
                "(!has(self.storageClassName) || self.storageClassName == oldSelf.storageClassName)",
                "the storage class of existing volumes cannot be changed; create another pool",
                ".storageClassName",
                RuleReason.FORBIDDEN,
            )
        )
    )

    size: Size
    """Size of the volume, such as 100Gi. The size can be increased but not decreased."""
    storage_class_name: ObjectName | None = None
    """Storage class of the volume; by default the default storage class of Kubernetes. The storage class cannot be \
changed."""


class Resources(Part):
    """Processor and memory of a container."""

    requests: Amounts = Field(default_factory=dict)
    """Amounts that the scheduler reserves for the container, such as cpu: 500m and memory: 1Gi."""
    limits: Amounts = Field(default_factory=dict)
    """Amounts that the container must not exceed."""


class TemplateMetadata(Part):
    """Labels and annotations of pods in addition to the operator's labels and annotations."""

    labels: Labels = Field(default_factory=dict)
    """Labels of the pods; the operator's own labels (app.kubernetes.io, fairlead.dev) take precedence."""
    annotations: Annotations = Field(default_factory=dict)
    """Annotations of the pods; the operator's own annotations (fairlead.dev) take precedence."""


class PodTemplate(Part):
    """Additions to the pods that the operator creates, applied as a strategic merge patch."""

    metadata: TemplateMetadata | None = None
    """Labels and annotations of the pods."""
    spec: Annotated[
        dict[str, JsonValue],
        kubernetes(
            **{"type": "object", "additionalProperties": None, "x-kubernetes-preserve-unknown-fields": True}
        ),
    ] = Field(default_factory=dict)
    """Any part of a pod's spec, such as nodeSelector, tolerations or further containers. Lists are merged by name. \
The API server validates the merged spec when the pods are created."""


class BrokerPool(Part):
    """Brokers with equal properties. Pool `a` of the Cluster `main` is the StatefulSet `main-a`."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            Rule(
                "self.firstBrokerId == oldSelf.firstBrokerId",
                "firstBrokerId cannot be changed, because the data on the volumes belongs to the broker ids",
                ".firstBrokerId",
                RuleReason.FORBIDDEN,
            )
        )
    )

    name: Annotated[
        str,
        kubernetes(
            Rule(
                "self.matches('^[a-z][a-z0-9]*$') && self != 'etcd'",
                "a pool's name must be a letter followed by letters and digits (a-z, 0-9), and must not be 'etcd'",
            ),
            maxLength=20,
        ),
    ]
    """Name of the pool, unique in the Cluster. To rename a pool, add another pool, then scale the old pool to 0."""
    first_broker_id: Annotated[int, Field(ge=0, le=BROKER_ID_MAX)] = 0
    """Id of the pool's first broker; the ids of the other brokers follow. The 100 ids that start at this id are \
reserved for the pool. The first id cannot be changed."""
    replicas: Annotated[int, Field(ge=0, le=POOL_IDS)]
    """Number of brokers. If the number is decreased, surplus brokers are drained and removed, the highest id first."""
    storage: Storage
    """Volume of each broker."""
    resources: Resources | None = None
    """Processor and memory of each broker; by default a request of 250m and 512Mi. \
An empty value requests neither CPU nor memory."""
    template: PodTemplate | None = None
    """Additions to the pods that the operator creates."""


class EtcdRestore(Part):
    """Snapshot from which an etcd without data starts."""

    claim_name: ObjectName
    """Name of the PersistentVolumeClaim with the snapshots, in the namespace of the Cluster."""
    file: Annotated[str, kubernetes(maxLength=253, minLength=1, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
    """Name of the snapshot on the volume, as in status.lastSnapshot.file of an EtcdBackup."""


class ManagedEtcd(Part):
    """Etcd that the operator runs only for this Cluster."""

    replicas: Annotated[
        int,
        Field(ge=1, le=5),
        kubernetes(Rule("self % 2 == 1", "etcd must have an odd number of members: 1, 3 or 5")),
    ] = 3
    """Number of members: 1, 3 or 5. Members join and leave one at a time."""
    image: Image | None = None
    """Image of etcd; by default an image that the operator selects."""
    restore: EtcdRestore | None = None
    """Snapshot from which the first member starts if no volume contains the data of a member yet; the other members \
join it. An etcd with data ignores the field, so a restore begins with the deletion of all claims of its members."""
    storage: Storage = Storage(size="2Gi")
    """Volume of each member, 2Gi by default."""
    resources: Resources | None = None
    """Processor and memory of each member; by default a request of 100m and 128Mi. \
An empty value requests neither CPU nor memory."""
    template: PodTemplate | None = None
    """Additions to the pods that the operator creates."""


class ExternalEtcd(Part):
    """Etcd that the operator does not run; the operator only checks the health of this etcd."""

    endpoints: Annotated[
        tuple[
            Annotated[
                str,
                kubernetes(
                    Rule(
                        "self.matches('^https?://[a-zA-Z0-9.-]+:[0-9]{1,5}$') || "
                        r"self.matches('^https?://\\[[0-9a-fA-F:.]+\\]:[0-9]{1,5}$')",
                        "an endpoint must be a URL with host and port, such as https://etcd-0.example.com:2379",
                    ),
                    maxLength=300,
                ),
            ],
            ...,
        ],
        kubernetes(minItems=1, maxItems=ETCD_ENDPOINTS_MAX),
    ]
    """URLs of the client ports of etcd, 1 to 9."""
    secret_name: ObjectName | None = None
    """Secret in the same namespace with ca.crt, and with tls.crt and tls.key or username and password, depending on \
the authentication of etcd."""


class Etcd(Part):
    """Store of the cluster's coordination data: exactly one of managed and external."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            Rule(
                "has(self.managed) != has(self.external)", "exactly one of managed and external must be set"
            ),
            Rule(
                "has(self.managed) == has(oldSelf.managed)",
                "a Cluster cannot switch between managed and external etcd",
                reason=RuleReason.FORBIDDEN,
            ),
        )
    )

    managed: ManagedEtcd | None = None
    """Etcd that the operator runs."""
    external: ExternalEtcd | None = None
    """Etcd that the operator does not run."""


class LabelRequirement(Part):
    """Requirement of a label selector on one label."""

    key: LabelKey
    """Key of the label."""
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist"]
    """Relation between the label's value and the values of the requirement."""
    values: Annotated[tuple[LabelValue, ...], kubernetes(maxItems=LABELS_MAX)] = ()
    """Values for the operators In and NotIn."""


class LabelSelector(Part):
    """Selector of objects by their labels; an empty selector selects all objects."""

    match_labels: Labels = Field(default_factory=dict)
    """Labels that selected objects must have."""
    match_expressions: Annotated[tuple[LabelRequirement, ...], kubernetes(maxItems=LABELS_MAX)] = ()
    """Requirements that selected objects must meet."""


class AddressBlock(Part):
    """Range of IP addresses without the excluded ranges."""

    cidr: Annotated[
        str,
        kubernetes(
            Rule("isCIDR(self)", "must be a range of addresses, such as 10.0.0.0/8 or 2001:db8::/32"),
            maxLength=64,
        ),
    ]
    """Range in CIDR notation."""
    except_: Annotated[
        tuple[Annotated[str, kubernetes(maxLength=64)], ...],
        kubernetes(maxItems=PEERS_MAX),
        Field(alias="except"),
    ] = ()
    """Excluded ranges within the range."""


class NetworkPeer(Part):
    """Peers of a connection, as in a NetworkPolicy: pods and namespaces by labels, or IP addresses."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            Rule(
                "has(self.ipBlock) != (has(self.podSelector) || has(self.namespaceSelector))",
                "either ipBlock, or podSelector and namespaceSelector",
            )
        )
    )

    pod_selector: LabelSelector | None = None
    """Selector of pods, in the Cluster's namespace unless namespaceSelector is set."""
    namespace_selector: LabelSelector | None = None
    """Selector of namespaces."""
    ip_block: AddressBlock | None = None
    """Range of IP addresses of the peers."""


class NetworkPolicySettings(Part):
    """Network access to the brokers."""

    enabled: bool = True
    """Whether network policies are created."""
    clients: Annotated[tuple[NetworkPeer, ...], kubernetes(maxItems=PEERS_MAX)] | None = None
    """Peers that may connect to the data port and to the console, such as an Ingress controller; by default all \
peers. With an empty list only the operator, the brokers and the console may connect to the data port."""
    egress: Annotated[tuple[NetworkPeer, ...], kubernetes(maxItems=PEERS_MAX)] | None = None
    """Peers that the brokers may call in addition to the brokers, the managed etcd and DNS, such as the API server \
and other issuers of tokens, or an external etcd; by default all peers. If peers are listed, members of a managed etcd \
can call only each other and DNS."""


class PodMonitorSettings(Part):
    """PodMonitor with which Prometheus scrapes the brokers."""

    enabled: bool = True
    """Whether a PodMonitor is created if Kubernetes has this kind of object."""


class ClaimPolicy(Part):
    """Whether the claims of volumes are retained or deleted."""

    when_deleted: KeptOrDeleted = Kept
    """Policy for claims when the Cluster is deleted."""
    when_scaled: KeptOrDeleted = Kept
    """Policy for claims when a drained broker is removed."""


TopicNamespace = Annotated[
    str,
    kubernetes(
        Rule(
            "self == '*' || self.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?$')",
            "the name of a namespace, or * for all",
        ),
        maxLength=63,
        minLength=1,
    ),
]
