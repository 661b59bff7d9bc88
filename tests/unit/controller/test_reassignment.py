"""Moves of a partition: start, steps, end and cancellation (rule 4.11 of docs/explanation/simulation.md)."""

from __future__ import annotations

import pytest

from fairlead_api.identifiers import BrokerId, Revision
from fairlead_broker.controller.reassignment import (
    Target,
    cancel,
    finish,
    is_under_way,
    isr_without,
    start,
    target,
)
from fairlead_broker.registry.records import PartitionRecord
from partition_kit import KEY, R1, R2, R3, R4, STOPPING, brokers, kept_by, record, short


def places(ids: str, directory: str = "new") -> list[Target]:
    """Return the targets of a move to the brokers whose ids are the digits of `ids`."""
    return [Target(BrokerId(int(n)), directory) for n in ids]


def moving(leader: int | None, isr: str, **about: int) -> PartitionRecord:
    """Return a partition that is being moved from brokers 1, 2, 3 to 2, 3, 4."""
    return record(leader, isr, replicas="2341", adding=(BrokerId(4),), removing=(BrokerId(1),), **about)


class TestStart:
    """The start of a move adds the requested replicas to the current replicas."""

    def test_the_wanted_ones_come_first_in_their_order_and_the_leaving_ones_last(self) -> None:
        """A move lists the requested replicas first, in their order, and keeps the leaving replicas until its end."""
        begun = start(record(1, "123"), places("423"), Revision(90))

        assert kept_by(begun) == "4231"
        assert (begun.adding, begun.removing) == ((4,), (1,))
        assert target(begun) == (4, 2, 3)
        assert short(begun) == (1, 7, "123", "")

    def test_a_staying_replica_keeps_its_generation_and_a_returning_one_gets_a_new_one(self) -> None:
        """A replica that stays keeps its directory and its generation.

        A replica that returns to a broker gets a new generation.
        """
        found = record(1, "123")
        begun = start(found, places("234"), Revision(90))

        assert begun.replicas[:2] == found.replicas[1:]
        assert (begun.replicas[2].directory, begun.replicas[2].generation) == ("new", 90)

    def test_another_order_of_the_same_brokers_is_no_move(self) -> None:
        """A request for the same brokers in a different order is applied at once, without a move."""
        begun = start(record(1, "123"), places("312"), Revision(90))

        assert kept_by(begun) == "312"
        assert not is_under_way(begun)
        assert target(begun) == (3, 1, 2)

    def test_one_change_at_a_time(self) -> None:
        """A partition has one move at a time."""
        with pytest.raises(AssertionError):
            start(moving(1, "123"), places("23"), Revision(91))


class TestCancel:
    """The cancellation of a move restores the previous replicas."""

    def test_a_cancellation_removes_only_the_added_replicas(self) -> None:
        """A cancellation removes the added replicas from the replicas and the ISR in one write."""
        back = cancel(KEY, moving(1, "1234"), brokers(R1, R2, R3, R4))

        assert kept_by(back) == "231"
        assert short(back) == (1, 7, "123", "")
        assert back is not None
        assert not is_under_way(back)

    def test_an_added_leader_first_hands_over_to_a_staying_replica(self) -> None:
        """If the move added the leader, the cancellation first hands leadership to a replica that stays."""
        there = brokers(R1, R2, R3, R4)
        moved = cancel(KEY, moving(4, "234"), there)

        assert short(moved) == (2, 8, "234", "")
        assert moved is not None
        assert is_under_way(moved)
        assert short(cancel(KEY, moved, there)) == (2, 8, "23", "")

    @pytest.mark.parametrize(
        "found",
        [
            pytest.param(moving(None, "1234"), id="nobody leads"),
            pytest.param(moving(1, "14"), id="too few would be in sync"),
            pytest.param(moving(4, "14", min_isr=1), id="who stays is gone"),
        ],
    )
    def test_waits(self, found: PartitionRecord) -> None:
        """A cancellation waits for a leader, enough in-sync replicas, and a remaining replica that can lead."""
        assert cancel(KEY, found, brokers(R2, R3, R4)) is None


class TestFinish:
    """A move ends when every added replica is in sync."""

    def test_a_leader_that_stays_finishes_in_one_step(self) -> None:
        """A leader that stays ends the move in one write, which removes the leaving replicas from replicas and ISR."""
        done = finish(KEY, moving(3, "1234"), brokers(R1, R2, R3, R4))

        assert kept_by(done) == "234"
        assert short(done) == (3, 7, "234", "")

    def test_below_the_minimum_no_replica_leaves(self) -> None:
        """Below min_isr, no replica leaves, because all writes would stop."""
        assert finish(KEY, moving(4, "14"), brokers(R1, R4)) is None
        assert isr_without(moving(4, "14"), [BrokerId(1)]) == 1

    def test_a_stopping_broker_is_not_the_next_leader(self) -> None:
        """A stopping broker is not chosen as the next leader."""
        there = brokers(R1, (2, STOPPING), R3, R4)

        assert short(finish(KEY, moving(1, "1234"), there)) == (3, 8, "314", "")
