"""What operators ask of brokers and partitions, and what they are answered.

The bodies of the calls in `operation_routes`, for server, SDK and CLI. Values only.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from fairlead_api.bodies.metadata import Answer
from fairlead_api.bodies.requests import Request

BROKER_ID_MAX = 2**31 - 1

ElectionKind = Literal["preferred", "unclean"]
BrokerNumber = Annotated[int, Meta(ge=0, le=BROKER_ID_MAX)]


class ReassignRequest(Request, frozen=True, kw_only=True):
    """Body of `POST .../partitions/{partition}:reassign`: the brokers to keep it, the preferred leader first."""

    replicas: list[BrokerNumber]


class ElectRequest(Request, frozen=True, kw_only=True):
    """Body of `POST .../partitions/{partition}:elect`.

    `preferred`: the first replica leads, if it is in sync. `unclean`: the longest log there is leads, where no
    complete replica is left and the topic allows it; records may be lost.
    """

    kind: ElectionKind = "preferred"


class PartitionState(Answer, frozen=True, kw_only=True):
    """A partition after what was asked for; `leader` is null while there is none."""

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
    """How far a replica that is being added has come; null what its broker, or the leader's, does not tell."""

    broker: int
    log_end_offset: int | None
    lag_records: int | None
    """Offsets up to the leader's end."""
    copied_bytes: int | None
    total_bytes: int | None
    """Bytes that the leader has."""


class ReassignmentDescription(Answer, frozen=True, kw_only=True):
    """A move that is under way; `replicas` is where it leads to, `progress` tells of each that is added."""

    topic: str
    topic_id: str
    partition: int
    replicas: list[int]
    adding: list[int]
    removing: list[int]
    isr: list[int]
    progress: tuple[ReplicaProgress, ...] = ()


ReplicaDigestState = Literal["compared", "no_answer", "not_held", "damaged", "unreadable"]


class ReplicaDigest(Answer, frozen=True, kw_only=True):
    """What one replica holds of a range.

    `compared`: it has all of it, and `digest` tells whether it is the same; `no_answer`: its broker does not answer;
    `not_held`: it lacks a part, or there is no copy; `damaged`: from `damaged_offset` on stored bytes have changed;
    `unreadable`: the disk does not read. `detail` says more.
    """

    broker: int
    state: ReplicaDigestState
    digest: str | None
    log_start_offset: int | None
    log_end_offset: int | None
    damaged_offset: int | None
    first_difference: int | None
    """First offset of the piece in which the copy first differs from the leader's."""
    detail: str | None


class PartitionDigest(Answer, frozen=True, kw_only=True):
    """The replicas of a partition compared from `first_offset` up to `end_offset`.

    `next_offset`: where to go on, because time was up; null when all that was asked for was compared. Digests are to
    be compared within one answer only.
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
    """Whether every replica has told its digest and all are the same."""
    replicas: list[ReplicaDigest]


class RestartPermitAnswer(Answer, frozen=True, kw_only=True):
    """The cluster's one permit to restart a broker, and for how many seconds it holds."""

    broker: int
    seconds: int
