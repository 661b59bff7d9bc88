"""Events and actions of a group member's state machine (`member`).

Events are facts that the session reports with their time; actions are orders that the session carries out in the given
order. The module contains only types.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from fairlead.errors import FairleadError
from fairlead.topic_partition import TopicPartition
from fairlead_api.bodies.group_answers import HeartbeatAnswer
from fairlead_api.bodies.group_requests import HeartbeatRequest

Partitions: TypeAlias = Mapping[TopicPartition, str]
"""Topic ids of partitions, by partition; a recreated topic has a different id."""


@dataclass(frozen=True, slots=True)
class Woken:
    """A deadline of the member's state machine has passed, or the session requests the next actions."""


@dataclass(frozen=True, slots=True)
class HeartbeatAnswered:
    """The coordinator has answered the heartbeat that has this number."""

    number: int
    answer: HeartbeatAnswer


@dataclass(frozen=True, slots=True)
class HeartbeatRefused:
    """The heartbeat that has this number was refused or got no answer. `chance` in [0, 1) randomises the back-off."""

    number: int
    error: FairleadError
    chance: float


@dataclass(frozen=True, slots=True)
class HeartbeatWanted:
    """A commit was refused because its epoch is older than the coordinator's epoch of the member."""


@dataclass(frozen=True, slots=True)
class Released:
    """The partitions of a `Revoke` are finished, committed and no longer read."""

    round: int


@dataclass(frozen=True, slots=True)
class Taken:
    """The consumer has started to read the partitions of an `Assign`."""

    round: int


@dataclass(frozen=True, slots=True)
class Overdue:
    """The program did not take the next batch in time, so other members should get the partitions."""

    error: FairleadError


@dataclass(frozen=True, slots=True)
class Resumed:
    """The program takes batches again after `Overdue`."""


@dataclass(frozen=True, slots=True)
class Closed:
    """All processed records are committed, and the member leaves permanently."""


Event: TypeAlias = (
    Woken
    | HeartbeatAnswered
    | HeartbeatRefused
    | HeartbeatWanted
    | Released
    | Taken
    | Overdue
    | Resumed
    | Closed
)


@dataclass(frozen=True, slots=True)
class SendHeartbeat:
    """Send a heartbeat and report its outcome under the same number; only the last heartbeat counts."""

    number: int
    request: HeartbeatRequest


@dataclass(frozen=True, slots=True)
class Revoke:
    """Stop reading partitions, finish and commit their records, then report `Released`, for which the group waits."""

    round: int
    partitions: Partitions


@dataclass(frozen=True, slots=True)
class Assign:
    """Read partitions from their committed offsets, then report `Taken`. The first `Assign` may have no partitions."""

    round: int
    partitions: Partitions


@dataclass(frozen=True, slots=True)
class Drop:
    """Stop reading partitions at once without a commit: other members may already own the partitions."""

    partitions: Partitions
    error: FairleadError


@dataclass(frozen=True, slots=True)
class Leave:
    """Send a leave to the coordinator, without waiting for the answer."""


@dataclass(frozen=True, slots=True)
class Fail:
    """The member has failed: raise the error in the next read."""

    error: FairleadError


@dataclass(frozen=True, slots=True)
class Tell:
    """Log that heartbeats have failed for `seconds`, or, if `error` is None, that heartbeats succeed again."""

    error: FairleadError | None
    seconds: float


Action: TypeAlias = SendHeartbeat | Revoke | Assign | Drop | Leave | Fail | Tell
