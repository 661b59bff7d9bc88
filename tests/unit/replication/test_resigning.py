"""Resignation of a leader with a bad disk, and the low watermark of the ISR."""

from __future__ import annotations

import pytest

from fairlead_api.identifiers import Offset
from fairlead_broker.registry.records import DurabilityState
from fairlead_broker.replication import (
    AdvanceLowWatermark,
    DirectoryFailed,
    LeaderEffect,
    LogStartMoved,
    WriteOutcome,
)
from replication_kit import (
    LAG_SECONDS,
    LEADER,
    SECOND,
    THIRD,
    DrivenLeader,
    elr_of,
    entries,
    isr_of,
    only_write,
    partition_record,
    registered,
    writes,
)


class TestFailedDirectory:
    """A leader whose directory has failed."""

    def test_leaves_leadership_and_isr_to_the_others(self) -> None:
        """The leader resigns and leaves the ISR, so that the controller elects another leader."""
        leadership = DrivenLeader(partition_record(durability=DurabilityState.SYNCED))
        write = only_write(leadership.step(DirectoryFailed()))

        assert write.record.leader is None
        assert isr_of(write.record) == {SECOND, THIRD}
        assert not leadership.machine.resigned

        leadership.answer(write, WriteOutcome.STORED, 51)

        assert leadership.machine.resigned
        assert writes(leadership.pass_time(3 * LAG_SECONDS)) == []

    @pytest.mark.parametrize(
        ("durability", "eligible"),
        [
            (DurabilityState.SYNCED, {LEADER}),
            (DurabilityState.SYNCING, set[int]()),
            (DurabilityState.REPLICATED, set[int]()),
        ],
    )
    def test_is_eligible_only_with_what_was_promised_as_synced(
        self, durability: DurabilityState, eligible: set[int]
    ) -> None:
        """The leader stays eligible only with synced durability: a failed fsync may lose written pages."""
        leadership = DrivenLeader(partition_record(isr=entries([LEADER, SECOND]), durability=durability))
        write = only_write(leadership.step(DirectoryFailed()))

        assert elr_of(write.record) == eligible

    def test_the_last_member_stays(self) -> None:
        """The last in-sync replica stays leader, so that committed records can be read."""
        leadership = DrivenLeader(partition_record(isr=entries([LEADER]), min_isr=1))

        assert writes(leadership.step(DirectoryFailed())) == []

    def test_stays_while_the_others_are_away(self) -> None:
        """The leader resigns only if another member is registered in the incarnation named by the partition record."""
        leadership = DrivenLeader(partition_record(isr=entries([LEADER, SECOND])))
        leadership.register(SECOND, epoch=90)

        assert writes(leadership.step(DirectoryFailed())) == []
        assert isr_of(only_write(leadership.register(SECOND)).record) == {SECOND}

    def test_stays_where_the_disks_of_the_others_have_failed_too(self) -> None:
        """The leader stays if the directories of the other members have failed too."""
        failed = {LEADER: registered(LEADER), SECOND: registered(SECOND, directories=())}
        leadership = DrivenLeader(partition_record(isr=entries([LEADER, SECOND])), brokers=failed)

        assert writes(leadership.step(DirectoryFailed())) == []

    def test_adds_no_replica_any_more(self) -> None:
        """A leader with a failed directory adds no replica."""
        leadership = DrivenLeader(partition_record(isr=entries([LEADER]), min_isr=1))
        leadership.step(DirectoryFailed())

        assert writes([*leadership.fetch(SECOND, 0), *leadership.pass_time(1)]) == []


class TestSlowDisk:
    """A leader whose own fsync is slow."""

    def run(self, leadership: DrivenLeader, *, follower_synced: bool) -> list[LeaderEffect]:
        """Append records that the second replica syncs and the leader does not sync."""
        effects: list[LeaderEffect] = []
        for second in range(1, int(LAG_SECONDS) + 3):
            effects += leadership.pass_time(1)
            leadership.append(second * 10)
            effects += leadership.fetch(
                SECOND, second * 10, synced_offset=Offset(second * 10 if follower_synced else 0)
            )
        return effects

    def test_resigns_to_a_replica_that_keeps_up(self) -> None:
        """The leader resigns if its own disk lags for longer than the lag time and another member's disk does not."""
        leadership = DrivenLeader(
            partition_record(durability=DurabilityState.SYNCED, isr=entries([LEADER, SECOND]))
        )
        write = only_write(self.run(leadership, follower_synced=True))

        assert write.record.leader is None
        assert (isr_of(write.record), elr_of(write.record)) == ({SECOND}, {LEADER})

    def test_stays_without_a_faster_member(self) -> None:
        """The leader stays if no other member is faster."""
        leadership = DrivenLeader(
            partition_record(durability=DurabilityState.SYNCED, isr=entries([LEADER, SECOND]))
        )
        found = writes(self.run(leadership, follower_synced=False))

        assert all(write.record.leader is not None for write in found)

    def test_counts_what_counts(self) -> None:
        """With durability=replicated, a slow fsync does not make the leader resign."""
        leadership = DrivenLeader(partition_record(isr=entries([LEADER, SECOND])))

        assert writes(self.run(leadership, follower_synced=False)) == []

    def test_has_the_lag_time_from_the_start_of_the_epoch(self) -> None:
        """A new leader has the lag time to sync its inherited tail."""
        leadership = DrivenLeader(
            partition_record(durability=DurabilityState.SYNCED, isr=entries([LEADER, SECOND])),
            end=10,
            synced=0,
        )
        leadership.fetch(SECOND, 10)

        assert writes(leadership.pass_time(LAG_SECONDS)) == []
        assert only_write(leadership.pass_time(1)).record.leader is None


class TestLowWatermark:
    """The low watermark: the offset below which every in-sync replica has deleted its records."""

    def test_is_the_least_log_start_of_the_isr(self) -> None:
        """The low watermark is the lowest log start offset in the ISR; a member without a report prevents a rise."""
        leadership = DrivenLeader(end=20)
        leadership.step(LogStartMoved(Offset(15)))
        leadership.fetch(SECOND, 20, log_start=Offset(15))

        assert leadership.machine.low_watermark is None

        leadership.fetch(THIRD, 20, log_start=Offset(5))

        assert leadership.machine.low_watermark == 5
        assert AdvanceLowWatermark(Offset(15)) in leadership.fetch(THIRD, 20, log_start=Offset(15))
        assert leadership.machine.low_watermark == leadership.machine.log_start == 15

    def test_does_not_wait_for_a_replica_out_of_sync(self) -> None:
        """The low watermark does not wait for a replica outside the ISR."""
        leadership = DrivenLeader(partition_record(isr=entries([LEADER, SECOND])), end=20)
        leadership.fetch(SECOND, 20, log_start=Offset(15))
        leadership.fetch(THIRD, 3)

        assert leadership.step(LogStartMoved(Offset(15))) == [AdvanceLowWatermark(Offset(15))]

    def test_follows_the_record(self) -> None:
        """The low watermark does not wait for a member that has left."""
        leadership = DrivenLeader(end=20)
        leadership.fetch(SECOND, 20, log_start=Offset(9))
        leadership.step(LogStartMoved(Offset(9)))

        assert AdvanceLowWatermark(Offset(9)) in leadership.change(51, isr=entries([LEADER, SECOND]))

    def test_is_reported_once(self) -> None:
        """Each low watermark is reported once and never falls."""
        leadership = DrivenLeader(partition_record(isr=entries([LEADER, SECOND])), end=20, log_start=9)

        assert AdvanceLowWatermark(Offset(9)) in leadership.fetch(SECOND, 20, log_start=Offset(9))
        assert leadership.fetch(SECOND, 20, log_start=Offset(9)) == []
        assert leadership.step(LogStartMoved(Offset(4))) == []
        assert leadership.machine.log_start == 9

    def test_is_reported_again_when_a_later_replica_has_followed(self) -> None:
        """The low watermark is reported again after a replica that joined later has also deleted its records."""
        leadership = DrivenLeader(partition_record(isr=entries([LEADER]), min_isr=1), end=20, log_start=9)
        alone = leadership.step(LogStartMoved(Offset(15)))
        leadership.change(51, isr=entries([LEADER, SECOND]))
        leadership.fetch(SECOND, 20, log_start=Offset(0))

        assert AdvanceLowWatermark(Offset(15)) in alone
        assert leadership.machine.low_watermark == 0
        assert leadership.fetch(SECOND, 20, log_start=Offset(15)) == [AdvanceLowWatermark(Offset(15))]
