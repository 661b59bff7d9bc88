"""How far tombstones and markers may be removed, and when a follower copies its log again (rule 8.2.8).

A follower that was away may have a record whose tombstone the other replicas have removed. If it continued at its end,
the deleted record would be back when it leads. Therefore every replica stores one offset, `removed`: below it,
tombstones and markers may be missing. A follower whose log ends below its leader's `removed` copies the log again,
unless its own log may be missing the same tombstones.
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


def copying(end_offset: int, own_removed: int, leader_removed: int) -> Copying:
    """Return how a follower continues whose log ends at an offset."""
    if end_offset < leader_removed and own_removed < leader_removed:
        return Copying.COPY_AGAIN
    if end_offset < own_removed and leader_removed < own_removed:
        # A copy is as little cleaned as its least cleaned source.
        return Copying.LOWER
    return Copying.APPEND
