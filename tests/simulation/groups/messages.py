"""Calls from members and the answers to these calls; a message is an immutable value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from fairlead_api.identifiers import TopicId
from fairlead_broker.groups import Heartbeat, HeartbeatReply, Leave, Left

Partition: TypeAlias = tuple[TopicId, int]


@dataclass(frozen=True, slots=True)
class Commit:
    """Offsets that a member commits, each the next offset to read."""

    member_id: str
    member_epoch: int
    offsets: Mapping[Partition, int]


@dataclass(frozen=True, slots=True)
class ReadOffsets:
    """A request for the committed offsets of partitions."""

    partitions: tuple[Partition, ...]


Content: TypeAlias = Heartbeat | Leave | Commit | ReadOffsets


@dataclass(frozen=True, slots=True)
class Request:
    """A call that is being sent."""

    group: str
    content: Content
    sender: int
    """The member's number in the network."""
    life: int
    """Number of the sender's process. An answer meant for an earlier process of the member is not delivered."""
    attempt: int
    hops: int = 0
    """Number of times the call was forwarded, at most one."""


@dataclass(frozen=True, slots=True)
class Refused:
    """A refusal with its problem code."""

    code: str


@dataclass(frozen=True, slots=True)
class Committed:
    """The answer to a commit whose offsets are stored."""


@dataclass(frozen=True, slots=True)
class Offsets:
    """Committed offsets by partition, without partitions that have no committed offset."""

    offsets: Mapping[Partition, int]


Answer: TypeAlias = HeartbeatReply | Left | Committed | Offsets | Refused
