"""Moving a partition: where it is to be, each step on the way, and back (protocol section 4, rule 11)."""

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
    """Wanted replicas."""
    return [Target(BrokerId(int(n)), directory) for n in ids]


def moving(leader: int | None, isr: str, **about: int) -> PartitionRecord:
    """A partition on its way from brokers 1, 2, 3 to 2, 3, 4."""
    return record(leader, isr, replicas="2341", adding=(BrokerId(4),), removing=(BrokerId(1),), **about)


class TestStart:
    """What is wanted is written down beside what there is."""

    def test_the_wanted_ones_come_first_in_their_order_and_the_leaving_ones_last(self) -> None:
        """Nobody goes before somebody came."""
        begun = start(record(1, "123"), places("423"), Revision(90))

        assert kept_by(begun) == "4231"
        assert (begun.adding, begun.removing) == ((4,), (1,))
        assert target(begun) == (4, 2, 3)
        assert short(begun) == (1, 7, "123", "")

    def test_who_stays_keeps_directory_and_generation_and_who_comes_never_had_its_generation(self) -> None:
        """A report from an earlier stay of the same broker would count otherwise."""
        found = record(1, "123")
        begun = start(found, places("234"), Revision(90))

        assert begun.replicas[:2] == found.replicas[1:]
        assert (begun.replicas[2].directory, begun.replicas[2].generation) == ("new", 90)

    def test_another_order_of_the_same_brokers_is_no_move(self) -> None:
        """Only the preferred leader is another."""
        begun = start(record(1, "123"), places("312"), Revision(90))

        assert kept_by(begun) == "312"
        assert not is_under_way(begun)
        assert target(begun) == (3, 1, 2)

    def test_one_change_at_a_time(self) -> None:
        """Whoever wants another one cancels the first."""
        with pytest.raises(AssertionError, match="one change at a time"):
            start(moving(1, "123"), places("23"), Revision(91))


class TestCancel:
    """Back to the replicas that there were."""

    def test_the_added_ones_go_and_nobody_leaves(self) -> None:
        """In one put, with their places in the isr."""
        back = cancel(KEY, moving(1, "1234"), brokers(R1, R2, R3, R4))

        assert kept_by(back) == "231"
        assert short(back) == (1, 7, "123", "")
        assert back is not None
        assert not is_under_way(back)

    def test_the_leader_first_goes_to_one_who_stays(self) -> None:
        """It is never removed while it leads."""
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
        """Until somebody leads, enough stay in sync, and one of those that stay can lead; broker 1 is gone."""
        assert cancel(KEY, found, brokers(R2, R3, R4)) is None


class TestFinish:
    """Once everybody added is in sync."""

    def test_a_leader_that_stays_finishes_in_one_step(self) -> None:
        """The leaving ones go from replicas and isr together."""
        done = finish(KEY, moving(3, "1234"), brokers(R1, R2, R3, R4))

        assert kept_by(done) == "234"
        assert short(done) == (3, 7, "234", "")

    def test_below_the_minimum_nobody_leaves(self) -> None:
        """Removing them would stop all writes."""
        assert finish(KEY, moving(4, "14"), brokers(R1, R4)) is None
        assert isr_without(moving(4, "14"), [BrokerId(1)]) == 1

    def test_the_leader_goes_to_nobody_who_stops(self) -> None:
        """It would have to be moved again at once."""
        there = brokers(R1, (2, STOPPING), R3, R4)

        assert short(finish(KEY, moving(1, "1234"), there)) == (3, 8, "314", "")
