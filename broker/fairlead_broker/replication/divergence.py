"""Find the offset at which two logs diverge, by comparing their lists of leader epochs.

A list contains pairs (epoch, start offset): the epochs increase, and the start offsets never decrease. If a
follower's last record cannot be in the leader's log, the leader answers with the end offset of the largest epoch
that both logs may have. The follower truncates its log at the end offset and fetches again. No log is ever
truncated to the high watermark, which a follower learns one round trip late. The rules are Kafka's (KIP-101,
KIP-279, KIP-595; `LeaderEpochFileCache`). The functions are pure; `log`, leaders and followers call them.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Final

from fairlead_api.identifiers import LeaderEpoch, Offset

BEFORE_ALL: Final = LeaderEpoch(-1)
"""Epoch older than any real epoch, used by a leader without epochs, for which every record of a follower is newer."""

_BY_EPOCH = attrgetter("epoch")
_BY_START = attrgetter("start_offset")


@dataclass(frozen=True, slots=True)
class EpochStart:
    """Start offset of an epoch, which may have no records."""

    epoch: LeaderEpoch
    start_offset: Offset


@dataclass(frozen=True, slots=True)
class EpochEnd:
    """End offset of an epoch's records."""

    epoch: LeaderEpoch
    end_offset: Offset


def epoch_end(epochs: Sequence[EpochStart], epoch: int, log_end: Offset) -> EpochEnd | None:
    """Return the largest epoch that is not newer than the requested epoch, and the end offset of its records.

    Returns None when the requested epoch is newer than every known epoch or no epoch is known. If the requested
    epoch is older than all known epochs, the result is the requested epoch with the start offset of the oldest
    known epoch as its end.
    """
    if not epochs or epoch > epochs[-1].epoch:
        return None
    index = bisect_right(epochs, epoch, key=_BY_EPOCH) - 1
    if index < 0:
        return EpochEnd(LeaderEpoch(epoch), epochs[0].start_offset)
    if index + 1 == len(epochs):
        return EpochEnd(epochs[index].epoch, log_end)
    return EpochEnd(epochs[index].epoch, epochs[index + 1].start_offset)


def divergence(
    epochs: Sequence[EpochStart], log_end: Offset, last_epoch: LeaderEpoch | None, fetch_offset: Offset
) -> EpochEnd | None:
    """Return the leader's answer to a follower whose log diverges, or None if the log is a prefix of the leader's.

    `last_epoch` is the epoch of the follower's last record, or None for an empty log, which diverges from no
    leader. If the leader does not know `last_epoch`, the answer is the end offset of the leader's log.
    """
    if last_epoch is None:
        return None
    end = epoch_end(epochs, last_epoch, log_end)
    if end is None:
        return EpochEnd(epochs[-1].epoch if epochs else BEFORE_ALL, log_end)
    if end.epoch < last_epoch or end.end_offset < fetch_offset:
        return end
    return None


def end_before(
    epochs: Sequence[EpochStart], log_end: Offset, deleted_epoch: LeaderEpoch | None, fetch_offset: Offset
) -> Offset | None:
    """Return the log end to report to an empty follower that lacks records below its log start, or None.

    `deleted_epoch` is the leader epoch of the last record that the follower has deleted. Deleted records were
    committed, so a complete leader has records of `deleted_epoch` up to the start of the follower's log, and the
    comparison treats the last deleted record as if the follower still had it. A leader that was elected uncleanly
    may have different records at the deleted offsets: records of older epochs may even extend beyond the start of
    the follower's log. Without a reset, the follower would never fetch such records. The returned end offset is below
    the start of the follower's log, which causes the follower to reset its log.
    """
    # A leader without epochs has no records that the follower could lack.
    parted = divergence(epochs, log_end, deleted_epoch, fetch_offset) if epochs else None
    return None if parted is None else Offset(min(parted.end_offset, fetch_offset - 1))


def epoch_before(epochs: Sequence[EpochStart], offset: Offset) -> EpochStart | None:
    """Return the epoch of the record before an offset, or None if that epoch is unknown."""
    index = bisect_left(epochs, offset, key=_BY_START) - 1
    return epochs[index] if index >= 0 else None


def epochs_between(epochs: Sequence[EpochStart], first: Offset, end: Offset) -> Sequence[EpochStart]:
    """Return the epochs of the records between two offsets, with their start offsets, oldest first."""
    begin = max(0, bisect_right(epochs, first, key=_BY_START) - 1)
    return epochs[begin : bisect_left(epochs, end, key=_BY_START)]


def truncation_point(leader_end: EpochEnd, own_epochs: Sequence[EpochStart], own_end: Offset) -> Offset:
    """Return the offset at which a follower truncates its log to keep every record that the leader also has.

    The returned offset is the minimum of three offsets: the end of the epoch in the leader's log, the end of the
    epoch in the follower's log, and the end of the follower's log. After several elections in a short time the
    epochs of two logs may interleave, so the follower repeats the comparison until the leader finds no divergence
    (KIP-279).
    """
    own = epoch_end(own_epochs, leader_end.epoch, own_end)
    return Offset(min(leader_end.end_offset, own_end if own is None else own.end_offset, own_end))
