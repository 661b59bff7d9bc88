"""Events and actions of a group member's machine (`member`).

Events are facts that the shell reports with their time; actions are orders that the shell carries out in the given
order. Values only.
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
"""Partitions by name, each with the id of its topic: one that was created again is another topic."""


@dataclass(frozen=True, slots=True)
class Woken:
    """The deadline of the member has passed, or the shell asks for the next actions."""


@dataclass(frozen=True, slots=True)
class HeartbeatAnswered:
    """The coordinator answered the heartbeat of this number."""

    number: int
    answer: HeartbeatAnswer


@dataclass(frozen=True, slots=True)
class HeartbeatRefused:
    """The heartbeat of this number was refused or got no answer. `chance`: a number in [0, 1) for the pause."""

    number: int
    error: FairleadError
    chance: float


@dataclass(frozen=True, slots=True)
class HeartbeatWanted:
    """A commit was refused for its epoch: the coordinator knows a newer one."""


@dataclass(frozen=True, slots=True)
class Released:
    """What a `Revoke` named was finished, committed and is not read any more."""

    round: int


@dataclass(frozen=True, slots=True)
class Taken:
    """What an `Assign` named is being read."""

    round: int


@dataclass(frozen=True, slots=True)
class Overdue:
    """The next batch was not taken in time: others should have the partitions."""

    error: FairleadError


@dataclass(frozen=True, slots=True)
class Resumed:
    """Batches are taken again after `Overdue`."""


@dataclass(frozen=True, slots=True)
class Closed:
    """Everything was committed; the member leaves for good."""


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
    """Send it, and report the outcome under the same number; there is never more than one that counts."""

    number: int
    request: HeartbeatRequest


@dataclass(frozen=True, slots=True)
class Revoke:
    """Stop reading these, finish and commit what was read, then report `Released`. The group waits for it."""

    round: int
    partitions: Partitions


@dataclass(frozen=True, slots=True)
class Assign:
    """Read these from where the group left them, then report `Taken`. The first one may be of no partitions."""

    round: int
    partitions: Partitions


@dataclass(frozen=True, slots=True)
class Drop:
    """Stop reading these at once and commit nothing: others may own them already."""

    partitions: Partitions
    error: FairleadError


@dataclass(frozen=True, slots=True)
class Leave:
    """Send a leave to the coordinator, without waiting for the answer."""


@dataclass(frozen=True, slots=True)
class Fail:
    """The member has ended: raise the reason in the next read."""

    error: FairleadError


@dataclass(frozen=True, slots=True)
class Tell:
    """Heartbeats fail since so many seconds; None: they succeed again. For the log."""

    error: FairleadError | None
    seconds: float


Action: TypeAlias = SendHeartbeat | Revoke | Assign | Drop | Leave | Fail | Tell
