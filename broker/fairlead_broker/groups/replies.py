"""What a turn answers to its events. No reply may leave before the change of its turn is known to stand."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from fairlead_api.problems import ProblemError
from fairlead_broker.groups.events import Partitions


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
