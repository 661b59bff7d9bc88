"""Next step of a mirror's partition after an answer from the source: append, raise the epoch, cut, skip, or stop.

The leader of the mirror's partition runs the steps. Every record of the source is stored at its own offset with its own
leader epoch. The leader epoch of the mirror's partition record stays above every epoch of the log, so that replicas of
the mirror compare their logs as those of any other topic (rule L8).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, TypeAlias, assert_never

from fairlead_api.identifiers import LeaderEpoch, Offset
from fairlead_broker.replication.divergence import EpochEnd, EpochStart, truncation_point

_START: Final = Offset(0)


class OnTruncation(StrEnum):
    """Reaction to records that the source lost after the mirror copied them (rule L13)."""

    FOLLOW = "follow"
    """The mirror also drops the records, because the history of the source is the truth."""
    STOP = "stop"


class OnExpiry(StrEnum):
    """Reaction to records that the source deleted before the mirror copied them (rule L14)."""

    SKIP = "skip"
    """The mirror continues at the log start of the source."""
    STOP = "stop"


class LogStart(StrEnum):
    """Log start of a mirror (rule L16)."""

    SOURCE = "source"
    """The mirror starts where its source starts, and its own retention is not evaluated."""
    OWN = "own"
    """The mirror keeps records by its own retention, also records that the source's retention has deleted."""


class FaultReason(StrEnum):
    """Reason why a mirror's partition stops copying."""

    SOURCE_TRUNCATED = "source_truncated"
    SOURCE_EXPIRED = "source_expired"
    SOURCE_GONE = "source_gone"
    """The source has no topic with the topic id of the mirror."""
    SOURCE_DAMAGED = "source_damaged"
    """Received batches are damaged, or do not continue the mirror."""


@dataclass(frozen=True, slots=True)
class MirrorLog:
    """Offsets and epochs of the log at the leader of a mirror's partition."""

    log_start: Offset
    end_offset: Offset
    leader_epoch: LeaderEpoch
    """Leader epoch of the partition record, in which this broker leads."""
    epochs: Sequence[EpochStart]
    """Leader epochs of the log with their start offsets."""
    removed_to: Offset = _START
    """Offset below which the log may lack tombstones and markers."""


# -- answers from the source


@dataclass(frozen=True, slots=True)
class Arrived:
    """Batches from the end of the mirror on, or no batches."""

    first_offset: Offset
    """Offset of the first batch, or the end of the mirror without batches. Compaction at the source may have merged
    batches, so that the first batch begins below the end of the mirror.
    """
    last_epoch: LeaderEpoch | None
    """Leader epoch of the last batch; None if there are no batches."""
    log_start: Offset
    """Offset below which the mirror deletes its records, from `followed_start`."""
    removed_to: Offset = _START
    """Offset below which compaction at the source may have removed tombstones and markers."""


@dataclass(frozen=True, slots=True)
class Truncated:
    """The source does not have the last record of the mirror."""

    parted_at: EpochEnd
    """Last leader epoch that both logs may have, and the end of its records in the source."""


@dataclass(frozen=True, slots=True)
class Expired:
    """The source has deleted the records at the end of the mirror."""

    log_start: Offset
    deleted: EpochStart | None = None
    """Leader epoch of the last record that the source has deleted; None if it is unknown."""


@dataclass(frozen=True, slots=True)
class Gone:
    """The source deleted the topic, and may have created another topic with the same name."""


SourceAnswer: TypeAlias = Arrived | Truncated | Expired | Gone


# -- steps


@dataclass(frozen=True, slots=True)
class Append:
    """Append the batches unchanged, then delete the records below an offset."""

    log_start: Offset


@dataclass(frozen=True, slots=True)
class RaiseEpoch:
    """Write the partition record with a higher leader epoch and this broker as its leader, then fetch again."""

    leader_epoch: LeaderEpoch


@dataclass(frozen=True, slots=True)
class Cut:
    """End the leadership, cut the log to an offset, and lead again in the next leader epoch (rule L13)."""

    offset: Offset
    """End of the log afterwards. An offset below the log start means that the source has none of the log's records: the
    log is emptied and continues at the offset. If it continued at its log start, the mirror would lack records that the
    source has below it.
    """


@dataclass(frozen=True, slots=True)
class Skip:
    """Continue the log at an offset, with a gap before it (rule L14)."""

    offset: Offset
    deleted: EpochStart | None = None
    """Leader epoch of the record before the offset, which the log keeps as if it had the record. Otherwise, the source
    would find that the two logs differ, and a hand-over would wait for the epoch forever.
    """


@dataclass(frozen=True, slots=True)
class NoteRemoved:
    """Note that the log may lack tombstones and markers, then fetch again (rule L14).

    Followers of the mirror that were away then copy its log again, like followers of the source.
    """

    offset: Offset
    """Offset below which tombstones and markers may be missing."""
    gap_from: Offset | None
    """Offset from which the missing tombstones are a gap: the mirror has earlier records, and may keep a record that
    the source has deleted. None for a mirror without records.
    """


@dataclass(frozen=True, slots=True)
class Stop:
    """Stop copying until an operator acts."""

    reason: FaultReason
    offset: Offset


CopyStep: TypeAlias = Append | RaiseEpoch | Cut | Skip | NoteRemoved | Stop


def followed_start(policy: LogStart, log_start: Offset, deleted_to: Offset) -> Offset:
    """Return the offset below which a mirror deletes its records.

    `log_start`: log start of the source. `deleted_to`: offset below which records of the source were deleted on
    request; these records may be personal data, so an archive deletes them too.
    """
    return log_start if policy is LogStart.SOURCE else min(deleted_to, log_start)


def next_step(
    log: MirrorLog, answer: SourceAnswer, on_truncation: OnTruncation, on_expiry: OnExpiry
) -> CopyStep:
    """Return the step that follows an answer from the source."""
    match answer:
        case Arrived(first_offset, last_epoch, log_start, removed_to):
            # End of the records that the mirror keeps even if it is cut to the first batch.
            kept = min(first_offset, log.end_offset)
            if kept < removed_to and log.removed_to < removed_to:
                if kept > log.log_start:
                    if on_expiry is OnExpiry.STOP:
                        return Stop(FaultReason.SOURCE_EXPIRED, removed_to)
                    return NoteRemoved(removed_to, kept)
                if log.end_offset == log.log_start:
                    return NoteRemoved(removed_to, None)
            # A mirror without records takes the whole batch that contains the log start of the source.
            if first_offset < log.end_offset and log.end_offset > log.log_start:
                return Cut(max(first_offset, log.log_start))
            if last_epoch is not None and last_epoch >= log.leader_epoch:
                return RaiseEpoch(LeaderEpoch(last_epoch + 1))
            return Append(log_start)
        case Truncated(parted_at):
            offset = truncation_point(parted_at, log.epochs, log.end_offset)
            if on_truncation is OnTruncation.STOP:
                return Stop(FaultReason.SOURCE_TRUNCATED, max(offset, log.log_start))
            return Cut(offset)
        case Expired(log_start, deleted):
            if log_start <= log.end_offset:
                return Stop(FaultReason.SOURCE_DAMAGED, log.end_offset)
            if on_expiry is OnExpiry.STOP and log.end_offset > 0:
                return Stop(FaultReason.SOURCE_EXPIRED, log_start)
            if deleted is not None and deleted.epoch >= log.leader_epoch:
                return RaiseEpoch(LeaderEpoch(deleted.epoch + 1))
            return Skip(log_start, deleted)
        case Gone():
            return Stop(FaultReason.SOURCE_GONE, log.end_offset)
        case _:
            assert_never(answer)
