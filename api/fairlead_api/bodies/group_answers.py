"""What the calls about consumer groups answer, field by field.

Built by the group's coordinator, read by SDK and CLI. Readers ignore fields that they do not know. Values only.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from msgspec import UNSET, UnsetType, field

from fairlead_api.bodies.metadata import Answer, Page

GroupStateName = Literal["empty", "assigning", "reconciling", "stable", "dead"]
"""`empty`: no members. `assigning`: the target is about to be computed. `reconciling`: members are on their way to it.
`stable`: all are there. `dead`: the group is being deleted."""


class AssignedPartitions(Answer, frozen=True, kw_only=True):
    """Partitions of one topic, in ascending order."""

    topic: str
    topic_id: str
    partitions: list[int]


class HeartbeatAnswer(Answer, frozen=True, kw_only=True):
    """Answer to a join or heartbeat. `assignment` is all that the member may own, null where that did not change.

    The member sends its next heartbeat within `heartbeat_interval_ms`; after `session_timeout_ms` without one it is
    fenced.
    """

    member_epoch: int
    heartbeat_interval_ms: int
    session_timeout_ms: int
    assignment: list[AssignedPartitions] | None = None


class CommitResult(Answer, frozen=True, kw_only=True):
    """One partition of a commit, in order of the request: stored, unless `problem` says why not."""

    topic: str
    topic_id: str | None
    partition: int
    problem: dict[str, object] | UnsetType = UNSET


class CommitAnswer(Answer, frozen=True, kw_only=True):
    """Answer of `PUT /v1/groups/{group}/offsets`."""

    offsets: list[CommitResult]


class CommittedOffset(Answer, frozen=True, kw_only=True):
    """Where a group goes on in one partition; `committed_at` is RFC 3339."""

    topic: str
    topic_id: str
    partition: int
    offset: int
    leader_epoch: int | None
    metadata: str
    committed_at: str


class OffsetsAnswer(Answer, frozen=True, kw_only=True):
    """Committed offsets, by topic name and partition; after a deletion the deleted offsets."""

    offsets: list[CommittedOffset]


class ResetOffset(Answer, frozen=True, kw_only=True):
    """One partition of a reset: the committed offset before, null where there was none, and after.

    With `problem` the partition could not be asked or the position is not in its log; it stays as it was.
    """

    topic: str
    topic_id: str
    partition: int
    before: int | None
    after: int | None
    problem: dict[str, object] | UnsetType = UNSET


class ResetAnswer(Answer, frozen=True, kw_only=True):
    """Answer of `POST /v1/groups/{group}/offsets:reset`, the same whether it was a dry run."""

    offsets: list[ResetOffset]


class GroupSummary(Answer, frozen=True, kw_only=True):
    """A group of the list; `coordinator` is a broker id, null while no broker has the group."""

    group: str
    coordinator: int | None


GroupListing: TypeAlias = Page[GroupSummary]
"""Answer of `GET /v1/groups`: one page of groups, in an order that stays."""


class MemberDescription(Answer, frozen=True, kw_only=True):
    """A member: what it reads and what it owns.

    It owns `assignment` and, until it confirms to have given them up, `revoking`; `target` is what it is to own.
    """

    member_id: str
    instance_id: str | None
    member_epoch: int
    topics: list[str]
    topic_pattern: str | None = None
    rack: str | None = None
    assignment: list[AssignedPartitions]
    revoking: list[AssignedPartitions] = field(default_factory=list)
    target: list[AssignedPartitions] = field(default_factory=list)


class GroupDescription(Answer, frozen=True, kw_only=True):
    """Answer of `GET /v1/groups/{group}`. `epoch` grows with every change of members, subscriptions or topics."""

    group: str
    state: GroupStateName
    epoch: int
    assignor: str
    coordinator: int
    members: list[MemberDescription]


class PartitionLag(Answer, frozen=True, kw_only=True):
    """How far a group is behind in one partition.

    `committed_offset` is null where nothing was committed. The lag counts the records that are there: from the start
    of the log where nothing was committed, or where retention has overtaken what was. `lag_seconds` is the age of the
    next record to read, 0 without lag. With `problem` the partition could not be asked, and what its leader would know
    is null. `member_id` is the owner, null without one.
    """

    topic: str
    topic_id: str
    partition: int
    committed_offset: int | None
    high_watermark: int | None
    lag_records: int | None
    lag_seconds: float | None
    member_id: str | None
    problem: dict[str, object] | UnsetType = UNSET


class LagAnswer(Answer, frozen=True, kw_only=True):
    """Answer of `GET /v1/groups/{group}/lag`; the totals leave partitions with a problem out."""

    group: str
    lag: list[PartitionLag]
    total_records: int
    max_seconds: float
