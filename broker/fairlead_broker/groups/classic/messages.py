"""Events that a classic group receives, and its replies.

A reply to a join or a sync may be given by a later event, so each event has a token that its reply repeats.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

from fairlead_broker.registry.group_records import ClassicGroupRecord, ClassicMemberRecord


class Refusal(StrEnum):
    """Refusals of a classic group, by the names of Kafka's errors."""

    COORDINATOR_NOT_AVAILABLE = "COORDINATOR_NOT_AVAILABLE"
    FENCED_INSTANCE_ID = "FENCED_INSTANCE_ID"
    GROUP_MAX_SIZE_REACHED = "GROUP_MAX_SIZE_REACHED"
    ILLEGAL_GENERATION = "ILLEGAL_GENERATION"
    INCONSISTENT_GROUP_PROTOCOL = "INCONSISTENT_GROUP_PROTOCOL"
    INVALID_SESSION_TIMEOUT = "INVALID_SESSION_TIMEOUT"
    MEMBER_ID_REQUIRED = "MEMBER_ID_REQUIRED"
    REBALANCE_IN_PROGRESS = "REBALANCE_IN_PROGRESS"
    UNKNOWN_MEMBER_ID = "UNKNOWN_MEMBER_ID"


@dataclass(frozen=True, slots=True, kw_only=True)
class Join:
    """Join of a member, which waits until all members have joined."""

    token: object
    member_id: str
    """Id of the member, empty for a member without an id."""
    new_id: str
    """Id for a member without an id."""
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocol_type: str
    protocols: tuple[tuple[str, bytes], ...]
    """Assignors that the member supports, preferred first, each with the member's subscription."""
    needs_known_id: bool
    """Whether a member without an id only gets one, and must join again with it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sync:
    """Request of a member for its assignment; the leader sends the assignments of all members."""

    token: object
    member_id: str
    instance_id: str | None
    generation: int
    protocol_type: str | None = None
    protocol: str | None = None
    assignments: Mapping[str, bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class Beat:
    """Heartbeat of a member."""

    token: object
    member_id: str
    instance_id: str | None
    generation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Leave:
    """Leave of a member, which is named by its id, or by its instance id and an empty id."""

    token: object
    member_id: str
    instance_id: str | None


ClassicEvent: TypeAlias = Join | Sync | Beat | Leave


@dataclass(frozen=True, slots=True)
class Refused:
    """Refusal of an event."""

    refusal: Refusal
    member_id: str = ""
    """Id that a member without an id must join with."""


@dataclass(frozen=True, slots=True)
class JoinedMember:
    """Member as the leader learns of it."""

    member_id: str
    instance_id: str | None
    subscription: bytes


@dataclass(frozen=True, slots=True)
class Joined:
    """Reply to a join."""

    member_id: str
    generation: int
    protocol_type: str
    protocol: str
    leader: str
    members: tuple[JoinedMember, ...] = ()
    """All members, for the leader; empty for other members."""
    skips_assignment: bool = False
    """Whether the leader must not assign, because the group continues with its assignment."""


@dataclass(frozen=True, slots=True)
class Synced:
    """Reply to a sync."""

    protocol_type: str
    protocol: str
    assignment: bytes


@dataclass(frozen=True, slots=True)
class Accepted:
    """Reply to an accepted heartbeat or leave."""


ClassicReply: TypeAlias = Joined | Synced | Accepted | Refused


@dataclass(frozen=True, slots=True)
class ClassicChange:
    """Records of a group that must be stored; without a group record, all records of the group are deleted."""

    group: ClassicGroupRecord | None
    members: Mapping[str, ClassicMemberRecord]
    gone: frozenset[str]
    """Members whose records are deleted."""


@dataclass(slots=True)
class ClassicTurn:
    """Outcome of an event."""

    replies: list[tuple[object, ClassicReply]]
    """Replies with their tokens."""
    change: ClassicChange | None = None
    """Change to be stored, after which `stored` or `not_stored` must be called."""
