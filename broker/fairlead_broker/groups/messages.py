"""Events that a group receives, and the replies to its members.

The time of an event is an argument of `Group.turn`. The messages are used by `group`, the coordinator in
`runtime` and the simulator.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

from fairlead_api.identifiers import TopicId
from fairlead_api.problems import ProblemError

JOIN_EPOCH: Final = 0
"""Member epoch sent by a member that joins or rejoins and owns no partition."""
AWAY_EPOCH: Final = -2
"""Member epoch of a static member that has left and may return."""

Partitions: TypeAlias = Mapping[TopicId, frozenset[int]]


@dataclass(frozen=True, slots=True)
class Subscription:
    """Subscription that a member sends. None keeps the current value (in a join: the default), and "" resets it."""

    topics: frozenset[str] | None = None
    """Names of subscribed topics, which need not exist yet."""
    pattern: str | None = None
    """RE2 expression that must match the whole name of a topic."""
    instance_id: str | None = None
    """Instance id, which makes the member a static member. Only a join can set the instance id."""
    rack: str | None = None
    assignor: str | None = None
    session_timeout_ms: int | None = None
    rebalance_timeout_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """Heartbeat of a member that joins (epoch 0), or that reports that it is alive and which partitions it owns."""

    member_id: str
    member_epoch: int
    subscription: Subscription | None = None
    """Changed subscription, or None if the subscription did not change."""
    owned: Partitions | None = None
    """Partitions that the member still consumes (empty for a joining member), or None if no partition was released."""
    principal: str | None = None
    """Caller that must own the member, or None if access rules are not enforced."""


@dataclass(frozen=True, slots=True)
class Leave:
    """Request from a member to leave, sent after it has finished consuming its partitions."""

    member_id: str
    member_epoch: int | None = None
    """Member epoch of the leaving member, or None to leave at any epoch."""
    static: bool = False
    """Whether the member is static and keeps its partitions until its session ends."""
    principal: str | None = None
    """Caller that must own the member, or None if access rules are not enforced."""


GroupEvent: TypeAlias = Heartbeat | Leave


@dataclass(frozen=True, slots=True)
class HeartbeatReply:
    """Reply to an accepted heartbeat."""

    member_epoch: int
    """Member epoch for the next heartbeat and for commits."""
    assignment: Partitions | None
    """All partitions that the member may consume, or None if no assignment is sent. The assignment is sent if it
    changed, if it differs from the owned partitions, or if the heartbeat contained a subscription. The member must stop
    consuming every other partition, commit its offset, and leave it out of `owned`.
    """
    heartbeat_interval_ms: int
    """Milliseconds until the next heartbeat. The interval is shorter while partitions move between members."""
    session_timeout_ms: int


@dataclass(frozen=True, slots=True)
class Left:
    """Reply to a member that has left. A static member may keep its partitions until its session ends."""


Reply: TypeAlias = HeartbeatReply | Left | ProblemError


def member_not_found(group: str, member_id: str) -> ProblemError:
    """Return the reply to a member that is not in the group."""
    detail = f"group {group} has no member {member_id}; join again with member epoch 0"
    return ProblemError("member_not_found", detail, data={"group": group, "member_id": member_id})
