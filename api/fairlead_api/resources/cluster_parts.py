"""The pieces of a Cluster's spec: pools of brokers, their storage and pods, listeners, etcd, network, claims."""

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
"""Broker ids that belong to a pool, from its firstBrokerId on: its replicas have no other."""
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
    """The volume of one broker or one member of etcd."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            Rule(
                "has(self.storageClassName) == has(oldSelf.storageClassName) && "
                "(!has(self.storageClassName) || self.storageClassName == oldSelf.storageClassName)",
                "the storage class of existing volumes cannot be changed; make another pool",
                ".storageClassName",
                RuleReason.FORBIDDEN,
            )
        )
    )

    size: Size
    """How large the volume is, as 100Gi. It can be raised later, never lowered."""
    storage_class_name: ObjectName | None = None
    """The storage class; without it the cluster's default one. It cannot be changed."""


class Resources(Part):
    """Processor and memory of a container."""

    requests: Amounts = Field(default_factory=dict)
    """What the scheduler keeps free for it, as cpu: 500m and memory: 1Gi."""
    limits: Amounts = Field(default_factory=dict)
    """What it may not exceed."""


class TemplateMetadata(Part):
    """Labels and annotations of pods beside the operator's own."""

    labels: Labels = Field(default_factory=dict)
    """Labels; the operator's own (app.kubernetes.io, fairlead.dev) win."""
    annotations: Annotations = Field(default_factory=dict)
    """Annotations; the operator's own (fairlead.dev) win."""


class PodTemplate(Part):
    """What pods have beside what the operator draws, merged into it as a strategic merge patch."""

    metadata: TemplateMetadata | None = None
    """Labels and annotations."""
    spec: Annotated[
        dict[str, JsonValue],
        kubernetes(
            **{"type": "object", "additionalProperties": None, "x-kubernetes-preserve-unknown-fields": True}
        ),
    ] = Field(default_factory=dict)
    """Any part of a pod's spec, as nodeSelector, tolerations or more containers. Lists merge by name. The API \
server judges it when the pods are made."""


class BrokerPool(Part):
    """Brokers of one shape. Pool `a` of the Cluster `main` is the StatefulSet `main-a`."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            Rule(
                "self.firstBrokerId == oldSelf.firstBrokerId",
                "firstBrokerId cannot be changed: ids belong to the data on the volumes",
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
                "a pool's name is a letter followed by letters and digits (a-z, 0-9), and is not 'etcd'",
            ),
            maxLength=20,
        ),
    ]
    """Name of the pool, unique in the Cluster. To rename a pool, add another one, then scale this one to 0."""
    first_broker_id: Annotated[int, Field(ge=0, le=BROKER_ID_MAX)] = 0
    """Id of the pool's first broker; the others follow. The 100 ids from here on belong to the pool. It cannot be \
changed."""
    replicas: Annotated[int, Field(ge=0, le=POOL_IDS)]
    """How many brokers. Brokers that are no longer wanted are emptied first, the highest id first."""
    storage: Storage
    """The volume of each broker."""
    resources: Resources | None = None
    """Processor and memory of each broker."""
    template: PodTemplate | None = None
    """What the pods have beside what the operator draws."""


ListenerType: TypeAlias = Literal["internal", "nodeport", "loadbalancer"]


class DataListener(Part):
    """How clients reach the brokers."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            Rule(
                "!has(self.nodePort) || self.type == 'nodeport'",
                "nodePort is for the type nodeport only",
                ".nodePort",
            ),
            Rule(
                "!has(self.advertisedHost) || self.advertisedHost.contains('{id}') || "
                "self.advertisedHost.contains('{pod}')",
                "advertisedHost names each broker by itself: it contains {id} or {pod}",
                ".advertisedHost",
            ),
        )
    )

    type: ListenerType = "internal"
    """internal: inside of the Kubernetes cluster only. nodeport: a port of every node. loadbalancer: a load balancer \
of the cloud."""
    per_broker: bool = False
    """Whether each broker has a Service of its own, so that clients outside reach the leader directly. Without it \
brokers forward what belongs to others."""
    advertised_host: Annotated[str, kubernetes(maxLength=253, minLength=1)] | None = None
    """Host at which clients reach each broker, with {id}, {pod} and {namespace} as placeholders, as in \
broker-{id}.example.com."""
    annotations: Annotations = Field(default_factory=dict)
    """Annotations of the Services, as load balancers and DNS controllers want them."""
    node_port: Annotated[int, Field(ge=1, le=65535)] | None = None
    """Port of the nodes for the bootstrap Service; without it Kubernetes chooses one."""


class Listeners(Part):
    """Ways to the brokers."""

    data: DataListener = DataListener()
    """What producers, consumers and tools connect to."""


class ManagedEtcd(Part):
    """An etcd that the operator runs for this Cluster alone."""

    replicas: Annotated[
        int,
        Field(ge=1, le=5),
        kubernetes(Rule("self % 2 == 1", "etcd has an odd number of members: 1, 3 or 5")),
    ] = 3
    """How many members: 1, 3 or 5. Members join and leave one at a time."""
    image: Image | None = None
    """Image of etcd; without it the operator's own choice."""
    storage: Storage = Storage(size="2Gi")
    """The volume of each member, of 2Gi unless said otherwise."""
    resources: Resources | None = None
    """Processor and memory of each member."""
    template: PodTemplate | None = None
    """What the pods have beside what the operator draws."""


class ExternalEtcd(Part):
    """An etcd that the operator does not run. The operator only checks its health."""

    endpoints: Annotated[
        tuple[
            Annotated[
                str,
                kubernetes(
                    Rule(
                        "self.matches('^https?://[a-zA-Z0-9.-]+:[0-9]{1,5}$') || "
                        r"self.matches('^https?://\\[[0-9a-fA-F:.]+\\]:[0-9]{1,5}$')",
                        "an endpoint is a URL with host and port, as https://etcd-0.example.com:2379",
                    ),
                    maxLength=300,
                ),
            ],
            ...,
        ],
        kubernetes(minItems=1, maxItems=ETCD_ENDPOINTS_MAX),
    ]
    """URLs of its client ports, 1 to 9."""
    secret_name: ObjectName | None = None
    """Secret in the same namespace with ca.crt, and tls.crt and tls.key or username and password, as the etcd asks \
for them."""


class Etcd(Part):
    """Where the cluster's coordination is kept: exactly one of managed and external."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            Rule("has(self.managed) != has(self.external)", "exactly one of managed and external is set"),
            Rule(
                "has(self.managed) == has(oldSelf.managed)",
                "a Cluster cannot change between managed and external etcd",
                reason=RuleReason.FORBIDDEN,
            ),
        )
    )

    managed: ManagedEtcd | None = None
    """The operator runs it."""
    external: ExternalEtcd | None = None
    """An etcd that the operator does not run."""


class LabelRequirement(Part):
    """One requirement of a label selector."""

    key: LabelKey
    """The label."""
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist"]
    """How its value relates to the values."""
    values: Annotated[tuple[LabelValue, ...], kubernetes(maxItems=LABELS_MAX)] = ()
    """The values, for In and NotIn."""


class LabelSelector(Part):
    """Objects by their labels; an empty one means all."""

    match_labels: Labels = Field(default_factory=dict)
    """Labels that they have."""
    match_expressions: Annotated[tuple[LabelRequirement, ...], kubernetes(maxItems=LABELS_MAX)] = ()
    """Requirements that they meet."""


class AddressBlock(Part):
    """A range of IP addresses."""

    cidr: Annotated[
        str,
        kubernetes(
            Rule("isCIDR(self)", "must be a range of addresses, as 10.0.0.0/8 or 2001:db8::/32"), maxLength=64
        ),
    ]
    """The range."""
    except_: Annotated[
        tuple[Annotated[str, kubernetes(maxLength=64)], ...],
        kubernetes(maxItems=PEERS_MAX),
        Field(alias="except"),
    ] = ()
    """Ranges within it that are left out."""


class NetworkPeer(Part):
    """Peers that may connect, as in a NetworkPolicy: pods and namespaces by labels, or addresses."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            Rule(
                "has(self.ipBlock) != (has(self.podSelector) || has(self.namespaceSelector))",
                "either ipBlock, or podSelector and namespaceSelector",
            )
        )
    )

    pod_selector: LabelSelector | None = None
    """Pods, of the Cluster's namespace unless namespaceSelector says more."""
    namespace_selector: LabelSelector | None = None
    """Namespaces."""
    ip_block: AddressBlock | None = None
    """Addresses."""


class NetworkPolicySettings(Part):
    """Network access to the brokers."""

    enabled: bool = True
    """Whether network policies are made."""
    clients: Annotated[tuple[NetworkPeer, ...], kubernetes(maxItems=PEERS_MAX)] | None = None
    """Peers that may connect to the data port; without it all, with an empty list only the operator and the brokers."""


class PodMonitorSettings(Part):
    """Whether a PodMonitor makes Prometheus scrape the brokers."""

    enabled: bool = True
    """Whether a PodMonitor is made where that kind exists."""


class ClaimPolicy(Part):
    """What happens to the volumes' claims."""

    when_deleted: KeptOrDeleted = Kept
    """When the Cluster is deleted."""
    when_scaled: KeptOrDeleted = Kept
    """When a broker was emptied and taken away."""


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
