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
    """The leader answered a fetch without records, because an epoch ends at different offsets in the two logs."""

    epoch: LeaderEpoch
    end_offset: Offset
    """End offset of the epoch's records in the leader's log."""
    own_end: EpochEnd | None
    """End offset of the epoch's records in the follower's log: `epoch_end` of the follower's list."""


@dataclass(slots=True)
class Fetched:
    """The leader answered a fetch and found no divergence between the logs."""

    leader_epoch: LeaderEpoch
    high_watermark: Offset | None
    """High watermark of the leader, or None while the leader does not know it."""
    log_start: Offset
    nbytes: int
    """Size in bytes of the batches to be appended, or 0 if there is no batch."""
    next_offset: Offset | None = None
    """Offset at which the leader's log continues after an accepted loss at its end, or None if there is no
    such loss.
    """
    lost_epochs: Sequence[EpochStart] = ()
    """Epochs of the lost records, oldest first, each with its start offset."""


@dataclass(slots=True)
class CopiesAppended:
    """The batches of the last answer were appended to the log, or the log's end was moved by `SkipTo`."""

    end_offset: Offset
    last_epoch: LeaderEpoch | None


@dataclass(slots=True)
class FollowerLogSynced:
    """The replica's log below the offset is on stable storage."""

    offset: Offset


@dataclass(frozen=True, slots=True)
class Truncated:
    """The log was truncated durably, as `TruncateTo` requested."""

    end_offset: Offset
    last_epoch: LeaderEpoch | None
    """Epoch of the last record after the truncation, or None for an empty log."""


@dataclass(frozen=True, slots=True)
class Restarted:
    """The log was emptied durably and now begins at the offset."""

    offset: Offset
    deleted_epoch: LeaderEpoch | None = None
    """Epoch of the record before the new start offset, or None if `RestartAt` named no epoch."""


@dataclass(frozen=True, slots=True)
class FetchOutOfRange:
    """The leader's log does not contain the requested offset."""

    leader_log_start: Offset
    leader_end: Offset
    """End of the leader's log; for an empty follower that lacks records below its log start, the lower offset from
    `end_before`.
    """
    deleted: EpochStart | None = None
    """Epoch of the record before the leader's log start, with the epoch's start offset, or None if the leader does
    not know that epoch.
    """


@dataclass(frozen=True, slots=True)
class CopyDue:
    """The leader has removed tombstones that the follower has not fetched: the follower copies the whole log again."""

    leader_log_start: Offset


FollowerEvent: TypeAlias = (
    Fetched
    | CopiesAppended
    | FollowerLogSynced
    | Diverged
    | Truncated
    | Restarted
    | FetchOutOfRange
    | CopyDue
)


@dataclass(frozen=True, slots=True)
class TruncateTo:
    """Durably truncate the log before the next fetch, then send `Truncated` to the state machine.

    A sync that began before the truncation must not be reported after `Truncated`, since the sync covers
    different bytes at the same offsets. The log drops epochs without records; otherwise the next fetch would name
    an epoch that the leader has refused.
    """

    offset: Offset


@dataclass(frozen=True, slots=True)
class RestartAt:
    """Drop every record and restart the log at an offset, then send `Restarted` to the state machine.

    The offset is the leader's log start, or the log's own start if the leader has none of the log's records.
    """

    offset: Offset
    deleted: EpochStart | None = None
    """Epoch of the record before the offset, or an epoch that ends below the offset in the leader's log. The log keeps
    this epoch as if the log had contained its last record, so that a leader can detect a divergence.
    """


@dataclass(frozen=True, slots=True)
class SkipTo:
    """Durably move the log's end forward to the offset, as the leader did when the loss of its records was accepted.

    After the log's end has moved, the caller sends `CopiesAppended` to the state machine. The epochs of the lost
    records are added to the log's list of epochs. Otherwise, the log would appear to have diverged, and this replica as
    a leader would truncate followers that have, or have deleted, records of the lost epochs.
    """

    offset: Offset
    lost_epochs: Sequence[EpochStart]


@dataclass(frozen=True, slots=True)
class MoveLogStart:
    """Delete the records below the offset, as the leader has already done."""

    offset: Offset


@dataclass(slots=True)
class ReportProgress:
    """Report the synced offset to the leader with the peer call `progress`."""

    synced_offset: Offset


FollowerEffect: TypeAlias = (
    AdvanceHighWatermark | ReportProgress | MoveLogStart | TruncateTo | RestartAt | SkipTo
)
