"""The status of a Cluster: what the operator has seen and done last."""

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
    """Brokers over all pools."""

    desired: int = 0
    """Number of brokers that should run: the number in the spec, and surplus brokers that may not leave yet."""
    ready: int = 0
    """How many are ready: caught up and serving."""
    summary: ShortText = ""
    """The two as `ready/desired`, for the listing."""


class PoolStatus(Part):
    """One pool."""

    name: ShortText
    """Name of the pool."""
    replicas: int = 0
    """Brokers that exist now, including brokers that are being emptied."""
    ready: int = 0
    """How many of them are ready."""
    updated: int = 0
    """How many of them run the newest template."""
    broker_ids: Annotated[tuple[int, ...], kubernetes(maxItems=200)] = ()
    """Their ids."""


class EtcdMemberStatus(Part):
    """One member of etcd."""

    name: ShortText
    """Name of its pod, or its URL for an external one."""
    id: ShortText = ""
    """Its member id, as etcd writes it."""
    role: Literal["leader", "follower", "learner", "unknown"] = "unknown"
    """What it is in its cluster."""
    healthy: bool = False
    """Whether it answers and has a leader."""


class EtcdRestartStatus(Part):
    """The restart of a member of etcd that is under way."""

    name: ShortText
    """Name of the pod."""
    reason: LongText
    """Reason of the restart, for example a changed template."""
    since: Annotated[str, kubernetes(format="date-time")]
    """Time at which the restart began."""


class EtcdStatus(Part):
    """The etcd of the cluster."""

    replicas: int = 0
    """Members that it has now."""
    ready: int = 0
    """How many of them are healthy."""
    members: Annotated[
        tuple[EtcdMemberStatus, ...],
        kubernetes(
            **{"maxItems": 16, "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]}
        ),
    ] = ()
    """Each of them."""
    restart: EtcdRestartStatus | None = None
    """The restart of a member by the operator, until the member is healthy again."""


class BrokerAddress(Part):
    """Where clients reach one broker."""

    id: int
    """Id of the broker."""
    address: LongText
    """Host and port."""


class ListenerStatus(Part):
    """Where clients reach the brokers by one listener."""

    name: ShortText
    """Name of the listener: data."""
    type: ShortText = ""
    """Its type."""
    bootstrap: LongText = ""
    """The URL to give to clients."""
    brokers: Annotated[
        tuple[BrokerAddress, ...],
        kubernetes(
            **{"maxItems": 2000, "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["id"]}
        ),
    ] = ()
    """Each broker's own address, as advertised to clients."""


class RollStatus(Part):
    """The restart that is under way."""

    broker_id: int
    """The broker that is being restarted, or would be next."""
    reason: LongText
    """Reason of the restart, for example a changed template."""
    since: Annotated[str, kubernetes(format="date-time")]
    """Time at which the restart began."""


class ScaleDownStatus(Part):
    """The brokers that are being taken away; written before the first is cordoned, so that it can be taken back."""

    broker_id: int
    """The broker that is being emptied."""
    broker_ids: Annotated[tuple[int, ...], kubernetes(maxItems=2000)] = ()
    """All that are to go."""
    partitions_left: int
    """Partitions of which it still holds a replica."""


class ClusterStatus(Part):
    """What the operator has seen and done last."""

    observed_generation: int | None = None
    """The generation of the spec that this status answers to."""
    conditions: Conditions = ()
    """Conditions; the reference of conditions explains each type and reason."""
    cluster_id: ShortText | None = None
    """Id of the cluster, as its brokers made it."""
    version: ShortText | None = None
    """The release that all brokers run; while they are being upgraded, the oldest one."""
    format_version: int | None = None
    """The newest format in which brokers store data."""
    brokers: BrokerCount = BrokerCount()
    """Brokers over all pools."""
    pools: Annotated[
        tuple[PoolStatus, ...],
        kubernetes(
            **{"maxItems": 32, "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]}
        ),
    ] = ()
    """Each pool."""
    etcd: EtcdStatus | None = None
    """The etcd."""
    listeners: Annotated[
        tuple[ListenerStatus, ...],
        kubernetes(
            **{"maxItems": 8, "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]}
        ),
    ] = ()
    """Addresses at which clients reach the brokers."""
    roll: RollStatus | None = None
    """The restart that is under way."""
    scale_down: ScaleDownStatus | None = None
    """The broker that is being emptied."""
