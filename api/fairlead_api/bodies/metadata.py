"""What the calls about the cluster and its topics answer, field by field.

Built by the broker, read by SDK and CLI. Readers ignore fields that they do not know, so later releases may
add some. Must not know how the broker stores any of it.
"""

from __future__ import annotations

from typing import Generic, Literal, TypeVar

import msgspec

from fairlead_api.configuration import ConfigEntry

T = TypeVar("T")

TopicState = Literal["creating", "ready", "deleting"]
BrokerState = Literal["running", "draining", "stopping", "gone"]


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """A JSON object that a broker answers."""


class Page(Answer, Generic[T], frozen=True, kw_only=True):
    """One page of a list; `next` is the cursor to pass as `after`, null at the end."""

    items: list[T]
    next: str | None = None


class Versions(Answer, frozen=True, kw_only=True):
    """What this broker speaks and which cluster it belongs to."""

    release: str
    api: list[str]
    batch_formats: list[int]
    codecs: list[str]
    cluster_id: str
    cluster: str
    feature_level: int


class BrokerDescription(Answer, frozen=True, kw_only=True):
    """A broker; `address` is the base URL of its data listener, null for one that is gone.

    A cordoned broker gets no new replicas. `immovable` names partitions (`topic-0`) that a drain cannot take off
    the broker, since no other broker can be given them: at most 100.
    """

    id: int
    address: str | None
    rack: str | None = None
    state: BrokerState = "running"
    cordoned: bool = False
    immovable: list[str] = []


class ClusterDescription(Answer, frozen=True, kw_only=True):
    """The cluster as this broker sees it; `controller` is a broker id, null while there is none."""

    cluster_id: str
    cluster: str
    controller: int | None
    brokers: list[BrokerDescription]


class PartitionMetadata(Answer, frozen=True, kw_only=True):
    """Where a partition lives; brokers are ids, no leader is null.

    While its topic is being created a partition may have neither leader nor replicas yet. `offline` lists the replicas
    whose broker is not registered or whose directory is not healthy; `adding` and `removing` are replicas that join and
    leave while a move is under way. With fewer than `min_isr` in-sync replicas no produce with acks=all succeeds.
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


class TopicMetadata(Answer, frozen=True, kw_only=True):
    """A topic with all its partitions, in order of their index."""

    name: str
    topic_id: str
    partitions: list[PartitionMetadata]


class Metadata(Answer, frozen=True, kw_only=True):
    """What a client needs to find leaders."""

    cluster_id: str
    controller: int | None
    brokers: list[BrokerDescription]
    topics: list[TopicMetadata]


class ConfigDescription(Answer, frozen=True, kw_only=True):
    """Every key that can be set on the cluster or on a broker, its value there and where the value comes from.

    Where the default follows from something else, its rule stands in place of the value.
    """

    config: dict[str, ConfigEntry]


class TopicDescription(Answer, frozen=True, kw_only=True):
    """A topic with each supported configuration key, its value and where the value comes from."""

    name: str
    topic_id: str
    state: TopicState
    partitions: int
    replication_factor: int
    config: dict[str, ConfigEntry]
