"""How far tombstones and markers may be removed, and when a follower must copy its log again (rule 8.2.8).

A follower that was away may have a record whose tombstone the other replicas have removed. If such a follower continued
at the end of its log, the deleted record would reappear once the follower became the leader. Therefore every replica
stores one offset, `removed`: below it, the replica has removed tombstones and markers, and the records that they
deleted. A follower whose log ends below its leader's offset copies the log again, unless its own `removed` shows that
it has removed the same records. The end of the follower's log is the offset at which the leader's batches are appended.

A crash may interrupt the replacement of a segment, and a later cut of the log may prevent its repetition. Therefore the
offset below which tombstones may be missing is stored before the replacement and announced to followers, and `removed`
rises only after the replacement (`CleaningState`).
"""

from __future__ import annotations

from enum import Enum, auto


class Copying(Enum):
    """How a follower continues with the batches from its leader."""

    APPEND = auto()
    """The batches are appended."""
    LOWER = auto()
    """The follower first lowers the offset below which its own log may lack tombstones."""
    COPY_AGAIN = auto()
    """The follower drops its log and copies the leader's log from its start."""


def copying(
    end_offset: int,
    own_removed: int,
    leader_removed: int,
    first_base_offset: int | None = None,
    *,
    own_removing: int = 0,
) -> Copying:
    """Return how a follower whose log ends at a given offset continues.

    `leader_removed`: offset below which the leader's log may lack tombstones. `own_removing`: this offset of the
    follower's log, if it is above `own_removed`. `first_base_offset`: base offset of the first batch of the leader's
    answer. If the log ends inside this batch, because the leader has merged it, the log is cut to the batch's base
    offset before the batch is appended, and loses tombstones that the batch may lack.
    """
    end_offset = _end_after_cut(end_offset, first_base_offset)
    if end_offset < leader_removed and own_removed < leader_removed:
        return Copying.COPY_AGAIN
    if max(end_offset, leader_removed) < max(own_removed, own_removing):
        # A copy is only as thoroughly cleaned as its least cleaned source.
        return Copying.LOWER
    return Copying.APPEND


def lowered_removed(end_offset: int, leader_removed: int, first_base_offset: int | None = None) -> int:
    """Return the offset below which a follower's log may lack tombstones once the leader's batches are appended.

    The batches that stay in the follower's log may lack tombstones that the leader's log has.
    """
    return max(_end_after_cut(end_offset, first_base_offset), leader_removed)


def _end_after_cut(end_offset: int, first_base_offset: int | None) -> int:
    return end_offset if first_base_offset is None else min(end_offset, first_base_offset)
