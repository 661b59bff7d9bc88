"""Events that a classic group receives, and its replies.

A later event may cause the reply to a join or a sync, so each event has a token, which is repeated in its reply.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

from fairlead_broker.registry.group_records import ClassicGroupRecord, ClassicMemberRecord


class Refusal(StrEnum):
    """Refusals of a classic group, named after Kafka's errors."""

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
    """Request to join; the member waits until all members have joined."""

    token: object
    member_id: str
    """Id of the member, or an empty text if the member has no id yet."""
    new_id: str
    """Id that is assigned to the member if it has none."""
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocol_type: str
    protocols: tuple[tuple[str, bytes], ...]
    """Assignors that the member supports, preferred first, each with the member's subscription."""
    needs_known_id: bool
    """Whether a member without an id is only assigned an id, with which the member must join again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sync:
    """A member's request for its assignment; the leader's request contains the assignments of all members."""

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
    """Request of a member to leave, identified by its id, or by its instance id and an empty id."""

    token: object
    member_id: str
    instance_id: str | None


ClassicEvent: TypeAlias = Join | Sync | Beat | Leave


@dataclass(frozen=True, slots=True)
class Refused:
    """Refusal of the request in an event."""

    refusal: Refusal
    member_id: str = ""
    """Id with which a member without an id must join again."""


@dataclass(frozen=True, slots=True)
class JoinedMember:
    """Member, as described to the leader."""

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
    """All members, if the receiver is the leader; empty for other members."""
    skips_assignment: bool = False
    """Whether the leader must not assign partitions, because the group keeps its assignment."""


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
    """Records of a group that must be stored; if there is no group record, all records of the group are deleted."""

    group: ClassicGroupRecord | None
    members: Mapping[str, ClassicMemberRecord]
    gone: frozenset[str]
    """Members whose records must be deleted."""


@dataclass(slots=True)
class ClassicTurn:
    """Outcome of an event."""

    replies: list[tuple[object, ClassicReply]]
    """Replies with their tokens."""
    change: ClassicChange | None = None
    """Change to be stored, after which `stored` or `not_stored` must be called."""
