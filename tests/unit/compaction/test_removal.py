"""When a follower must copy its log again because tombstones beyond its end were removed."""

from __future__ import annotations

import pytest

from fairlead_broker.compaction.cleanable import CleaningState
from fairlead_broker.compaction.removal import Copying, copying, lowered_removed


@pytest.mark.parametrize(
    ("end", "own", "leader", "expected"),
    [
        (100, 0, 0, Copying.APPEND),
        (100, 0, 100, Copying.APPEND),
        (99, 0, 100, Copying.COPY_AGAIN),
        (99, 99, 100, Copying.COPY_AGAIN),
        (99, 100, 100, Copying.APPEND),
        (50, 100, 60, Copying.LOWER),
        (50, 100, 0, Copying.LOWER),
        (100, 100, 0, Copying.APPEND),
    ],
)
def test_a_follower_copies_again_only_if_it_may_keep_a_deleted_key(
    end: int, own: int, leader: int, expected: Copying
) -> None:
    """A log that ends below the leader's `removed` is copied again once; a follower adopts a lower `removed`."""
    assert copying(end, own, leader) is expected


@pytest.mark.parametrize(
    ("first_base", "own", "leader", "expected"),
    [
        (90, 0, 95, Copying.COPY_AGAIN),
        (95, 0, 95, Copying.APPEND),
        (90, 95, 0, Copying.LOWER),
        (120, 0, 95, Copying.APPEND),
    ],
)
def test_a_log_that_ends_inside_a_merged_batch_ends_at_its_base_offset(
    first_base: int, own: int, leader: int, expected: Copying
) -> None:
    """A log that ends inside a merged batch counts as ending at the batch's base offset, if that is lower."""
    assert copying(100, own, leader, first_base) is expected


def test_a_crash_before_a_replacement_counts_for_others_but_not_for_the_replica_itself() -> None:
    """An announced removal makes other replicas copy again, and the replica itself keep what it may lack."""
    state = CleaningState(cleaned=10, rewritten=70, removed=20, removing=60)

    assert (state.lacks_below, state.differs_below) == (60, 70)
    assert copying(50, state.removed, 60, own_removing=state.removing) is Copying.COPY_AGAIN
    assert copying(50, state.removed, 10, own_removing=state.removing) is Copying.LOWER
    assert copying(60, state.removed, 10, own_removing=state.removing) is Copying.APPEND


def test_a_follower_keeps_the_offset_up_to_its_own_end() -> None:
    """The lowered offset is the leader's or the end that stays after a cut, whichever is higher."""
    lowered = [lowered_removed(50, 60), lowered_removed(50, 10), lowered_removed(50, 10, 40)]

    assert lowered == [60, 50, 40]
