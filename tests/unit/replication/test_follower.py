"""The follower's machine of one partition: events in, effects out (protocol section 4, rules 2 and 8)."""

from __future__ import annotations

import pytest

from fairlead_api.identifiers import BrokerEpoch, BrokerId, LeaderEpoch, Offset
from fairlead_broker.replication import (
    AdvanceHighWatermark,
    CopiesAppended,
    Diverged,
    EpochEnd,
    EpochStart,
    Fetched,
    FetchOutOfRange,
    FollowerEffect,
    FollowerLogSynced,
    FollowerReport,
    MoveLogStart,
    PartitionFollower,
    ReportProgress,
    RestartAt,
    Restarted,
    SkipTo,
    Truncated,
    TruncateTo,
)

EPOCH = LeaderEpoch(5)


def following(
    *,
    end: int = 10,
    synced: int = 10,
    log_start: int = 0,
    high_watermark: int = 0,
    last_epoch: int | None = 4,
) -> PartitionFollower:
    """A follower that has just learned of its leader."""
    return PartitionFollower(
        BrokerId(2),
        BrokerEpoch(12),
        3,
        EPOCH,
        Offset(end),
        Offset(synced),
        Offset(log_start),
        Offset(high_watermark),
        None if last_epoch is None else LeaderEpoch(last_epoch),
    )


def fetched(
    follower: PartitionFollower,
    *,
    nbytes: int = 0,
    high_watermark: int | None = 0,
    log_start: int = 0,
    epoch: int = EPOCH,
) -> list[FollowerEffect]:
    """An answer without objection."""
    known = None if high_watermark is None else Offset(high_watermark)
    return follower.step(Fetched(LeaderEpoch(epoch), known, Offset(log_start), nbytes))


def diverged(follower: PartitionFollower, end: int, own_end: int | None) -> list[FollowerEffect]:
    """An answer that says where the leader's records of epoch 3 end."""
    own = None if own_end is None else EpochEnd(LeaderEpoch(3), Offset(own_end))
    return follower.step(Diverged(LeaderEpoch(3), Offset(end), own))


class TestFetching:
    """What it asks."""

    def test_says_all_that_the_leader_has_to_know(self) -> None:
        """Its life, generation, the epoch it follows, its last record, and how far it is."""
        report = following(end=10, synced=8, log_start=2).next_fetch()

        assert report == FollowerReport(
            BrokerId(2), BrokerEpoch(12), 3, EPOCH, LeaderEpoch(4), Offset(10), Offset(8), Offset(2)
        )

    def test_shows_whom_it_follows_as_what_and_how_far_it_is(self) -> None:
        """Its shell needs that to place what comes, and to tell this machine from the next."""
        follower = following(end=10)

        assert (follower.leader_epoch, follower.generation) == (EPOCH, 3)
        assert follower.end_offset == 10

        fetched(follower, nbytes=1)
        follower.step(CopiesAppended(Offset(14), EPOCH))

        assert follower.end_offset == 14

    def test_asks_nothing_while_records_are_being_appended(self) -> None:
        """The next question depends on them."""
        follower = following()
        fetched(follower, nbytes=100)

        assert follower.next_fetch() is None

        follower.step(CopiesAppended(Offset(14), EPOCH))
        report = follower.next_fetch()

        assert report is not None
        assert (report.fetch_offset, report.last_epoch) == (14, EPOCH)

    def test_passes_what_the_leader_has_lost_at_its_end(self) -> None:
        """Nothing comes for that, and without it the log would never reach what is committed."""
        follower = following(end=10)

        lost = (EpochStart(LeaderEpoch(4), Offset(3)),)
        ordered = follower.step(Fetched(EPOCH, Offset(14), Offset(0), 0, Offset(14), lost))

        assert ordered == [AdvanceHighWatermark(Offset(10)), SkipTo(Offset(14), lost)]
        assert follower.reconciled
        assert follower.next_fetch() is None

        follower.step(CopiesAppended(Offset(14), LeaderEpoch(4)))

        assert (follower.end_offset, follower.high_watermark) == (14, 14)

    def test_passes_nothing_that_it_has(self) -> None:
        """Its own copy of what the leader has lost is as good as ever."""
        follower = following(end=10)

        assert follower.step(Fetched(EPOCH, Offset(0), Offset(0), 0, Offset(10))) == []
        assert follower.next_fetch() is not None

    def test_an_answer_of_another_epoch_is_ignored(self) -> None:
        """It was asked for before this machine was made."""
        follower = following()

        assert fetched(follower, epoch=4, high_watermark=9) == []
        assert not follower.reconciled

    def test_a_log_ahead_of_its_leader_is_not_touched(self) -> None:
        """A restored store has issued an epoch again: such a replica is quarantined, never cut."""
        follower = following(last_epoch=6)

        assert follower.is_ahead
        assert follower.next_fetch() is None
        assert diverged(follower, 3, 3) == []
        assert follower.step(FetchOutOfRange(Offset(20), Offset(30))) == []

    def test_copies_never_take_the_log_back(self) -> None:
        """Only a cut does."""
        follower = following()
        fetched(follower, nbytes=1)

        with pytest.raises(AssertionError, match="back from 10 to 9"):
            follower.step(CopiesAppended(Offset(9), EPOCH))

    def test_a_log_without_records_parts_from_nothing(self) -> None:
        """Everything up to its end is deleted: it names no epoch, or it would be asked to cut what is not there."""
        report = following(end=10, log_start=10, last_epoch=4).next_fetch()

        assert report is not None
        assert report.last_epoch is None

    def test_a_log_without_records_says_what_it_deleted(self) -> None:
        """By the epoch of that the leader knows whether it had the same; one with records needs no such thing."""
        emptied = following(end=10, log_start=10, last_epoch=4).next_fetch()
        whole = following(end=10, log_start=9, last_epoch=4).next_fetch()

        assert emptied is not None
        assert emptied.deleted_epoch == 4
        assert whole is not None
        assert whole.deleted_epoch is None


class TestFollowing:
    """The leader's high watermark and log start."""

    def test_high_watermark_goes_as_far_as_the_own_log(self) -> None:
        """What is committed but not here yet cannot be served."""
        follower = following()

        assert fetched(follower, nbytes=1, high_watermark=12) == [AdvanceHighWatermark(Offset(10))]
        assert follower.step(CopiesAppended(Offset(14), EPOCH)) == [AdvanceHighWatermark(Offset(12))]
        assert follower.high_watermark == 12

    def test_high_watermark_never_goes_back(self) -> None:
        """A new leader learns it late."""
        follower = following(high_watermark=8)

        assert fetched(follower, high_watermark=5) == []
        assert fetched(follower, high_watermark=None) == []
        assert follower.high_watermark == 8

    def test_log_start_follows(self) -> None:
        """Only leaders decide what is deleted; it was committed, also where the leader does not know how much is."""
        follower = following(log_start=2)

        assert fetched(follower, log_start=7, high_watermark=None) == [
            AdvanceHighWatermark(Offset(7)),
            MoveLogStart(Offset(7)),
        ]
        assert fetched(follower, log_start=6) == []
        assert follower.log_start == 7


class TestProgress:
    """What it says about its disk."""

    def test_reports_what_is_synced(self) -> None:
        """Once each time that it grows."""
        follower = following(end=10, synced=4)
        fetched(follower)

        assert follower.step(FollowerLogSynced(Offset(9))) == [ReportProgress(Offset(9))]
        assert follower.step(FollowerLogSynced(Offset(7))) == []
        assert follower.synced_offset == 9

    def test_says_nothing_before_the_leader_has_agreed_to_the_log(self) -> None:
        """The leader would count other records at the same offsets; the next fetch says it."""
        follower = following(end=10, synced=4)

        assert follower.step(FollowerLogSynced(Offset(10))) == []

        fetched(follower)
        report = follower.next_fetch()

        assert follower.reconciled
        assert report is not None
        assert report.synced_offset == 10

    def test_an_fsync_cannot_vouch_for_what_was_not_told_yet(self) -> None:
        """A round may sync copies whose append has not been heard of."""
        follower = following(end=10, synced=4)
        fetched(follower, nbytes=1)

        assert follower.step(FollowerLogSynced(Offset(14))) == [ReportProgress(Offset(10))]


class TestCutting:
    """A log that is not the leader's."""

    @pytest.mark.parametrize(
        ("leader_end", "own_end", "cut_at"), [(7, 9, 7), (9, 7, 7), (20, 15, 10), (8, None, 8)]
    )
    def test_cuts_at_the_least_of_three(self, leader_end: int, own_end: int | None, cut_at: int) -> None:
        """The leader's end of the epoch, the own end of it, the own end; and then asks again."""
        follower = following()

        assert diverged(follower, leader_end, own_end) == [TruncateTo(Offset(cut_at))]
        assert follower.next_fetch() is None
        assert not follower.reconciled

        follower.step(Truncated(Offset(cut_at), LeaderEpoch(3)))
        report = follower.next_fetch()

        assert report is not None
        assert (report.fetch_offset, report.last_epoch, report.synced_offset) == (cut_at, 3, cut_at)

    def test_never_cuts_by_the_high_watermark(self) -> None:
        """It is known one round trip late: what lies above may be committed, and what below may not be the leader's."""
        assert diverged(following(high_watermark=2), 7, 9) == [TruncateTo(Offset(7))]
        assert diverged(following(high_watermark=9), 7, 9) == [TruncateTo(Offset(7))]

    def test_what_is_cut_is_not_committed(self) -> None:
        """After an unclean election."""
        follower = following(high_watermark=9)
        diverged(follower, 7, 9)
        follower.step(Truncated(Offset(7), LeaderEpoch(3)))

        assert follower.high_watermark == 7

    def test_never_cuts_below_its_log_start(self) -> None:
        """There is nothing."""
        assert diverged(following(log_start=5), 3, 3) == [TruncateTo(Offset(5))]

    def test_an_answer_that_comes_while_something_is_ordered_is_ignored(self) -> None:
        """It answers an older question."""
        follower = following()
        diverged(follower, 7, 9)

        assert diverged(follower, 5, 9) == []
        assert fetched(follower, high_watermark=5) == []
        assert not follower.reconciled


class TestRestarting:
    """A log that the leader's does not reach any more."""

    def test_begins_anew_where_the_leader_begins(self) -> None:
        """The leader has deleted what would come next."""
        follower = following()

        assert follower.step(FetchOutOfRange(Offset(50), Offset(80))) == [RestartAt(Offset(50))]
        assert follower.next_fetch() is None

        follower.step(Restarted(Offset(50)))
        report = follower.next_fetch()

        assert report is not None
        assert (report.fetch_offset, report.synced_offset, report.log_start) == (50, 50, 50)
        assert report.last_epoch is None
        assert follower.high_watermark == 50

    def test_keeps_the_epoch_of_what_was_deleted_before(self) -> None:
        """The leader has told it, and the next leader is told it."""
        follower = following()
        before = EpochStart(LeaderEpoch(3), Offset(20))

        ordered = follower.step(FetchOutOfRange(Offset(50), Offset(80), before))
        follower.step(Restarted(Offset(50), before.epoch))
        report = follower.next_fetch()

        assert ordered == [RestartAt(Offset(50), before)]
        assert report is not None
        assert (report.last_epoch, report.deleted_epoch) == (None, 3)

    @pytest.mark.parametrize("last_epoch", [None, 4])
    def test_an_empty_log_beyond_the_leader_begins_anew(self, last_epoch: int | None) -> None:
        """It has no record by whose epoch the leader could object."""
        follower = following(end=90, synced=90, log_start=90, last_epoch=last_epoch)

        assert follower.step(FetchOutOfRange(Offset(50), Offset(80))) == [RestartAt(Offset(50))]

    @pytest.mark.parametrize(("leader_start", "leader_end"), [(5, 20), (10, 20), (0, 5)])
    def test_drops_nothing_that_the_leader_could_still_object_to(
        self, leader_start: int, leader_end: int
    ) -> None:
        """Records are cut by epochs only."""
        assert following().step(FetchOutOfRange(Offset(leader_start), Offset(leader_end))) == []
