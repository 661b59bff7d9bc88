"""The values of the keys under `groups/<group>/`: a group's coordinator, members, target and offsets.

Only the coordinator, which the `CoordinatorRecord` names, reads and writes these records. Other brokers read only
the `CoordinatorRecord`. Group records are not mirrored. A member owns the partitions in `assigned` and `revoking`
of its record (protocol section 5). The module is pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Final

import msgspec

from fairlead_api.identifiers import BrokerEpoch, BrokerId, LeaderEpoch, Offset, TimestampUs, TopicId
from fairlead_broker.registry.records import Count, Entry, Positive, Record

OFFSETS_PER_KEY: Final = 64
"""Number of partitions of a topic whose offsets share one `OffsetsRecord`."""


class CoordinatorRecord(Record, frozen=True, kw_only=True):
    """Value of `groups/<group>/coordinator`, without a lease.

    The claim is valid while the broker runs in the named incarnation.
    """

    broker: BrokerId
    broker_epoch: BrokerEpoch


class GroupRecord(Record, frozen=True, kw_only=True):
    """Value of `groups/<group>/state`."""

    epoch: Count
    """Group epoch, which is increased when members, subscriptions or topics change."""
    target_epoch: Count = 0
    """Group epoch for which the target was computed."""
    assignor: str
    emptied_us: TimestampUs | None = None
    """Time at which the last member left, or None while the group has members.

    While a group has members of the classic protocol, this is an earlier time.
    """
    created_us: TimestampUs


class TargetRecord(Record, frozen=True, kw_only=True):
    """Value of `groups/<group>/targets/<topic id>`: target owner of each partition of one topic."""

    epoch: Count
    """Group epoch for which the target was computed."""
    members: dict[str, tuple[int, ...]]
    """Partitions by member id, each in ascending order. Members without a partition are left out."""


class MemberRecord(Record, frozen=True, kw_only=True):
    """Value of `groups/<group>/members/<member id>`."""

    instance_id: str | None = None
    """Instance id of a static member, which keeps its assignment across a restart, or None for any other member."""
    rack: str | None = None
    topics: tuple[str, ...] = ()
    """Subscribed topic names, in ascending order."""
    topic_pattern: str | None = None
    assignor: str | None = None
    """Assignor that the member requested, or None for the assignor of the group."""
    session_timeout_ms: Positive
    rebalance_timeout_ms: Positive
    epoch: int
    """Member epoch; -2 for a static member that has left and may return."""
    previous_epoch: int
    """Previous member epoch, still accepted because the answer with the new epoch may have been lost."""
    assigned: dict[TopicId, tuple[int, ...]] = msgspec.field(default_factory=dict)
    """Partitions that the member may consume and commit, in ascending order."""
    revoking: dict[TopicId, tuple[int, ...]] = msgspec.field(default_factory=dict)
    """Partitions that the member must release. The member owns the partitions until it confirms their release."""
    principal: str | None = None
    """Principal to which the member and its instance id belong, or None if access rules were not enforced since it
    joined."""


class OffsetEntry(Entry, frozen=True, kw_only=True):
    """Committed offset of a group in one partition."""

    partition: Count
    offset: Offset
    """Offset of the next record to read."""
    leader_epoch: LeaderEpoch | None = None
    """Leader epoch of the batch before the offset, as read by the member."""
    metadata: str = ""
    committed_us: TimestampUs


class OffsetsRecord(Record, frozen=True, kw_only=True):
    """Value of `groups/<group>/offsets/<topic id>/<partition div 64>`."""

    nested: ClassVar[Mapping[str, type[Entry]]] = {"entries": OffsetEntry}

    entries: tuple[OffsetEntry, ...]
    """Entries in ascending order of partition numbers."""


class ClassicGroupRecord(Record, frozen=True, kw_only=True):
    """Value of `groups/<group>/classic`: a generation of a classic Kafka group that has an assignment."""

    generation: Count
    protocol_type: str
    protocol: str
    """Assignor that the members of the generation use."""
    leader: str
    """Member id of the leader, which assigned the partitions."""


class ClassicMemberRecord(Record, frozen=True, kw_only=True):
    """Value of `groups/<group>/classic/members/<member id>`."""

    instance_id: str | None = None
    client_id: str
    client_host: str
    session_timeout_ms: Positive
    rebalance_timeout_ms: Positive
    subscription: bytes
    """Subscription of the member, in the format of the clients' protocol."""
    assignment: bytes
    """Assignment of the member, in the format of the clients' protocol."""
