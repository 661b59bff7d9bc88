"""Where two logs part (protocol section 4, rule 8)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead_api.identifiers import LeaderEpoch, Offset
from fairlead_broker.replication import (
    EpochEnd,
    EpochStart,
    divergence,
    end_before,
    epoch_before,
    epoch_end,
    epochs_between,
    truncation_point,
)

# A log without bytes is the list of its records' epochs.
Log = list[int]


def starts(log: Log) -> list[EpochStart]:
    """The epochs of a log with at least one record."""
    return [
        EpochStart(LeaderEpoch(epoch), Offset(offset))
        for offset, epoch in enumerate(log)
        if offset == 0 or log[offset - 1] != epoch
    ]


def last_epoch(log: Log) -> LeaderEpoch | None:
    """Epoch of the last record."""
    return LeaderEpoch(log[-1]) if log else None


LIST = [EpochStart(LeaderEpoch(2), Offset(10)), EpochStart(LeaderEpoch(5), Offset(20))]


@pytest.mark.parametrize(
    ("asked", "found"),
    [(1, (1, 10)), (2, (2, 20)), (3, (2, 20)), (4, (2, 20)), (5, (5, 30)), (6, None)],
)
def test_end_of_an_epoch(asked: int, found: tuple[int, int] | None) -> None:
    """The largest epoch that is not newer, ending where the next one starts; the newest at the log's end."""
    end = epoch_end(LIST, asked, Offset(30))

    assert (end and (end.epoch, end.end_offset)) == found


@pytest.mark.parametrize(
    ("last", "fetch_offset", "found"),
    [
        (None, 0, None),
        (2, 20, None),
        (5, 30, None),
        (2, 21, (2, 20)),
        (5, 31, (5, 30)),
        (4, 20, (2, 20)),
        (6, 25, (5, 30)),
    ],
)
def test_what_a_leader_answers(
    last: LeaderEpoch | None, fetch_offset: Offset, found: tuple[int, int] | None
) -> None:
    """Nothing where the follower's last record can be its own; else how far it could be."""
    end = divergence(LIST, Offset(30), last, fetch_offset)

    assert (end and (end.epoch, end.end_offset)) == found


def test_a_leader_without_records_has_none_of_the_follower() -> None:
    """Everything is cut, also of the oldest epoch."""
    end = divergence([], Offset(0), LeaderEpoch(0), Offset(3))

    assert end is not None
    assert truncation_point(end, starts([0, 0, 0]), Offset(3)) == 0


def test_a_follower_cuts_at_the_least_of_three() -> None:
    """The leader's end of the epoch, the own end of it, the own end."""
    own = starts([2, 2, 2, 4, 4])

    assert truncation_point(EpochEnd(LeaderEpoch(2), Offset(2)), own, Offset(5)) == 2
    assert truncation_point(EpochEnd(LeaderEpoch(3), Offset(9)), own, Offset(5)) == 3
    assert truncation_point(EpochEnd(LeaderEpoch(5), Offset(9)), own, Offset(5)) == 5


@pytest.mark.parametrize(
    ("deleted", "begins_at", "found"),
    [
        *[(None, 40, None), (2, 20, None), (2, 21, 20), (1, 10, None), (1, 11, 10), (5, 31, 30)],
        *[(6, 25, 24), (6, 30, 29), (6, 31, 30), (4, 15, 14), (4, 20, 19), (4, 25, 20)],
    ],
)
def test_where_a_leader_ends_for_an_emptied_follower(
    deleted: LeaderEpoch | None, begins_at: Offset, found: int | None
) -> None:
    """Before its beginning, where the leader never had the epoch that it deleted last, or has less of it."""
    assert end_before(LIST, Offset(30), deleted, begins_at) == found


def test_a_leader_that_knows_no_epoch_sends_no_emptied_follower_back() -> None:
    """It has no record, and nothing to compare."""
    assert end_before([], Offset(10), LeaderEpoch(3), Offset(10)) is None


@pytest.mark.parametrize(("offset", "found"), [(0, None), (10, None), (11, 2), (20, 2), (21, 5), (30, 5)])
def test_the_epoch_before_an_offset(offset: Offset, found: int | None) -> None:
    """An epoch that begins at the offset has no record before it."""
    before = epoch_before(LIST, offset)

    assert (before and before.epoch) == found


@pytest.mark.parametrize(
    ("first", "end", "found"),
    [
        *[(0, 10, []), (0, 11, [2]), (10, 20, [2]), (15, 20, [2]), (15, 21, [2, 5])],
        *[(20, 30, [5]), (40, 40, [5]), (5, 5, [])],
    ],
)
def test_the_epochs_of_a_range(first: Offset, end: Offset, found: list[int]) -> None:
    """Also one that began before it; one that begins at its end has no record in it."""
    assert [each.epoch for each in epochs_between(LIST, first, end)] == found


@st.composite
def histories(draw: st.DrawFn) -> tuple[Log, Log]:
    """Two logs of a cluster: each epoch is written by one leader only, on top of what it had.

    Leaders are elected as they come, with whatever log they have, so that tails are lost and epochs interleave.
    """
    logs: list[Log] = [[], [], []]
    for epoch in range(draw(st.integers(1, 8))):
        leader = draw(st.integers(0, 2))
        logs[leader] = logs[leader] + [epoch] * draw(st.integers(0, 3))
        for follower in range(3):
            if follower != leader and draw(st.booleans()):
                reconciled, _ = reconcile(logs[leader], logs[follower])
                logs[follower] = logs[leader][: draw(st.integers(len(reconciled), len(logs[leader])))]
    return logs[0], logs[1]


def reconcile(leader: Log, follower: Log) -> tuple[Log, int]:
    """Ask and cut until the leader has nothing to object to; answer what is left, and how often it was cut."""
    for cuts in range(len(leader) + len(follower) + 2):
        end = divergence(starts(leader), Offset(len(leader)), last_epoch(follower), Offset(len(follower)))
        if end is None:
            return follower, cuts
        follower = follower[: truncation_point(end, starts(follower), Offset(len(follower)))]
    raise AssertionError("the follower is cut without end")


@given(histories())
def test_a_follower_ends_with_a_prefix_of_its_leader(logs: tuple[Log, Log]) -> None:
    """Epochs and offsets alone tell it, and nothing that both have is cut."""
    leader, follower = logs
    left, _ = reconcile(leader, follower)
    common = next(
        (at for at, pair in enumerate(zip(leader, follower, strict=False)) if pair[0] != pair[1]),
        min(len(leader), len(follower)),
    )

    assert left == leader[: len(left)]
    assert len(left) == common


@given(histories())
def test_a_follower_with_a_part_of_the_log_is_left_alone(logs: tuple[Log, Log]) -> None:
    """Nobody who only lacks something is cut."""
    leader, _ = logs
    for length in range(len(leader) + 1):
        assert reconcile(leader, leader[:length]) == (leader[:length], 0)


@given(histories())
def test_an_emptied_follower_goes_on_exactly_where_its_leader_has_what_it_deleted(
    logs: tuple[Log, Log],
) -> None:
    """A leader with other records before its end, or none, is told by the epoch of the last one that it deleted."""
    leader, follower = logs
    for start in range(1, len(follower) + 1):
        deleted = LeaderEpoch(follower[start - 1])
        end = end_before(starts(leader), Offset(len(leader)), deleted, Offset(start))
        if leader[:start] == follower[:start] or not leader:
            assert end is None
        else:
            assert end is not None
            assert end < start
