"""Members, vacancies and the number of required answers of partition records with a write quorum."""

from __future__ import annotations

import pytest

from fairlead_api.identifiers import BrokerId
from fairlead_broker.registry.isr import taken_out
from fairlead_broker.registry.quorum import (
    in_sync,
    majority,
    members,
    promises_needed,
    relied_on,
    vacated,
    write_quorum,
)
from replication_kit import EVERYBODY, LEADER, SECOND, THIRD, partition_record, quorum_record, voters_of


@pytest.mark.parametrize(
    ("wanted", "count", "expected"),
    [(None, 3, 2), (None, 2, 2), (1, 3, 2), (3, 3, 3), (9, 5, 5), (None, 1, 1)],
)
def test_a_write_quorum_is_a_majority_or_more(wanted: int | None, count: int, expected: int) -> None:
    """A configured write quorum is at least a majority and at most the number of members."""
    assert write_quorum(wanted, count) == expected
    assert majority(count) <= expected <= count


def test_members_do_not_include_added_replicas() -> None:
    """N counts all replicas except the replicas that a reassignment adds; R = N - W + 1 (quorum Q8)."""
    record = quorum_record(adding=(THIRD,), voters=(LEADER, SECOND))

    assert members(record) == (LEADER, SECOND)
    assert promises_needed(record) == 1
    assert promises_needed(quorum_record()) == 2
    assert promises_needed(quorum_record(write=3)) == 1


def test_a_vacancy_raises_the_epoch() -> None:
    """Every record without a leader has a raised leader epoch (quorum Q1)."""
    record = quorum_record()
    vacant = vacated(record)

    assert vacant.leader is None
    assert vacant.leader_epoch == record.leader_epoch + 1
    assert vacant.quorum == record.quorum


def test_a_damaged_voter_gives_up_its_vote() -> None:
    """A voter leaves before it drops bytes, begins another generation, and leaves a vacancy if it led (quorum Q11)."""
    record = quorum_record()
    without_leader, without_second = taken_out(record, LEADER), taken_out(record, SECOND, "other")

    assert without_leader is not None
    assert (without_leader.leader, without_leader.leader_epoch) == (None, record.leader_epoch + 1)
    assert without_leader.replicas[0].generation == 1
    assert without_second is not None
    assert voters_of(without_second).keys() == {LEADER, THIRD}
    assert without_second.leader == record.leader
    assert (without_second.replicas[1].directory, without_second.replicas[1].generation) == ("other", 1)


def test_r_voters_stay() -> None:
    """A voter keeps its bytes if fewer than R voters would remain (quorum Q11)."""
    two = quorum_record(voters=(LEADER, SECOND))

    assert taken_out(two, SECOND) is None
    assert taken_out(two, THIRD) is not None
    assert taken_out(quorum_record(write=3), THIRD) is not None
    assert taken_out(quorum_record(write=3, voters=(LEADER,)), LEADER) is None


def test_a_record_relies_on_voters_or_on_in_sync_replicas() -> None:
    """The incarnations that a partition relies on are its voters, or the members of isr and elr."""
    isr = partition_record()

    assert [entry.broker for entry in relied_on(quorum_record())] == list(EVERYBODY)
    assert relied_on(isr) == (*isr.isr, *isr.elr)
    assert in_sync(isr) == isr.isr
    assert BrokerId(2) in {entry.broker for entry in in_sync(quorum_record())}
