"""Status of a Cluster, which the operator writes."""

from __future__ import annotations

from typing import Annotated, Literal

from fairlead_api.resources.conditions import Condition
from fairlead_api.resources.resource import Part
from fairlead_api.resources.schema_rules import kubernetes
from fairlead_api.resources.texts import LongText, ShortText

Conditions = Annotated[
    tuple[Condition, ...],
    kubernetes(
        **{"maxItems": 16, "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]},
    ),
]


class BrokerCount(Part):
    """Numbers of brokers in all pools."""

    desired: int = 0
    """Number of brokers that should run: the number in the spec, plus surplus brokers that cannot be removed yet."""
    ready: int = 0
    """Number of brokers that have caught up and serve requests."""
    summary: ShortText = ""
    """Numbers of ready and desired brokers as `ready/desired`, for listings."""


class PoolStatus(Part):
    """Status of a pool."""

    name: ShortText
    """Name of the pool."""
    replicas: int = 0
    """Number of existing brokers, including brokers that are being drained."""
    ready: int = 0
    """Number of ready brokers of the pool."""
    updated: int = 0
    """Number of brokers of the pool that run with the newest template."""
    broker_ids: Annotated[tuple[int, ...], kubernetes(maxItems=200)] = ()
    """Ids of the brokers."""


class EtcdMemberStatus(Part):
    """Status of an etcd member."""

    name: ShortText
    """Name of the member's pod, or the URL of an external member."""
    id: ShortText = ""
    """Member id in etcd's notation."""
    role: Literal["leader", "follower", "learner", "unknown"] = "unknown"
    """Role of the member in etcd."""
    healthy: bool = False
    """Whether the member answers and has a leader."""


class EtcdRestartStatus(Part):
    """Restart of an etcd member that is in progress."""

    name: ShortText
    """Name of the pod."""
    reason: LongText
    """Reason for the restart, for example a changed template."""
    since: Annotated[str, kubernetes(format="date-time")]
    """Time at which the restart began."""


class EtcdStatus(Part):
    """Status of the cluster's etcd."""

    replicas: int = 0
    """Number of members."""
    ready: int = 0
    """Number of healthy members."""
    members: Annotated[
        tuple[EtcdMemberStatus, ...],
        kubernetes(
            **{"maxItems": 16, "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]}
        ),
    ] = ()
    """Status of each member."""
    restart: EtcdRestartStatus | None = None
    """Restart of a member by the operator; absent when the member is healthy again."""


class BrokerAddress(Part):
    """Address at which clients reach a broker."""

    id: int
    """Id of the broker."""
    address: LongText
    """Host and port."""


class ListenerStatus(Part):
    """Addresses at which clients reach the brokers through a listener."""

    name: ShortText
    """Name of the listener: data (clients inside the Kubernetes cluster), external (clients outside it) or kafka \
(clients of Kafka's protocol)."""
    type: ShortText = ""
    """Type of the listener."""
    bootstrap: LongText = ""
    """Bootstrap URLs of the listener for clients, separated by commas; empty while it has no address. Clients of \
Kafka's protocol have a host and a port instead."""
    brokers: Annotated[
        tuple[BrokerAddress, ...],
        kubernetes(
            **{"maxItems": 2000, "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["id"]}
        ),
    ] = ()
    """Address of each broker that is advertised to clients. Brokers that share the bootstrap address are left out."""


class RollStatus(Part):
    """Rolling restart of brokers that is in progress."""

    broker_id: int
    """Id of the broker that is being restarted or would be restarted next."""
    reason: LongText
    """Reason for the restart, for example a changed template."""
    since: Annotated[str, kubernetes(format="date-time")]
    """Time at which the restart began."""


class ScaleDownStatus(Part):
    """Removal of brokers in progress, written before the first broker is cordoned so that a removal can be undone."""

    broker_id: int
    """Id of the broker that is being drained."""
    broker_ids: Annotated[tuple[int, ...], kubernetes(maxItems=2000)] = ()
    """Ids of all brokers that will be removed."""
    partitions_left: int
    """Number of partitions that still have a replica on the broker."""


class ClusterStatus(Part):
    """Observed state of the cluster."""

    observed_generation: int | None = None
    """Generation of the spec for which the status was written."""
    conditions: Conditions = ()
    """Conditions; the conditions reference explains each type and reason."""
    cluster_id: ShortText | None = None
    """Id of the cluster, which the brokers generated."""
    version: ShortText | None = None
    """Release that all brokers run; during an upgrade, the oldest release."""
    format_version: int | None = None
    """Newest format in which brokers store data."""
    brokers: BrokerCount = BrokerCount()
    """Numbers of brokers in all pools."""
    pools: Annotated[
        tuple[PoolStatus, ...],
        kubernetes(
            **{"maxItems": 32, "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]}
        ),
    ] = ()
    """Status of each pool."""
    etcd: EtcdStatus | None = None
    """Status of the cluster's etcd."""
    listeners: Annotated[
        tuple[ListenerStatus, ...],
        kubernetes(
            **{"maxItems": 8, "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]}
        ),
    ] = ()
    """Addresses at which clients reach the brokers."""
    roll: RollStatus | None = None
    """Rolling restart of brokers that is in progress."""
    scale_down: ScaleDownStatus | None = None
    """Removal of brokers in progress."""
