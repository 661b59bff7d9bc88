"""The advance of the high watermark (rules 4.2, 4.4 and 4.9 of docs/explanation/simulation.md)."""

from __future__ import annotations

import pytest

from fairlead_broker.registry.records import DurabilityState
from fairlead_broker.replication import DirectoryFailed, LeaseChanged, WriteOutcome, WriteQuorumSet
from replication_kit import (
    EVERYBODY,
    LAG_SECONDS,
    LEADER,
    SECOND,
    THIRD,
    DrivenLeader,
    advanced,
    entries,
    isr_of,
    only_write,
    partition_record,
    proposes,
)


def alone(**fields: object) -> DrivenLeader:
    """Return a leader that is the only in-sync replica, with min.insync.replicas 1."""
    return DrivenLeader(partition_record(isr=entries([LEADER]), min_isr=1, **fields))


class TestCounting:
    """Offsets that count towards the high watermark."""

    def test_synced_partition_commits_only_what_is_fsynced(self) -> None:
        """With durability=synced the high watermark advances on fsync, not on append."""
        leadership = alone(durability=DurabilityState.SYNCED)

        assert leadership.append(10) == []
        assert advanced(leadership.sync(7)) == [7]
        assert (leadership.machine.high_watermark, leadership.machine.end_offset) == (7, 10)
        assert leadership.machine.counted_of(LEADER) == 7
        assert leadership.machine.counts_synced

    def test_replicated_partition_commits_what_is_appended(self) -> None:
        """With durability=replicated the high watermark advances on append."""
        leadership = alone()

        assert advanced(leadership.append(10)) == [10]
        assert leadership.machine.counted_of(LEADER) == 10
        assert not leadership.machine.counts_synced

    def test_syncing_partition_counts_as_synced(self) -> None:
        """With durability=syncing only synced bytes count."""
        leadership = alone(durability=DurabilityState.SYNCING)

        assert advanced(leadership.append(10)) == []
        assert advanced(leadership.sync(10)) == [10]

    def test_followers_count_by_what_they_have_synced(self) -> None:
        """A follower counts up to its synced offset, because a power failure may lose bytes that were only appended."""
        leadership = DrivenLeader(partition_record(durability=DurabilityState.SYNCED))
        leadership.append(10)
        leadership.sync(10)
        leadership.fetch(SECOND, 10)

        assert advanced(leadership.fetch(THIRD, 10, synced_offset=4)) == [4]
        assert leadership.machine.counted_of(THIRD) == 4
        assert advanced(leadership.progress(THIRD, 9)) == [9]

    def test_progress_can_come_before_the_fetch_that_would_say_it(self) -> None:
        """A progress report counts towards the high watermark even while the follower's fetch waits at the leader."""
        leadership = DrivenLeader(partition_record(durability=DurabilityState.SYNCED))
        leadership.append(10)
        leadership.sync(10)
        leadership.fetch(SECOND, 10)
        leadership.fetch(THIRD, 0)

        assert advanced(leadership.progress(THIRD, 10)) == [10]

    def test_late_sync_report_changes_nothing(self) -> None:
        """A late report about an earlier fsync does not reduce the synced offset."""
        leadership = alone(durability=DurabilityState.SYNCED)
        leadership.append(10)
        leadership.sync(10)

        assert leadership.sync(4) == []
        assert leadership.machine.high_watermark == 10


class TestMaximalIsr:
    """Every member of the maximal ISR must have a record before it is committed."""

    def test_is_the_least_of_all_members(self) -> None:
        """The high watermark is the lowest offset of all members, and a member without a report blocks it."""
        leadership = DrivenLeader()
        leadership.append(10)
        leadership.fetch(SECOND, 10)

        assert leadership.machine.high_watermark == 0
        assert advanced(leadership.fetch(THIRD, 6)) == [6]
        assert advanced(leadership.fetch(THIRD, 10)) == [10]

    def test_does_not_pass_a_replica_proposed_to_leave(self) -> None:
        """A proposed removal does not count until it is stored, because the replica can still be elected."""
        leadership = DrivenLeader()
        leadership.append(10)
        leadership.fetch(SECOND, 10)
        effects = leadership.pass_time(LAG_SECONDS + 1)
        write = only_write(effects)

        assert isr_of(write.record) == {LEADER, SECOND}
        assert leadership.machine.maximal_isr == set(EVERYBODY)
        assert advanced(effects) == []
        assert advanced(leadership.answer(write, WriteOutcome.STORED, 51)) == [10]

    def test_does_not_pass_a_replica_proposed_to_join(self) -> None:
        """A proposed join counts from its write on, as the write might be stored and the joining replica elected."""
        leadership = DrivenLeader(partition_record(isr=entries([LEADER, SECOND])))
        leadership.append(10)
        leadership.fetch(SECOND, 10)
        effects = leadership.fetch(THIRD, 10)
        leadership.append(20)

        assert proposes(effects)
        assert leadership.machine.maximal_isr == set(EVERYBODY)
        assert advanced(leadership.fetch(SECOND, 20)) == []
        assert advanced(leadership.fetch(THIRD, 15)) == [15]

    def test_a_report_that_comes_late_takes_nothing_back(self) -> None:
        """A late report of a lower offset changes nothing within one incarnation, generation and leader epoch."""
        leadership = DrivenLeader()
        leadership.append(10)
        leadership.fetch(SECOND, 10)
        leadership.fetch(SECOND, 3)

        assert leadership.machine.counted_of(SECOND) == 10

    def test_another_life_starts_from_what_it_says(self) -> None:
        """A new incarnation counts only once it has sent its own report."""
        leadership = DrivenLeader()
        leadership.append(10)
        leadership.fetch(SECOND, 10)
        leadership.fetch(SECOND, 3, broker_epoch=90)
        effects = leadership.fetch(THIRD, 10)

        assert leadership.machine.counted_of(SECOND) == 3
        assert advanced(effects) == [3]


class TestGate:
    """Conditions under which the high watermark advances."""

    def test_stands_still_below_min_isr(self) -> None:
        """With fewer than min_isr stored in-sync replicas, the high watermark stops, for every acks level."""
        leadership = DrivenLeader(partition_record(isr=entries([LEADER])))

        assert leadership.append(5) == []
        assert (leadership.machine.enough_in_sync, leadership.machine.in_sync_count) == (False, 1)
        assert advanced(leadership.change(51, min_isr=1)) == [5]

    def test_a_proposed_member_does_not_open_it(self) -> None:
        """A proposed member does not count towards min_isr, because the write may never be stored."""
        leadership = DrivenLeader(partition_record(isr=entries([LEADER]), elr=entries([SECOND])))
        leadership.append(5)
        effects = leadership.fetch(SECOND, 5)
        write = only_write(effects)

        assert advanced(effects) == []
        assert advanced(leadership.answer(write, WriteOutcome.STORED, 51)) == [5]

    def test_replicas_being_added_do_not_count_towards_min_isr(self) -> None:
        """A replica that is being added does not count towards min_isr."""
        leadership = DrivenLeader(partition_record(isr=entries([LEADER, SECOND]), adding=(SECOND,)))
        leadership.append(5)

        assert leadership.fetch(SECOND, 5) == []
        assert advanced(leadership.change(51, adding=())) == [5]

    def test_stands_still_after_the_directory_failed(self) -> None:
        """The high watermark stops after the directory has failed."""
        leadership = alone(durability=DurabilityState.SYNCED)
        leadership.append(5)
        leadership.step(DirectoryFailed())

        assert leadership.sync(5) == []

    @pytest.mark.parametrize("leader", [None, entries([SECOND])[0]])
    def test_stands_still_once_the_record_names_this_incarnation_no_more(self, leader: object) -> None:
        """The high watermark stops when the partition record no longer names this incarnation as the leader."""
        leadership = alone()
        leadership.change(51, leader=leader)

        assert leadership.append(5) == []
        assert leadership.machine.resigned

    def test_stands_still_with_a_doubtful_lease_alone_and_unclean(self) -> None:
        """With an expired lease, the high watermark of a lone leader stops: there may have been an unclean election."""
        leadership = alone(unclean=True)
        leadership.step(LeaseChanged(confirmed=False))

        assert leadership.append(5) == []
        assert not leadership.machine.acknowledges_in_doubt
        assert advanced(leadership.step(LeaseChanged(confirmed=True))) == [5]

    @pytest.mark.parametrize(
        "fields", [{"isr": entries([LEADER, SECOND]), "unclean": True}, {"isr": entries([LEADER])}]
    )
    def test_goes_on_with_a_doubtful_lease_otherwise(self, fields: dict[str, object]) -> None:
        """With an expired lease, the high watermark advances if no replica with fewer records can be elected."""
        leadership = DrivenLeader(partition_record(min_isr=1, **fields))
        leadership.step(LeaseChanged(confirmed=False))

        assert leadership.machine.acknowledges_in_doubt
        assert advanced([*leadership.append(5), *leadership.fetch(SECOND, 5)]) == [5]


class TestEpochStart:
    """The effect of the start of the leader epoch on the high watermark (rule 4.9)."""

    def test_is_unknown_until_it_reaches_the_start_of_the_epoch(self) -> None:
        """The high watermark is unknown until it reaches the start of the leader epoch."""
        record = partition_record(isr=entries([LEADER]), min_isr=1, durability=DurabilityState.SYNCED)
        leadership = DrivenLeader(record, end=10, synced=4, high_watermark=3)

        assert leadership.machine.high_watermark is None
        assert leadership.machine.readable_limit == 3
        assert advanced(leadership.sync(9)) == [9]
        assert leadership.machine.high_watermark is None

        leadership.sync(10)

        assert leadership.machine.high_watermark == 10

    def test_of_an_empty_log_is_known_at_once(self) -> None:
        """The high watermark of an empty log is immediately zero."""
        assert DrivenLeader().machine.high_watermark == 0


class TestWaiting:
    """The high watermark waits for a replica that could join and would otherwise never catch up (4.4)."""

    def test_a_follower_close_behind_joins_under_load(self) -> None:
        """A follower that is two appends behind joins under load, because the high watermark waits for it."""
        leadership = alone()
        for end in range(10, 1000, 10):
            leadership.now += 0.05
            leadership.append(end)
            if leadership.machine.maximal_isr == {LEADER, SECOND}:
                break
            leadership.fetch(SECOND, max(0, end - 20))

        assert leadership.machine.maximal_isr == {LEADER, SECOND}

    def test_a_follower_far_behind_stops_nothing(self) -> None:
        """The high watermark does not wait for a follower that is far behind."""
        leadership = alone()
        leadership.append(100_000)
        leadership.pass_time(30)
        for step in range(1, 100):
            leadership.now += 0.05
            leadership.fetch(SECOND, step * 10)

            assert advanced(leadership.append(100_000 + step)) == [100_000 + step]

    def test_an_attempt_takes_the_lag_time_at_most(self) -> None:
        """The high watermark waits at most the lag time for a joining replica."""
        leadership = alone()
        leadership.append(10)
        leadership.fetch(SECOND, 5)
        stopped_at = leadership.now
        moved: list[int] = []
        while not moved and leadership.now < 5 * LAG_SECONDS:
            leadership.now += 0.05
            moved = advanced(leadership.append(leadership.machine.end_offset + 10))

        assert 0.5 < leadership.now - stopped_at <= LAG_SECONDS

    def test_does_not_wait_for_a_replica_that_may_not_join(self) -> None:
        """The high watermark does not wait for a stopping broker, which may not join."""
        leadership = alone()
        leadership.register(SECOND, joins=False)
        leadership.fetch(SECOND, 0)

        assert advanced(leadership.append(10)) == [10]


class TestDoubtfulLease:
    """Requests that a leader with an expired lease may serve (rule 3.7)."""

    @pytest.mark.parametrize(
        ("fields", "serves"),
        [
            ({"isr": entries([LEADER]), "min_isr": 1}, True),
            ({"isr": entries([LEADER]), "min_isr": 1, "unclean": True}, False),
            ({"isr": entries([LEADER]), "elr": entries([SECOND])}, False),
            ({"isr": entries([LEADER, SECOND])}, False),
        ],
    )
    def test_weak_acks_need_that_no_other_replica_can_be_elected(
        self, fields: dict[str, object], serves: bool
    ) -> None:
        """Weak acks are accepted with a valid lease, and without a lease only if no other replica can be elected."""
        leadership = DrivenLeader(partition_record(**fields))

        assert leadership.machine.serves_weak_acks

        leadership.step(LeaseChanged(confirmed=False))

        assert leadership.machine.serves_weak_acks is serves
        assert not leadership.machine.lease_confirmed

    def test_a_proposal_in_doubt_counts_as_an_electable_replica(self) -> None:
        """A proposal with an unknown outcome counts as an electable replica."""
        leadership = alone()
        leadership.fetch(SECOND, 0)
        leadership.step(LeaseChanged(confirmed=False))

        assert not leadership.machine.serves_weak_acks


class TestInvariants:
    """Events that break an invariant fail an assertion."""

    def test_leader_is_in_the_isr(self) -> None:
        """A broker outside the ISR cannot become leader."""
        with pytest.raises(AssertionError):
            DrivenLeader(partition_record(isr=entries([SECOND])))

    def test_high_watermark_lies_within_the_log(self) -> None:
        """A high watermark beyond the log end is rejected."""
        with pytest.raises(AssertionError):
            DrivenLeader(end=3, high_watermark=4)

    def test_nothing_is_synced_beyond_the_end(self) -> None:
        """A synced offset beyond the log end is rejected, at the start and later."""
        with pytest.raises(AssertionError):
            DrivenLeader(end=3, synced=4)

        leadership = DrivenLeader(end=3)

        with pytest.raises(AssertionError):
            leadership.sync(4)

    def test_log_of_a_leader_does_not_shrink(self) -> None:
        """The log of a leader does not shrink, because only followers cut their logs."""
        leadership = DrivenLeader(end=3)

        with pytest.raises(AssertionError):
            leadership.append(2)

    def test_other_leader_epoch_needs_another_machine(self) -> None:
        """A state machine refuses a different leader epoch, which needs a separate state machine."""
        leadership = DrivenLeader()

        with pytest.raises(AssertionError):
            leadership.change(51, leader_epoch=4)

    def test_write_quorum_has_no_effect(self) -> None:
        """A configured write quorum changes nothing in a partition whose in-sync replicas commit records."""
        leadership = DrivenLeader(partition_record(min_isr=2))
        leadership.append(5)
        effects = [*leadership.step(WriteQuorumSet(1)), *leadership.fetch(SECOND, 5)]

        assert effects == []
        assert advanced(leadership.fetch(THIRD, 5)) == [5]

    def test_older_version_of_the_record_is_ignored(self) -> None:
        """An older revision of the partition record is ignored."""
        leadership = DrivenLeader()
        leadership.change(51, min_isr=3)

        assert leadership.change(50, min_isr=1) == []
        assert (leadership.machine.min_isr, leadership.machine.revision) == (3, 51)


def test_the_removal_limit_is_the_least_end_of_the_followers_that_are_there() -> None:
    """Tombstones may be removed below the high watermark and the ends of followers that fetched in the last hour."""
    office = alone(durability=DurabilityState.REPLICATED)
    before = office.machine.removal_limit()
    office.append(10)
    committed = office.machine.removal_limit()
    office.fetch(SECOND, 4)
    behind = office.machine.removal_limit()
    office.pass_time(3600)

    assert (before, committed, behind, office.machine.removal_limit()) == (0, 10, 4, 10)
