"""How far tombstones and markers may be removed, and when a follower must copy its log again (rule 8.2.8).

A follower that was away may have a record whose tombstone the other replicas have removed. If such a follower continued
at the end of its log, the deleted record would reappear once the follower became the leader. Therefore every replica
stores one offset, `removed`: below it, tombstones and markers may be missing. A follower whose log ends below its
leader's `removed` copies the log again, unless its own log may be missing the same tombstones. The end of the
follower's log is the offset at which the leader's batches are appended.
"""

from __future__ import annotations

from enum import Enum, auto


class Copying(Enum):
    """How a follower continues with the batches from its leader."""

    APPEND = auto()
    """The batches are appended."""
    LOWER = auto()
    """The follower first lowers its own `removed` to the leader's `removed`."""
    COPY_AGAIN = auto()
    """The follower drops its log and copies the leader's log from its start."""


def copying(
    end_offset: int, own_removed: int, leader_removed: int, first_base_offset: int | None = None
) -> Copying:
    """Return how a follower whose log ends at a given offset continues.

    `first_base_offset`: base offset of the first batch of the leader's answer. If the log ends inside this batch,
    because the leader has merged it, the log is cut to the batch's base offset before the batch is appended, and loses
    tombstones that the batch may lack.
    """
    if first_base_offset is not None:
        end_offset = min(end_offset, first_base_offset)
    if end_offset < leader_removed and own_removed < leader_removed:
        return Copying.COPY_AGAIN
    if end_offset < own_removed and leader_removed < own_removed:
        # A copy is only as thoroughly cleaned as its least cleaned source.
        return Copying.LOWER
    return Copying.APPEND
