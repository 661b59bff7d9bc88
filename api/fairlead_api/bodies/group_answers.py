"""Types of the answers to calls about consumer groups.

The coordinator of the group builds the answers; the SDK and the CLI read the answers. Clients ignore unknown fields.
This module contains only types.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from msgspec import UNSET, UnsetType, field

from fairlead_api.bodies.metadata import Answer, Page

GroupStateName = Literal["empty", "assigning", "reconciling", "stable", "dead"]
"""State of a group. `empty`: the group has no members. `assigning`: the target assignment is being computed.
`reconciling`: members are changing to the target assignment. `stable`: all members have their target assignment.
`dead`: the group is being deleted."""


class AssignedPartitions(Answer, frozen=True, kw_only=True):
    """Partitions of one topic, in ascending order."""

    topic: str
    topic_id: str
    partitions: list[int]


class HeartbeatAnswer(Answer, frozen=True, kw_only=True):
    """Answer to a join or heartbeat.

    `assignment` lists all partitions that the member may own; the field is null if the assignment has not changed. The
    member sends its next heartbeat within `heartbeat_interval_ms`; after `session_timeout_ms` without a heartbeat, the
    member is fenced.
    """

    member_epoch: int
    heartbeat_interval_ms: int
    session_timeout_ms: int
    assignment: list[AssignedPartitions] | None = None


class CommitResult(Answer, frozen=True, kw_only=True):
    """Result of a commit for one partition, in request order; if `problem` is set, the offset was not stored."""

    topic: str
    topic_id: str | None
    partition: int
    problem: dict[str, object] | UnsetType = UNSET


class CommitAnswer(Answer, frozen=True, kw_only=True):
    """Answer to `PUT /v1/groups/{group}/offsets`."""

    offsets: list[CommitResult]


class CommittedOffset(Answer, frozen=True, kw_only=True):
    """Committed offset of a group in one partition; `committed_at` is an RFC 3339 timestamp."""

    topic: str
    topic_id: str
    partition: int
    offset: int
    leader_epoch: int | None
    metadata: str
    committed_at: str


class OffsetsAnswer(Answer, frozen=True, kw_only=True):
    """Committed offsets, sorted by topic name and partition; the answer to a deletion lists the deleted offsets."""

    offsets: list[CommittedOffset]


class ResetOffset(Answer, frozen=True, kw_only=True):
    """Committed offset of one partition before a reset (null if the group had no offset) and after the reset.

    If `problem` is set, the offset is unchanged, because the partition could not be queried or the position is not in
    its log.
    """

    topic: str
    topic_id: str
    partition: int
    before: int | None
    after: int | None
    problem: dict[str, object] | UnsetType = UNSET


class ResetAnswer(Answer, frozen=True, kw_only=True):
    """Answer to `POST /v1/groups/{group}/offsets:reset`; a dry run has the same answer."""

    offsets: list[ResetOffset]


class GroupSummary(Answer, frozen=True, kw_only=True):
    """Entry of the list of groups; `coordinator` is a broker id, null while no broker coordinates the group."""

    group: str
    coordinator: int | None


GroupListing: TypeAlias = Page[GroupSummary]
"""Answer to `GET /v1/groups`: one page of groups, in a stable order."""


class MemberDescription(Answer, frozen=True, kw_only=True):
    """Member of a group, with its subscription and its partitions.

    The member owns the partitions in `assignment` and, until it confirms their revocation, those in `revoking`;
    `target` is the member's future assignment.
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
    """Answer to `GET /v1/groups/{group}`; `epoch` increases with every change of members, subscriptions or topics."""

    group: str
    state: GroupStateName
    epoch: int
    assignor: str
    coordinator: int
    members: list[MemberDescription]


class PartitionLag(Answer, frozen=True, kw_only=True):
    """Lag of a group in one partition.

    `committed_offset` is null if no offset was committed. The lag counts only existing records: it is counted from the
    log start if no offset was committed or if retention has deleted records after the committed offset. `lag_seconds`
    is the age of the next record to read, or 0 if there is no lag. With `isolation=read_committed`, the lag ends at the
    last stable offset, before the first record of an open transaction. If `problem` is set, the partition could not be
    queried, and the values from its leader are null. `member_id` is the owner of the partition, null if the partition
    has no owner.
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
    """Answer to `GET /v1/groups/{group}/lag`; the totals exclude partitions with a problem."""

    group: str
    lag: list[PartitionLag]
    total_records: int
    max_seconds: float
