"""Events that a group receives, and the replies to its members.

Time is in every event. Used by `group`, by the coordinator's shell in `runtime` and by the simulator.
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
    """What a member says about itself. None is "as before", for a join the default; "" takes back."""

    topics: frozenset[str] | None = None
    """Names, whether or not the topics exist yet."""
    pattern: str | None = None
    """RE2 expression that a topic's whole name has to match."""
    instance_id: str | None = None
    """Makes the member a static one. Only a join can give it."""
    rack: str | None = None
    assignor: str | None = None
    session_timeout_ms: int | None = None
    rebalance_timeout_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """A member joins (epoch 0), or says that it lives and what it owns."""

    member_id: str
    member_epoch: int
    subscription: Subscription | None = None
    """None: nothing changed."""
    owned: Partitions | None = None
    """Partitions that the member still consumes; None: not sent, so none was released. Empty for a joining member."""


@dataclass(frozen=True, slots=True)
class Leave:
    """A member goes, having finished what it had."""

    member_id: str
    member_epoch: int | None = None
    """None: whatever the group knows."""
    static: bool = False
    """Keep the place of a static member until its session ends."""


GroupEvent: TypeAlias = Heartbeat | Leave


@dataclass(frozen=True, slots=True)
class HeartbeatReply:
    """The heartbeat counts."""

    member_epoch: int
    """To be sent with the next heartbeat and with commits."""
    assignment: Partitions | None
    """All that the member may consume, if that changed, differs from what it owns, or everything was sent. What is
    not in it is to be finished, committed and left out of `owned`. None: as before."""
    heartbeat_interval_ms: int
    """When to come again. Shorter while something is to be handed over."""
    session_timeout_ms: int


@dataclass(frozen=True, slots=True)
class Left:
    """The member is gone, or away if it is a static one."""


Reply: TypeAlias = HeartbeatReply | Left | ProblemError
