"""Events that a group receives, and the replies to its members.

The time of an event is an argument of `Group.turn`. Used by `group`, by the coordinator's shell in `runtime` and by the
simulator.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

from fairlead_api.identifiers import TopicId
from fairlead_api.problems import ProblemError

JOIN_EPOCH: Final = 0
"""Member epoch of a joining member, for the first time or again: it owns nothing."""
AWAY_EPOCH: Final = -2
"""Member epoch of a static member that has left and whose place is kept."""

Partitions: TypeAlias = Mapping[TopicId, frozenset[int]]


@dataclass(frozen=True, slots=True)
class Subscription:
    """The subscription that a member sends. None keeps the present value, or the default in a join; "" resets it."""

    topics: frozenset[str] | None = None
    """Topic names, whether or not the topics exist yet."""
    pattern: str | None = None
    """RE2 expression that a topic's whole name has to match."""
    instance_id: str | None = None
    """Id that makes the member a static one. Only a join can give it."""
    rack: str | None = None
    assignor: str | None = None
    session_timeout_ms: int | None = None
    rebalance_timeout_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """A member joins (epoch 0), or reports that it lives and which partitions it owns."""

    member_id: str
    member_epoch: int
    subscription: Subscription | None = None
    """Subscription; None if it did not change."""
    owned: Partitions | None = None
    """Partitions that the member still consumes; None: not sent, so none was released. Empty for a joining member."""


@dataclass(frozen=True, slots=True)
class Leave:
    """A member leaves, after it has finished with its partitions."""

    member_id: str
    member_epoch: int | None = None
    """Member epoch of the leaving member; None for whatever epoch the group knows."""
    static: bool = False
    """Whether the place of a static member is kept until its session ends."""


GroupEvent: TypeAlias = Heartbeat | Leave


@dataclass(frozen=True, slots=True)
class HeartbeatReply:
    """Reply to a heartbeat that was accepted."""

    member_epoch: int
    """Member epoch for the next heartbeat and for commits."""
    assignment: Partitions | None
    """All partitions that the member may consume, if they changed, differ from the owned ones, or the heartbeat was
    complete. The member must finish and commit every other partition and leave it out of `owned`. None if nothing
    changed."""
    heartbeat_interval_ms: int
    """Time until the next heartbeat, in milliseconds. Shorter while partitions are being handed over."""
    session_timeout_ms: int


@dataclass(frozen=True, slots=True)
class Left:
    """The member was removed, or is away if it is a static one."""


Reply: TypeAlias = HeartbeatReply | Left | ProblemError
