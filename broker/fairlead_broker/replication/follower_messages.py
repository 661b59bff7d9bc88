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
    """Where the leader's records of that epoch end."""
    own_end: EpochEnd | None
    """Where the own ones do: `epoch_end` of the own list for that epoch."""


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
    """Where the leader's log goes on behind a loss that was accepted and reaches to its end; None without one."""
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
    """Where it ends, or where it ends as far as the follower's could be its beginning."""
    deleted: EpochStart | None = None
    """The epoch of the record before the leader's log start, and where that begins; None where it knows of none."""


FollowerEvent: TypeAlias = (
    Fetched | CopiesAppended | FollowerLogSynced | Diverged | Truncated | Restarted | FetchOutOfRange
)


@dataclass(frozen=True, slots=True)
class TruncateTo:
    """Cut the log, durably, before anything else is fetched; then say `Truncated`.

    No sync that began before may be told after `Truncated`: it would vouch for other bytes at the same offsets. The
    log forgets epochs that have no record left, or the leader is asked by an epoch that it has objected to already.
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
    """Go on at the offset, durably, as the leader's log does that has nothing before it; then say `CopiesAppended`.

    The log takes over the epochs of what is lost: by that of its own last record it would look as if it had parted, and
    as a leader it would send back who has records of the others, or has deleted them.
    """

    offset: Offset
    lost_epochs: Sequence[EpochStart]


@dataclass(frozen=True, slots=True)
class MoveLogStart:
    """Let go what is below the offset, as the leader has."""

    offset: Offset


@dataclass(slots=True)
class ReportProgress:
    """Tell the leader by the peer call `progress` how far the log is synced."""

    synced_offset: Offset


FollowerEffect: TypeAlias = (
    AdvanceHighWatermark | ReportProgress | MoveLogStart | TruncateTo | RestartAt | SkipTo
)
