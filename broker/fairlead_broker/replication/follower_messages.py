"""Events and effects of the follower's state machine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from fairlead_api.identifiers import LeaderEpoch, Offset
from fairlead_broker.replication.divergence import EpochEnd, EpochStart
from fairlead_broker.replication.leader_messages import AdvanceHighWatermark


@dataclass(frozen=True, slots=True)
class Diverged:
    """The leader's log ends an epoch at another offset; the answer has no records."""

    epoch: LeaderEpoch
    end_offset: Offset
    """End offset of the leader's records of that epoch."""
    own_end: EpochEnd | None
    """End offset of the follower's own records of that epoch: `epoch_end` of the follower's list."""


@dataclass(slots=True)
class Fetched:
    """The leader answered and found no difference between the logs."""

    leader_epoch: LeaderEpoch
    high_watermark: Offset | None
    """High watermark of the leader, or None while the leader does not know it."""
    log_start: Offset
    nbytes: int
    """Bytes of the batches to be appended now, or 0 if there is no batch."""
    next_offset: Offset | None = None
    """Offset at which the leader's log continues after an accepted loss at its end, or None if there is no such
    loss."""
    lost_epochs: Sequence[EpochStart] = ()
    """Epochs of the lost records, the oldest first, each with its start."""


@dataclass(slots=True)
class CopiesAppended:
    """The batches of the last answer are in the log, or the log continues as `SkipTo` ordered."""

    end_offset: Offset
    last_epoch: LeaderEpoch | None


@dataclass(slots=True)
class FollowerLogSynced:
    """The replica's log below the offset is on stable storage."""

    offset: Offset


@dataclass(frozen=True, slots=True)
class Truncated:
    """The log was truncated durably, as ordered."""

    end_offset: Offset
    last_epoch: LeaderEpoch | None
    """Epoch of the last remaining record, or None for an empty log."""


@dataclass(frozen=True, slots=True)
class Restarted:
    """The log was emptied durably and begins at the offset."""

    offset: Offset
    deleted_epoch: LeaderEpoch | None = None
    """Epoch of the record before the offset, if the order named it."""


@dataclass(frozen=True, slots=True)
class FetchOutOfRange:
    """The leader's log does not contain the requested offset."""

    leader_log_start: Offset
    leader_end: Offset
    """End of the leader's log; for an empty follower that begins beyond other records, the lower end from
    `end_before`."""
    deleted: EpochStart | None = None
    """Epoch of the record before the leader's log start, with the start of that epoch, or None if the leader
    knows no such epoch.
    """


FollowerEvent: TypeAlias = (
    Fetched | CopiesAppended | FollowerLogSynced | Diverged | Truncated | Restarted | FetchOutOfRange
)


@dataclass(frozen=True, slots=True)
class TruncateTo:
    """Truncate the log, durably, before the next fetch; then report `Truncated`.

    A sync that began before the truncation must not be reported after `Truncated`, since it covers other
    bytes at the same offsets. The log drops epochs without records; otherwise the next fetch would name an
    epoch that the leader has refused.
    """

    offset: Offset


@dataclass(frozen=True, slots=True)
class RestartAt:
    """Drop every record and begin at the leader's log start; then report `Restarted`."""

    offset: Offset
    deleted: EpochStart | None = None
    """Epoch of the record before the offset. The log keeps this epoch as if it had held that record, so that
    a later leader notices a log that differs.
    """


@dataclass(frozen=True, slots=True)
class SkipTo:
    """Move the log's end forward to the offset, durably, as the leader's log did when it accepted a loss.

    The follower then reports `CopiesAppended`. The log takes over the epochs of the lost records. With only
    the epoch of its last record, the log would appear to have diverged; as a leader, this replica would
    truncate followers that have records of those epochs or have deleted such records.
    """

    offset: Offset
    lost_epochs: Sequence[EpochStart]


@dataclass(frozen=True, slots=True)
class MoveLogStart:
    """Delete the records below the offset, as the leader has done."""

    offset: Offset


@dataclass(slots=True)
class ReportProgress:
    """Report the synced offset to the leader by the peer call `progress`."""

    synced_offset: Offset


FollowerEffect: TypeAlias = (
    AdvanceHighWatermark | ReportProgress | MoveLogStart | TruncateTo | RestartAt | SkipTo
)
