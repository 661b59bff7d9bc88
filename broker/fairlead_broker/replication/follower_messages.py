"""Facts that a follower learns, and orders that it gives to its shell."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from fairlead_api.identifiers import LeaderEpoch, Offset
from fairlead_broker.replication.divergence import EpochEnd, EpochStart
from fairlead_broker.replication.leader_messages import AdvanceHighWatermark


@dataclass(frozen=True, slots=True)
class Diverged:
    """The leader's log ends an epoch differently; no records came."""

    epoch: LeaderEpoch
    end_offset: Offset
    """End offset of the leader's records of that epoch."""
    own_end: EpochEnd | None
    """End offset of the follower's own records of that epoch: `epoch_end` of its list."""


@dataclass(slots=True)
class Fetched:
    """The leader answered without objection."""

    leader_epoch: LeaderEpoch
    high_watermark: Offset | None
    """None while the leader does not know it."""
    log_start: Offset
    nbytes: int
    """Bytes of batches that are to be appended now; 0 for none."""
    next_offset: Offset | None = None
    """Offset at which the leader's log continues after an accepted loss at its end; None without such a loss."""
    lost_epochs: Sequence[EpochStart] = ()
    """The epochs of what is lost, the oldest first, and where each begins."""


@dataclass(slots=True)
class CopiesAppended:
    """The batches of the last answer are in the log, or it goes on as `SkipTo` ordered."""

    end_offset: Offset
    last_epoch: LeaderEpoch | None


@dataclass(slots=True)
class FollowerLogSynced:
    """Everything below the offset of the own log is on stable storage."""

    offset: Offset


@dataclass(frozen=True, slots=True)
class Truncated:
    """The log was cut as ordered, durably."""

    end_offset: Offset
    last_epoch: LeaderEpoch | None
    """Epoch of the last record that is left; None where none is."""


@dataclass(frozen=True, slots=True)
class Restarted:
    """The log was emptied and begins at the offset, durably."""

    offset: Offset
    deleted_epoch: LeaderEpoch | None = None
    """Epoch of the record before that, where the order told it."""


@dataclass(frozen=True, slots=True)
class FetchOutOfRange:
    """The leader's log does not reach the offset that was asked for."""

    leader_log_start: Offset
    leader_end: Offset
    """End of the leader's log, or of its part that the follower's log can be the beginning of."""
    deleted: EpochStart | None = None
    """The epoch of the record before the leader's log start, and where that begins; None where it knows of none."""


FollowerEvent: TypeAlias = (
    Fetched | CopiesAppended | FollowerLogSynced | Diverged | Truncated | Restarted | FetchOutOfRange
)


@dataclass(frozen=True, slots=True)
class TruncateTo:
    """Truncate the log, durably, before the next fetch; then report `Truncated`.

    A sync that began before must not be reported after `Truncated`: it would vouch for other bytes at the same offsets.
    The log drops epochs without records; otherwise the next fetch would name an epoch that the leader has refused.
    """

    offset: Offset


@dataclass(frozen=True, slots=True)
class RestartAt:
    """Drop everything and begin at the leader's log start; then say `Restarted`."""

    offset: Offset
    deleted: EpochStart | None = None
    """The epoch before that, to be kept as if its records had been here: by it a later leader finds its log another."""


@dataclass(frozen=True, slots=True)
class SkipTo:
    """Continue at the offset, durably, as the leader's log does after an accepted loss; then report `CopiesAppended`.

    The log takes over the epochs of the lost records. By the epoch of its own last record it would appear to have
    diverged, and as a leader it would truncate followers that have records of those epochs or have deleted them.
    """

    offset: Offset
    lost_epochs: Sequence[EpochStart]


@dataclass(frozen=True, slots=True)
class MoveLogStart:
    """Let go what is below the offset, as the leader has."""

    offset: Offset


@dataclass(slots=True)
class ReportProgress:
    """Report the synced offset to the leader by the peer call `progress`."""

    synced_offset: Offset


FollowerEffect: TypeAlias = (
    AdvanceHighWatermark | ReportProgress | MoveLogStart | TruncateTo | RestartAt | SkipTo
)
