"""The offset at which two logs diverge (rule 4.8 of docs/explanation/simulation.md)."""

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

# A log is modelled, without bytes, as the list of the epochs of its records.
Log = list[int]


def starts(log: Log) -> list[EpochStart]:
    """Generate the epochs of a log with at least one record."""
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
    """The end of an epoch is the start of the next one; the newest epoch ends at the end of the log."""
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
    """A leader accepts a follower whose last record it has, and answers with the end of the common epoch otherwise."""
    end = divergence(LIST, Offset(30), last, fetch_offset)

    assert (end and (end.epoch, end.end_offset)) == found


def test_a_leader_without_records_has_none_of_the_follower() -> None:
    """A follower of a leader without records cuts its whole log, including its oldest epoch."""
    end = divergence([], Offset(0), LeaderEpoch(0), Offset(3))

    assert end is not None
    assert truncation_point(end, starts([0, 0, 0]), Offset(3)) == 0


def test_a_follower_cuts_at_the_least_of_three() -> None:
    """A follower cuts at its log end or at the end of the epoch in either log, whichever is the lowest."""
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
    """A leader's log ends before an emptied follower's if it lacks records of the follower's last deleted epoch."""
    assert end_before(LIST, Offset(30), deleted, begins_at) == found


def test_a_leader_that_knows_no_epoch_sends_no_emptied_follower_back() -> None:
    """A leader without epochs accepts an emptied follower, because the leader has no record to compare."""
    assert end_before([], Offset(10), LeaderEpoch(3), Offset(10)) is None


@pytest.mark.parametrize(("offset", "found"), [(0, None), (10, None), (11, 2), (20, 2), (21, 5), (30, 5)])
def test_the_epoch_before_an_offset(offset: Offset, found: int | None) -> None:
    """An epoch that begins at an offset has no record before that offset."""
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
    """A range includes the epoch that began before the range, but not an epoch that begins at its end."""
    assert [each.epoch for each in epochs_between(LIST, first, end)] == found


@st.composite
def histories(draw: st.DrawFn) -> tuple[Log, Log]:
    """Draw two logs of a cluster: each epoch has a single leader, which appends to its own log.

    A leader may be elected with any log, so that tails are lost and epochs interleave.
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
    """Fetch and cut until the leader accepts the log; return the remaining log and the number of cuts."""
    for cuts in range(len(leader) + len(follower) + 2):
        end = divergence(starts(leader), Offset(len(leader)), last_epoch(follower), Offset(len(follower)))
        if end is None:
            return follower, cuts
        follower = follower[: truncation_point(end, starts(follower), Offset(len(follower)))]
    raise AssertionError("the follower is cut forever")


@given(histories())
def test_a_follower_ends_with_a_prefix_of_its_leader(logs: tuple[Log, Log]) -> None:
    """With only epochs and offsets, a follower cuts its log to a prefix of its leader's, and cuts no common record."""
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
    """A follower whose log is a prefix of the leader's is not cut."""
    leader, _ = logs
    for length in range(len(leader) + 1):
        assert reconcile(leader, leader[:length]) == (leader[:length], 0)


@given(histories())
def test_an_emptied_follower_goes_on_exactly_where_its_leader_has_what_it_deleted(
    logs: tuple[Log, Log],
) -> None:
    """An emptied follower continues only if the leader's log has the same records up to its log start."""
    leader, follower = logs
    for start in range(1, len(follower) + 1):
        deleted = LeaderEpoch(follower[start - 1])
        end = end_before(starts(leader), Offset(len(leader)), deleted, Offset(start))
        if leader[:start] == follower[:start] or not leader:
            assert end is None
        else:
            assert end is not None
            assert end < start
