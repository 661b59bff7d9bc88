"""Events that a group receives, and the replies to its members.

The time of an event is an argument of `Group.turn`. `group`, the coordinator in `runtime` and the simulator use these
messages.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

from fairlead_api.identifiers import TopicId
from fairlead_api.problems import ProblemError

JOIN_EPOCH: Final = 0
"""Member epoch of a member that joins, for the first time or again, and owns no partition."""
AWAY_EPOCH: Final = -2
"""Member epoch of a static member that has left and whose place is kept."""

Partitions: TypeAlias = Mapping[TopicId, frozenset[int]]


@dataclass(frozen=True, slots=True)
class Subscription:
    """Subscription that a member sends. None keeps the current value, or the default in a join. "" resets it."""

    topics: frozenset[str] | None = None
    """Names of topics that need not exist yet."""
    pattern: str | None = None
    """RE2 expression that must match the whole name of a topic."""
    instance_id: str | None = None
    """Id that makes the member a static member. Only a join can set the id."""
    rack: str | None = None
    assignor: str | None = None
    session_timeout_ms: int | None = None
    rebalance_timeout_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """Join of a member (epoch 0), or report that the member lives and which partitions it owns."""

    member_id: str
    member_epoch: int
    subscription: Subscription | None = None
    """Changed subscription, or None if it did not change."""
    owned: Partitions | None = None
    """Partitions that the member still consumes, empty for a joining member. None is sent if none was released."""


@dataclass(frozen=True, slots=True)
class Leave:
    """Departure of a member that has finished its partitions."""

    member_id: str
    member_epoch: int | None = None
    """Member epoch of the leaving member, or None to leave at any epoch."""
    static: bool = False
    """Whether a static member's place is kept until its session ends."""


GroupEvent: TypeAlias = Heartbeat | Leave


@dataclass(frozen=True, slots=True)
class HeartbeatReply:
    """Reply to an accepted heartbeat."""

    member_epoch: int
    """Member epoch for the next heartbeat and for commits."""
    assignment: Partitions | None
    """All partitions that the member may consume. They are sent if they changed, differ from the owned partitions, or
    the heartbeat was complete. Otherwise the field is None. The member must finish and commit every other partition and
    leave it out of `owned`."""
    heartbeat_interval_ms: int
    """Milliseconds until the next heartbeat, fewer while partitions move between members."""
    session_timeout_ms: int


@dataclass(frozen=True, slots=True)
class Left:
    """Reply to a member that was removed, or is away if it is static and keeps its place."""


Reply: TypeAlias = HeartbeatReply | Left | ProblemError
