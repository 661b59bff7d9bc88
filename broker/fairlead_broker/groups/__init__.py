"""Consumer groups: members and their partitions (KIP-848), without access to clocks or the store.

The coordinator's task in `runtime` and the simulator call this package. The caller loads `GroupRecords`, passes
`GroupEvent`s with the time and the topics to `Group.turn`, writes the `GroupChange`, replays it with
`Group.commit`, and then sends the replies. The package must not know about the store's keys, HTTP, offsets or
event loops.
"""

from __future__ import annotations

from fairlead_broker.groups.changes import (
    GroupChange,
    GroupKey,
    GroupRecords,
    GroupValue,
    MemberKey,
    StateKey,
    TargetKey,
)
from fairlead_broker.groups.group import Group, GroupState, MemberView, Turn
from fairlead_broker.groups.messages import (
    AWAY_EPOCH,
    JOIN_EPOCH,
    GroupEvent,
    Heartbeat,
    HeartbeatReply,
    Leave,
    Left,
    Partitions,
    Reply,
    Subscription,
    member_not_found,
)
from fairlead_broker.groups.pacing import rest_interval_ms
from fairlead_broker.groups.subscriptions import Topics, TopicShape

__all__ = [
    "AWAY_EPOCH",
    "JOIN_EPOCH",
    "Group",
    "GroupChange",
    "GroupEvent",
    "GroupKey",
    "GroupRecords",
    "GroupState",
    "GroupValue",
    "Heartbeat",
    "HeartbeatReply",
    "Leave",
    "Left",
    "MemberKey",
    "MemberView",
    "Partitions",
    "Reply",
    "StateKey",
    "Subscription",
    "TargetKey",
    "TopicShape",
    "Topics",
    "Turn",
    "member_not_found",
    "rest_interval_ms",
]
