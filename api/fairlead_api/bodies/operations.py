"""Requests and answers for operations on brokers and partitions.

The broker, the SDK and the CLI use these bodies for the calls in `routes.operations`. This module contains only types.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from fairlead_api.bodies.metadata import Answer
from fairlead_api.bodies.requests import BrokerNumber, Request

BROKER_ID_MAX = 2**31 - 1

ElectionKind = Literal["preferred", "unclean"]


class ReassignRequest(Request, frozen=True, kw_only=True):
    """Body of `POST .../partitions/{partition}:reassign`: the brokers of the replicas, the preferred leader first."""

    replicas: list[BrokerNumber]


class ElectRequest(Request, frozen=True, kw_only=True):
    """Body of `POST .../partitions/{partition}:elect`.

    `preferred`: the first replica in the list becomes leader if that replica is in sync. `unclean`: the replica with
    the longest log becomes leader if no complete replica is left and the topic allows unclean elections; records may be
    lost.
    """

    kind: ElectionKind = "preferred"


class PartitionState(Answer, frozen=True, kw_only=True):
    """State of a partition after an operation; `leader` is null for a partition without a leader."""

    topic: str
    topic_id: str
    partition: int
    leader: int | None
    leader_epoch: int
    replicas: list[int]
    adding: list[int]
    removing: list[int]
    isr: list[int]
    elr: list[int]


class ReplicaProgress(Answer, frozen=True, kw_only=True):
    """Progress of a replica that is being added.

    Values that the replica's broker or the leader does not report are null.
    """

    broker: int
    log_end_offset: int | None
    lag_records: int | None
    """Number of offsets from the end of the replica's log to the end of the leader's log."""
    copied_bytes: int | None
    total_bytes: int | None
    """Size of the leader's log in bytes."""


class ReassignmentDescription(Answer, frozen=True, kw_only=True):
    """Move in progress; `replicas` is the target, `progress` has an entry for each replica that is being added."""

    topic: str
    topic_id: str
    partition: int
    replicas: list[int]
    adding: list[int]
    removing: list[int]
    isr: list[int]
    progress: tuple[ReplicaProgress, ...] = ()


class ReplicaSize(Answer, frozen=True, kw_only=True):
    """Log of a replica; both fields are null if its broker does not answer or has no open copy."""

    broker: int
    size_bytes: int | None
    """Number of bytes in the log's batches on the disk."""
    log_end_offset: int | None


class KafkaListenerReport(Answer, frozen=True, kw_only=True):
    """Kafka listener of a broker."""

    address: str
    """Address that the broker advertises to clients of Kafka's protocol."""
    tls: bool
    connections: int
    connections_max: int


class TailFile(Answer, frozen=True, kw_only=True):
    """File of a broker with records that were cut from a mirror, because the source does not have them."""

    topic_id: str
    partition: int
    first_offset: int
    """Offset at which the log was cut."""
    size_bytes: int
    path: str


class BrokerReport(Answer, frozen=True, kw_only=True):
    """Disk, Kafka listener and tail files of a broker, as reported by the broker; null and empty without an answer."""

    broker: int
    disk_total_bytes: int | None = None
    """Size of the volume with the data directory."""
    disk_free_bytes: int | None = None
    """Number of bytes that the broker can still use on this volume."""
    kafka: KafkaListenerReport | None = None
    """Kafka listener; null if the broker has none."""
    tails: list[TailFile] = msgspec.field(default_factory=list)


class PartitionSizes(Answer, frozen=True, kw_only=True):
    """Logs of the replicas of a partition."""

    partition: int
    replicas: list[ReplicaSize]


class TopicSizes(Answer, frozen=True, kw_only=True):
    """Logs of the replicas of a topic."""

    topic: str
    topic_id: str
    partitions: list[PartitionSizes]


ReplicaDigestState = Literal["compared", "no_answer", "not_held", "damaged", "unreadable"]


class ReplicaDigest(Answer, frozen=True, kw_only=True):
    """Result of one replica for a range of offsets.

    `compared`: the replica has the whole range, and `digest` can be compared. `no_answer`: the replica's broker does
    not answer. `not_held`: a part of the range, or the whole replica, is missing. `damaged`: stored bytes have
    changed at `damaged_offset`. `unreadable`: the disk cannot be read. `detail` contains further information.
    """

    broker: int
    state: ReplicaDigestState
    digest: str | None
    log_start_offset: int | None
    log_end_offset: int | None
    damaged_offset: int | None
    first_difference: int | None
    """First offset of the first piece in which the replica differs from the leader."""
    detail: str | None


class PartitionDigest(Answer, frozen=True, kw_only=True):
    """Comparison of the replicas of a partition from `first_offset` up to `end_offset`.

    `next_offset` is the offset at which to continue after the time limit; the field is null if the whole range was
    compared. Of the mode `stored`, two answers with the same first and end offset have the same digest if their records
    are stored as the same bytes, also for a mirror and its source. Of the mode `latest`, digests are comparable only
    within one answer.
    """

    topic: str
    topic_id: str
    partition: int
    leader: int
    leader_epoch: int
    first_offset: int
    end_offset: int
    next_offset: int | None
    identical: bool
    """Whether every replica has reported a digest and all digests are equal."""
    replicas: list[ReplicaDigest]


class RestartPermitAnswer(Answer, frozen=True, kw_only=True):
    """The cluster's only permit to restart a broker, and the validity of the permit in seconds."""

    broker: int
    seconds: int
