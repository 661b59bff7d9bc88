"""Replicas in sync, joining and leaving (rules 4.2, 4.4 to 4.6 and 3.4 of docs/explanation/simulation.md).

The tests of these rules share a file because each rule affects the others.
"""

from __future__ import annotations

import pytest

from fairlead_api.identifiers import Offset, Revision
from fairlead_broker.registry.records import DurabilityState, Replica
from fairlead_broker.replication import FetchRefusal, LeaderEffect, LeaseChanged, WriteOutcome
from replication_kit import (
    EVERYBODY,
    FIRST_REVISION,
    LAG_SECONDS,
    LEADER,
    SECOND,
    THIRD,
    DrivenLeader,
    advanced,
    elr_of,
    entries,
    isr_of,
    life,
    only_write,
    partition_record,
    proposes,
    writes,
)

TWO = entries([LEADER, SECOND])


def without_third(**fields: object) -> DrivenLeader:
    """Return a leadership with ten records, a high watermark of 10, and the third replica out of sync."""
    leadership = DrivenLeader(partition_record(isr=TWO, **fields), end=10, high_watermark=10)
    leadership.fetch(SECOND, 10)
    return leadership


class TestJoin:
    """Joining the ISR (rule 4.5)."""

    def test_a_replica_with_everything_joins(self) -> None:
        """A replica with every record joins; the write checks the revisions of partition record and registration."""
        write = only_write(without_third().fetch(THIRD, 10))

        assert write.revision == FIRST_REVISION
        assert write.record.isr == entries(EVERYBODY)
        assert write.added == ((THIRD, Revision(20 + THIRD)),)

    def test_needs_the_high_watermark(self) -> None:
        """A replica below the high watermark does not join, because as a leader it would lose acknowledged records."""
        leadership = without_third()
        leadership.append(20)
        leadership.fetch(SECOND, 20)

        assert leadership.machine.high_watermark == 20
        assert writes(leadership.fetch(THIRD, 19)) == []
        assert proposes(leadership.fetch(THIRD, 20))

    def test_needs_the_start_of_the_leader_epoch(self) -> None:
        """A replica below the start of the leader epoch does not join."""
        leadership = DrivenLeader(partition_record(isr=TWO), end=10, high_watermark=3)

        assert writes(leadership.fetch(THIRD, 9)) == []
        assert proposes(leadership.fetch(THIRD, 10))

    def test_needs_what_counts(self) -> None:
        """With durability=synced, the synced offset decides whether a replica joins."""
        leadership = DrivenLeader(
            partition_record(isr=TWO, durability=DurabilityState.SYNCED), end=10, high_watermark=10
        )

        assert writes(leadership.fetch(THIRD, 10, synced_offset=9)) == []
        assert proposes(leadership.progress(THIRD, 10))

    @pytest.mark.parametrize("fields", [{"epoch": 90}, {"joins": False}, {"directories": ()}])
    def test_needs_the_life_that_is_registered_in_health(self, fields: dict[str, object]) -> None:
        """A replica joins only in its registered incarnation, with a healthy directory, and not while it stops."""
        leadership = without_third()
        leadership.fetch(THIRD, 5)
        leadership.register(THIRD, **fields)

        assert writes(leadership.fetch(THIRD, 10)) == []
        assert proposes([*leadership.register(THIRD), *leadership.fetch(THIRD, 10)])

    def test_needs_the_life_to_be_known_here(self) -> None:
        """A replica joins only once the leader's mirror shows the registration of its broker."""
        leadership = without_third()

        assert writes(leadership.fetch(THIRD, 10, broker_epoch=90)) == []

        write = only_write(leadership.register(THIRD, epoch=90, revision=95))

        assert write.record.isr[-1].broker_epoch == 90
        assert write.added == ((THIRD, 95),)

    def test_needs_the_generation_of_the_record(self) -> None:
        """A report from an earlier generation does not count for a join."""
        replicas = tuple(
            Replica(broker=broker, directory=f"d{broker}", generation=int(broker == THIRD))
            for broker in EVERYBODY
        )
        leadership = without_third(replicas=replicas)

        assert leadership.fetch(THIRD, 10) == []
        assert proposes(leadership.fetch(THIRD, 10, generation=1))

    def test_a_new_generation_forgets_what_was_reported(self) -> None:
        """The leader forgets the offsets that a replica reported in an earlier generation."""
        leadership = DrivenLeader(end=10)
        leadership.fetch(SECOND, 10)
        replicas = tuple(
            Replica(broker=broker, directory=f"d{broker}", generation=int(broker == SECOND))
            for broker in EVERYBODY
        )
        leadership.change(51, replicas=replicas, isr=entries([LEADER, THIRD]))

        assert leadership.machine.counted_of(SECOND) is None
        assert leadership.progress(SECOND, 10) == []
        assert leadership.machine.counted_of(SECOND) is None

    def test_writes_the_directory_that_is_registered(self) -> None:
        """A join writes the registered directory: at generation 0 if it is new, otherwise at its known generation."""
        replicas = tuple(
            Replica(broker=broker, directory=f"d{broker}", generation=4 * int(broker == THIRD))
            for broker in EVERYBODY
        )
        leadership = without_third(replicas=replicas)
        leadership.register(THIRD, directories=("new",))

        assert leadership.fetch(THIRD, 10, generation=4) == []

        write = only_write(leadership.fetch(THIRD, 10))

        assert write.record.replicas[2] == Replica(broker=THIRD, directory="new", generation=0)
        assert write.record.replicas[:2] == replicas[:2]

        kept = only_write(without_third(replicas=replicas).fetch(THIRD, 10, generation=4))

        assert kept.record.replicas == replicas

    def test_takes_an_eligible_replica_out_of_elr(self) -> None:
        """A replica that joins an ISR that stays too small leaves the ELR, and other eligible replicas remain."""
        leadership = DrivenLeader(
            partition_record(isr=entries([LEADER]), elr=entries([SECOND, THIRD]), min_isr=3), end=10
        )
        write = only_write(leadership.fetch(SECOND, 10))

        assert (isr_of(write.record), elr_of(write.record)) == ({LEADER, SECOND}, {THIRD})

    def test_another_life_of_a_member_takes_its_place(self) -> None:
        """A new incarnation of a member replaces the previous incarnation in the ISR."""
        leadership = DrivenLeader(end=10)
        leadership.register(SECOND, epoch=90)
        write = only_write(leadership.fetch(SECOND, 10, broker_epoch=90))

        assert isr_of(write.record) == set(EVERYBODY)
        assert {entry.broker_epoch for entry in write.record.isr} == {life(LEADER), life(THIRD), 90}

    def test_a_broker_that_is_no_replica_cannot_join(self) -> None:
        """A broker that is not a replica cannot join, although it may fetch for a while."""
        leadership = without_third()
        leadership.change(51, replicas=leadership.machine.record.replicas[:2])

        assert leadership.fetch(THIRD, 10) == []
        assert leadership.machine.counted_of(THIRD) is None


class TestProgress:
    """The peer call `progress` (rule 4.2)."""

    @pytest.mark.parametrize(
        "fields", [{"broker_epoch": 11}, {"broker_epoch": 90}, {"generation": 1}, {"leader_epoch": 2}]
    )
    def test_counts_only_for_the_fetch_before_it(self, fields: dict[str, object]) -> None:
        """Progress counts only with the incarnation, generation and leader epoch of the follower's last fetch."""
        leadership = DrivenLeader(partition_record(durability=DurabilityState.SYNCED), end=10, synced=10)
        leadership.fetch(THIRD, 10)
        leadership.fetch(SECOND, 10, synced_offset=0)

        assert leadership.progress(SECOND, 10, **fields) == []
        assert advanced(leadership.progress(SECOND, 10)) == [10]

    def test_without_a_fetch_in_this_epoch_it_says_nothing(self) -> None:
        """Progress of a follower that has not fetched in this leader epoch is ignored."""
        leadership = DrivenLeader(partition_record(durability=DurabilityState.SYNCED), end=10, synced=10)
        leadership.fetch(THIRD, 10)

        assert leadership.progress(SECOND, 10) == []
        assert leadership.machine.counted_of(SECOND) is None


class TestShrink:
    """A member that lags for longer than the lag time leaves the ISR."""

    def test_members_have_the_lag_time_from_the_start_of_the_epoch(self) -> None:
        """A new leader allows every member the lag time to send its first fetch."""
        leadership = DrivenLeader(end=10)

        assert leadership.pass_time(LAG_SECONDS) == []
        assert isr_of(only_write(leadership.pass_time(1)).record) == {LEADER}

    def test_an_idle_partition_keeps_its_isr(self) -> None:
        """A complete replica of an idle partition stays in the ISR, even if its last fetch is old."""
        leadership = DrivenLeader(end=10)
        leadership.fetch(SECOND, 10)
        leadership.fetch(THIRD, 10)

        assert writes(leadership.pass_time(20 * LAG_SECONDS)) == []

        leadership.append(20)

        assert writes(leadership.pass_time(LAG_SECONDS - 1)) == []
        assert isr_of(only_write(leadership.pass_time(2)).record) == {LEADER}

    def test_a_member_a_little_behind_all_the_time_stays(self) -> None:
        """A member that is always a little behind stays in the ISR."""
        leadership = DrivenLeader()
        orders = []
        for second in range(1, 60):
            orders += writes(leadership.pass_time(1))
            leadership.append(second * 100)
            for broker in (SECOND, THIRD):
                orders += writes(leadership.fetch(broker, (second - 2) * 100 if second > 2 else 0))

        assert orders == []

    def test_a_member_that_falls_further_behind_leaves(self) -> None:
        """A member that falls further behind leaves the ISR although it keeps fetching."""
        leadership = DrivenLeader()
        leavers: set[int] = set()
        for second in range(1, 60):
            for write in writes(leadership.pass_time(1)):
                leavers |= set(EVERYBODY) - isr_of(write.record)
            leadership.append(second * 100)
            leadership.fetch(SECOND, second * 100)
            leadership.fetch(THIRD, second * 10)

        assert leavers == {THIRD}

    def test_a_joined_replica_has_the_lag_time_to_catch_up(self) -> None:
        """A replica that joined far behind has the lag time to catch up, while the high watermark does not advance."""
        leadership = DrivenLeader(partition_record(isr=entries([LEADER])))
        leadership.append(100_000)
        leadership.pass_time(2 * LAG_SECONDS)
        write = only_write(leadership.fetch(SECOND, 5))
        leadership.answer(write, WriteOutcome.STORED, 51)

        assert writes(leadership.pass_time(LAG_SECONDS)) == []
        assert isr_of(only_write(leadership.pass_time(1)).record) == {LEADER}

    def test_a_dead_follower_does_not_come_back_by_its_last_report(self) -> None:
        """A stopped follower joins again only after a new report, because its last report does not count."""
        leadership = DrivenLeader()
        leadership.append(10)
        leadership.fetch(SECOND, 10)
        leadership.fetch(THIRD, 10)
        leadership.append(20)
        orders: list[LeaderEffect] = []
        while not writes(orders) and leadership.now < 2 * LAG_SECONDS:
            orders = [*leadership.pass_time(1), *leadership.fetch(SECOND, 20)]
        leadership.answer(only_write(orders), WriteOutcome.STORED, 51)

        assert writes(leadership.pass_time(3 * LAG_SECONDS)) == []
        assert leadership.machine.high_watermark == 20
        assert proposes(leadership.fetch(THIRD, 20))

    def test_lag_depends_on_the_durability(self) -> None:
        """With durability=synced, a member whose disk does not sync leaves the ISR."""
        leadership = DrivenLeader(partition_record(durability=DurabilityState.SYNCED))
        leavers: set[int] = set()
        for second in range(1, 30):
            for write in writes(leadership.pass_time(1)):
                leavers |= set(EVERYBODY) - isr_of(write.record)
            leadership.append(second * 100)
            leadership.sync(second * 100)
            leadership.fetch(SECOND, second * 100)
            leadership.fetch(THIRD, second * 100, synced_offset=0)

        assert leavers == {THIRD}

    def test_a_replica_that_leaves_a_small_isr_stays_eligible(self) -> None:
        """A member that leaves an ISR that is too small becomes eligible, because the high watermark then stops."""
        leadership = DrivenLeader(partition_record(min_isr=3), end=10)
        leadership.fetch(SECOND, 10)
        leadership.append(20)
        leadership.fetch(SECOND, 20)
        write = only_write(leadership.pass_time(LAG_SECONDS + 1))

        assert (isr_of(write.record), elr_of(write.record)) == ({LEADER, SECOND}, {THIRD})
        assert write.added == ()

    def test_a_member_whose_disk_has_failed_leaves_at_once(self) -> None:
        """A member that registers no directory leaves the ISR at once, without the lag time."""
        leadership = DrivenLeader(end=10)
        write = only_write(leadership.register(THIRD, directories=()))

        assert isr_of(write.record) == {LEADER, SECOND}

    def test_what_an_earlier_or_later_life_registers_says_nothing_of_a_member(self) -> None:
        """A registration from an incarnation other than the member's does not remove the member."""
        leadership = DrivenLeader(end=10)

        assert writes(leadership.register(THIRD, epoch=90, directories=())) == []


class TestUndecided:
    """Outcomes of writes to the partition record (rule 3.4)."""

    def propose(self, leadership: DrivenLeader) -> None:
        """Propose that the third replica joins, in a write whose outcome is unknown."""
        write = only_write(leadership.fetch(THIRD, 10))
        leadership.answer(write, WriteOutcome.UNKNOWN)

    def test_an_unknown_outcome_keeps_the_proposal(self) -> None:
        """A proposal with an unknown outcome is kept, because it may be stored and the joining replica elected."""
        leadership = without_third()
        self.propose(leadership)
        leadership.append(20)

        assert leadership.machine.maximal_isr == set(EVERYBODY)
        assert advanced(leadership.fetch(SECOND, 20)) == []
        assert advanced(leadership.fetch(THIRD, 15)) == [15]

    def test_an_unchanged_record_proves_nothing(self) -> None:
        """An unchanged partition record does not end the proposal, because the write may still arrive."""
        leadership = without_third()
        self.propose(leadership)
        leadership.change(FIRST_REVISION)

        assert leadership.machine.maximal_isr == set(EVERYBODY)

    def test_a_refused_second_attempt_proves_nothing_about_the_first(self) -> None:
        """A refused second attempt does not end the proposal, because the first attempt may have been stored."""
        leadership = without_third()
        self.propose(leadership)
        again = only_write(leadership.pass_time(1))
        leadership.answer(again, WriteOutcome.REFUSED)

        assert leadership.machine.maximal_isr == set(EVERYBODY)

    def test_a_record_with_a_higher_revision_decides(self) -> None:
        """A partition record with a higher revision ends every proposal that is based on the previous revision."""
        leadership = without_third()
        self.propose(leadership)
        leadership.register(THIRD, joins=False)
        leadership.change(51, min_isr=2)
        leadership.append(20)

        assert leadership.machine.maximal_isr == {LEADER, SECOND}
        assert advanced(leadership.fetch(SECOND, 20)) == [20]

    def test_a_refused_write_is_forgotten(self) -> None:
        """The refusal of a write ends the proposal that the write contained."""
        leadership = without_third()
        leadership.answer(only_write(leadership.fetch(THIRD, 10)), WriteOutcome.REFUSED)

        assert leadership.machine.maximal_isr == {LEADER, SECOND}

    def test_a_stored_write_is_the_record(self) -> None:
        """A partition record that was stored is used before the mirror shows it."""
        leadership = without_third()
        write = only_write(leadership.fetch(THIRD, 10))
        leadership.answer(write, WriteOutcome.STORED, 60)

        assert (leadership.machine.record, leadership.machine.revision) == (write.record, 60)
        assert leadership.change(60) == []
        assert leadership.machine.in_sync_count == 3

    def test_one_write_is_in_flight_at_a_time(self) -> None:
        """Only one write to the partition record is in flight at a time."""
        leadership = without_third()
        only_write(leadership.fetch(THIRD, 10))

        assert writes(leadership.pass_time(3 * LAG_SECONDS)) == []

    def test_after_a_write_that_came_to_nothing_time_passes_before_the_next(self) -> None:
        """After a write that was not stored, the leader pauses before it proposes another write."""
        leadership = without_third()
        write = only_write(leadership.fetch(THIRD, 10))

        assert writes(leadership.answer(write, WriteOutcome.REFUSED)) == []
        assert writes(leadership.fetch(THIRD, 10)) == []
        assert proposes(leadership.pass_time(1))

    def test_an_answer_that_comes_after_a_newer_record_is_ignored(self) -> None:
        """The answer to a write is ignored if it arrives after a newer partition record."""
        leadership = without_third()
        write = only_write(leadership.fetch(THIRD, 10))
        leadership.register(THIRD, joins=False)
        leadership.change(60, isr=TWO)
        leadership.answer(write, WriteOutcome.STORED, 55)

        assert (leadership.machine.revision, isr_of(leadership.machine.record)) == (60, {LEADER, SECOND})

    def test_without_a_sure_lease_nothing_is_proposed(self) -> None:
        """A leader without a valid lease proposes no change to the ISR."""
        leadership = without_third()
        leadership.step(LeaseChanged(confirmed=False))

        assert writes([*leadership.fetch(THIRD, 10), *leadership.pass_time(3 * LAG_SECONDS)]) == []
        assert isr_of(only_write(leadership.step(LeaseChanged(confirmed=True))).record) >= {LEADER, THIRD}


class TestSyncing:
    """The end of the durability state `syncing`, which the leader writes (rule 4.6)."""

    def leadership(self, **fields: object) -> DrivenLeader:
        """Return a leadership with all replicas in sync and ten records, appended and committed but not synced."""
        leadership = DrivenLeader(partition_record(**fields), end=10, synced=0, high_watermark=10)
        for broker in (SECOND, THIRD):
            leadership.fetch(broker, 10, synced_offset=0)
        return leadership

    def test_ends_when_everything_promised_is_on_every_disk(self) -> None:
        """Syncing ends when every committed record is synced on every member, with one write per revision."""
        leadership = self.leadership()

        assert leadership.change(51, durability=DurabilityState.SYNCING) == []
        assert leadership.sync(10) == []
        assert leadership.progress(SECOND, 10) == []

        write = only_write(leadership.progress(THIRD, 10))

        assert (write.revision, write.record.durability, write.added) == (51, DurabilityState.SYNCED, ())
        assert writes(leadership.sync(10)) == []

    def test_waits_for_what_was_committed_as_written(self) -> None:
        """The end of syncing waits until all records below the high watermark are synced."""
        leadership = self.leadership(durability=DurabilityState.SYNCING)
        leadership.sync(9)
        leadership.progress(SECOND, 10)

        assert writes(leadership.progress(THIRD, 10)) == []
        assert proposes(leadership.sync(10))

    def test_waits_for_the_start_of_the_epoch(self) -> None:
        """The end of syncing waits until the log is synced up to the start of the leader epoch."""
        record = partition_record(isr=entries([LEADER]), min_isr=1, durability=DurabilityState.SYNCING)
        leadership = DrivenLeader(record, end=10, synced=4)

        assert writes(leadership.sync(8)) == []
        assert proposes(leadership.sync(10))

    def test_waits_while_there_are_eligible_replicas_outside(self) -> None:
        """The end of syncing waits while an eligible replica is outside the ISR."""
        record = partition_record(
            isr=TWO, elr=entries([THIRD]), min_isr=3, durability=DurabilityState.SYNCING
        )
        leadership = DrivenLeader(record)
        leadership.fetch(SECOND, 0)

        assert writes(leadership.sync(0)) == []

    def test_waits_for_members_that_have_not_reported(self) -> None:
        """The end of syncing waits for a report from every in-sync replica."""
        leadership = DrivenLeader(partition_record(durability=DurabilityState.SYNCING))
        leadership.fetch(SECOND, 0)

        assert writes(leadership.sync(0)) == []


class TestRefusals:
    """Fetches that are refused, and whose reported offsets are ignored (rule 4.8)."""

    @pytest.mark.parametrize(
        ("fields", "refusal"),
        [
            ({}, None),
            ({"leader_epoch": 2}, "stale_leader_epoch"),
            ({"leader_epoch": 4}, "unknown_leader_epoch"),
            ({"generation": 1}, "not_a_replica"),
            ({"broker_epoch": 11}, "stale_broker_epoch"),
            ({"broker_epoch": 90}, None),
        ],
    )
    def test_say_why(self, fields: dict[str, object], refusal: str | None) -> None:
        """A fetch from an ended incarnation, or with a wrong leader epoch or generation, is refused with the reason."""
        leadership = DrivenLeader(end=10)
        report = leadership.report(SECOND, 10, **fields)
        found = leadership.machine.refusal_of(report)

        assert (found and found.value) == refusal

        leadership.fetch(SECOND, 10, **fields)

        assert leadership.machine.counted_of(SECOND) == (Offset(10) if refusal is None else None)

    def test_a_broker_that_holds_no_replica_is_refused(self) -> None:
        """A fetch from a broker without a replica is refused."""
        leadership = DrivenLeader(end=10)
        found = leadership.machine.refusal_of(leadership.report(9, 10))

        assert found is FetchRefusal.NOT_A_REPLICA

    def test_a_life_that_fetched_later_makes_the_one_before_stale(self) -> None:
        """A fetch from a later incarnation makes the earlier incarnation stale, before the registration is mirrored."""
        leadership = DrivenLeader(end=10)
        leadership.fetch(SECOND, 3, broker_epoch=90)

        assert leadership.fetch(SECOND, 10) == []
        assert leadership.machine.counted_of(SECOND) == 3
