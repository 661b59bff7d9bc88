"""How far tombstones and markers may be removed, and when a follower copies its log again (rule 8.2.8).

A follower that was away may have a record whose tombstone the other replicas have removed. If it continued at its end,
the deleted record would be back when it leads. Therefore every replica stores one offset, `removed`: below it,
tombstones and markers may be missing. A follower whose log ends below its leader's `removed` copies the log again,
unless its own log may be missing the same tombstones. The end is the one at which the leader's batches are appended.
"""

from __future__ import annotations

from enum import Enum, auto


class Copying(Enum):
    """How a follower continues with the batches of its leader."""

    APPEND = auto()
    """The batches are appended."""
    LOWER = auto()
    """The follower first lowers its own `removed` to its leader's."""
    COPY_AGAIN = auto()
    """The follower drops its log and copies the leader's log from its start."""


def copying(
    end_offset: int, own_removed: int, leader_removed: int, first_base_offset: int | None = None
) -> Copying:
    """Return how a follower continues whose log ends at an offset.

    `first_base_offset`: base offset of the first batch of the leader's answer. A log that ends inside this batch, which
    the leader has merged, is cut to it before the batch is appended, and loses tombstones that the batch may lack.
    """
    if first_base_offset is not None:
        end_offset = min(end_offset, first_base_offset)
    if end_offset < leader_removed and own_removed < leader_removed:
        return Copying.COPY_AGAIN
    if end_offset < own_removed and leader_removed < own_removed:
        # A copy is as little cleaned as its least cleaned source.
        return Copying.LOWER
    return Copying.APPEND
