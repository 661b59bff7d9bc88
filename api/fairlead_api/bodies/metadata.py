"""Types of the answers to calls about the cluster and its topics.

The broker builds the answers; the SDK and the CLI read the answers. Clients ignore unknown fields, so later releases
may add fields. This module must not depend on how the broker stores the values.
"""

from __future__ import annotations

from typing import Generic, Literal, TypeVar

import msgspec

from fairlead_api.configuration import ConfigEntry

T = TypeVar("T")

TopicState = Literal["creating", "ready", "deleting"]
BrokerState = Literal["running", "draining", "stopping", "gone"]


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """JSON object of an answer."""


class Page(Answer, Generic[T], frozen=True, kw_only=True):
    """Page of a list; `next` is the cursor to pass as `after` for the next page, null on the last page."""

    items: list[T]
    next: str | None = None


class Versions(Answer, frozen=True, kw_only=True):
    """Versions that a broker supports, and the id of its cluster."""

    release: str
    api: list[str]
    batch_formats: list[int]
    codecs: list[str]
    cluster_id: str
    cluster: str
    feature_level: int


class BrokerDescription(Answer, frozen=True, kw_only=True):
    """Broker of the cluster; `address` is the base URL of its data listener, null for a broker that is not running.

    `external_address` is the base URL for clients outside the brokers' network: empty if these clients are sent to the
    address that they called, and null for a broker without a listener for these clients. A cordoned broker gets no new
    replicas. `immovable` names at most 100 partitions (`topic-0`) that a drain cannot move away from the broker,
    because no other broker can receive these partitions.
    """

    id: int
    address: str | None
    rack: str | None = None
    state: BrokerState = "running"
    cordoned: bool = False
    immovable: list[str] = []
    external_address: str | None = None


class ClusterDescription(Answer, frozen=True, kw_only=True):
    """State of the cluster as known to this broker.

    `controller` is a broker id, null if the cluster has no controller.
    """

    cluster_id: str
    cluster: str
    controller: int | None
    brokers: list[BrokerDescription]


class PartitionMetadata(Answer, frozen=True, kw_only=True):
    """Leader and replicas of a partition, as broker ids; `leader` is null if the partition has no leader.

    While its topic is being created, a partition may have no leader and no replicas. `offline` lists the replicas whose
    broker is not registered or whose directory is not healthy. `adding` and `removing` are replicas that a move in
    progress adds and removes. If the number of in-sync replicas is below `min_isr`, produce calls with acks=all are
    refused.

    A partition with a write quorum has `voters`, the brokers of its voters, and `write`, the number of voters that must
    store a record. Its `isr` are the voters whose incarnation is registered, and its `elr` is empty.
    """

    partition: int
    leader: int | None
    leader_epoch: int
    replicas: list[int]
    isr: list[int]
    elr: list[int]
    offline: list[int]
    adding: list[int] = []
    removing: list[int] = []
    min_isr: int = 1
    voters: list[int] = []
    write: int | None = None


class ReplicaStanding(Answer, frozen=True, kw_only=True):
    """State of a replica in a partition with a write quorum, as known to the leader.

    Values are null if the leader does not answer.
    """

    broker: int
    counted: int | None
    """Offset below which the replica's records count as stored, null while the replica has not reported."""
    near: bool | None
    """Whether the replica is a voter that has every committed record and caught up within the lag time."""
    entry_is_current: bool | None
    """Whether the partition record names the incarnation that sends the replica's reports; others do not count."""


class PartitionDescription(PartitionMetadata, frozen=True, kw_only=True):
    """State of one partition; `standings` has an entry for each replica of a partition with a write quorum."""

    standings: list[ReplicaStanding] = []


class TopicHandOver(Answer, frozen=True, kw_only=True):
    """Cluster that accepts the topic's records, with base URLs of its brokers."""

    cluster_id: str
    bootstrap: list[str]


class TopicMetadata(Answer, frozen=True, kw_only=True):
    """Topic with all its partitions, in order of their index.

    `is_mirror` is set for a topic that a link writes, and `handed_over` for a topic whose records another cluster
    accepts.
    """

    name: str
    topic_id: str
    partitions: list[PartitionMetadata]
    is_mirror: bool = False
    handed_over: TopicHandOver | None = None


class Metadata(Answer, frozen=True, kw_only=True):
    """Brokers and topics, from which a client learns the leaders of partitions."""

    cluster_id: str
    controller: int | None
    brokers: list[BrokerDescription]
    topics: list[TopicMetadata]


class ConfigDescription(Answer, frozen=True, kw_only=True):
    """Every key that can be set on the cluster or on a broker, with its value and the source of the value.

    For a default that depends on other settings, the value is a description of the rule.
    """

    config: dict[str, ConfigEntry]


class TopicMirror(Answer, frozen=True, kw_only=True):
    """Origin of a mirror: the link that writes the topic, and the clusters through which its records came."""

    link: str
    source_cluster_id: str
    source_topic: str
    state: Literal["mirroring", "handing_over", "promoting"]
    lineage: list[str]


class TopicEra(Answer, frozen=True, kw_only=True):
    """Promotion of the topic: the cluster `cluster_id` wrote the records from the leader epoch `epoch` on."""

    epoch: int
    cluster_id: str


class TopicDescription(Answer, frozen=True, kw_only=True):
    """Topic with each supported configuration key, its value and the source of the value.

    `mirror` is set for a topic that a link writes, and `handed_over` for a topic whose records another cluster accepts.
    `eras` are the promotions of the topic in all clusters, oldest first.
    """

    name: str
    topic_id: str
    state: TopicState
    partitions: int
    replication_factor: int
    config: dict[str, ConfigEntry]
    mirror: TopicMirror | None = None
    eras: list[TopicEra] = []
    handed_over: TopicHandOver | None = None
