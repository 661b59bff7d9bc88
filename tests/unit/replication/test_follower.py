"""The state machine of a follower: events in, effects out (rules 4.2 and 4.8 of docs/explanation/simulation.md)."""

from __future__ import annotations

import pytest

from fairlead_api.identifiers import BrokerEpoch, BrokerId, LeaderEpoch, Offset
from fairlead_broker.replication import (
    AdvanceHighWatermark,
    CopiesAppended,
    CopyDue,
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
    divergence,
    end_before,
)
from fairlead_broker.replication.divergence import BEFORE_ALL
from refusals import raises

EPOCH = LeaderEpoch(5)


def following(
    *,
    end: int = 10,
    synced: int = 10,
    log_start: int = 0,
    high_watermark: int = 0,
    last_epoch: int | None = 4,
) -> PartitionFollower:
    """Return a follower that has just learned its leader."""
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
    """Return an answer without divergence."""
    known = None if high_watermark is None else Offset(high_watermark)
    return follower.step(Fetched(LeaderEpoch(epoch), known, Offset(log_start), nbytes))


def diverged(follower: PartitionFollower, end: int, own_end: int | None) -> list[FollowerEffect]:
    """Return an answer with the end of epoch 3 in the leader's log."""
    own = None if own_end is None else EpochEnd(LeaderEpoch(3), Offset(own_end))
    return follower.step(Diverged(LeaderEpoch(3), Offset(end), own))


class TestFetching:
    """Requests from the follower."""

    def test_says_all_that_the_leader_has_to_know(self) -> None:
        """A fetch contains the incarnation, generation, leader epoch, last epoch and offset of the follower."""
        report = following(end=10, synced=8, log_start=2).next_fetch()

        assert report == FollowerReport(
            BrokerId(2), BrokerEpoch(12), 3, EPOCH, LeaderEpoch(4), Offset(10), Offset(8), Offset(2)
        )

    def test_shows_its_leader_generation_and_log_end(self) -> None:
        """The state machine exposes leader epoch, generation and log end, so that callers recognise late answers."""
        follower = following(end=10)

        assert (follower.leader_epoch, follower.generation) == (EPOCH, 3)
        assert follower.end_offset == 10

        fetched(follower, nbytes=1)
        follower.step(CopiesAppended(Offset(14), EPOCH))

        assert follower.end_offset == 14

    def test_asks_nothing_while_records_are_being_appended(self) -> None:
        """A follower sends no fetch while records are being appended, because the next offset depends on them."""
        follower = following()
        fetched(follower, nbytes=100)

        assert follower.next_fetch() is None

        follower.step(CopiesAppended(Offset(14), EPOCH))
        report = follower.next_fetch()

        assert report is not None
        assert (report.fetch_offset, report.last_epoch) == (14, EPOCH)

    def test_passes_what_the_leader_has_lost_at_its_end(self) -> None:
        """A follower skips lost offsets at the end of the leader's log, so that its log reaches the high watermark."""
        follower = following(end=10)

        lost = (EpochStart(LeaderEpoch(4), Offset(3)),)
        ordered = follower.step(Fetched(EPOCH, Offset(14), Offset(0), 0, Offset(14), lost))

        assert ordered == [AdvanceHighWatermark(Offset(10)), SkipTo(Offset(14), lost)]
        assert follower.reconciled
        assert follower.next_fetch() is None

        follower.step(CopiesAppended(Offset(14), LeaderEpoch(4)))

        assert (follower.end_offset, follower.high_watermark) == (14, 14)

    def test_passes_nothing_that_it_has(self) -> None:
        """A follower keeps records that the leader has lost."""
        follower = following(end=10)

        assert follower.step(Fetched(EPOCH, Offset(0), Offset(0), 0, Offset(10))) == []
        assert follower.next_fetch() is not None

    def test_an_answer_of_another_epoch_is_ignored(self) -> None:
        """An answer to a fetch in a different leader epoch is ignored."""
        follower = following()

        assert fetched(follower, epoch=4, high_watermark=9) == []
        assert not follower.reconciled

    def test_a_log_ahead_of_its_leader_is_not_touched(self) -> None:
        """A log with a higher epoch than its leader's is quarantined and never cut."""
        follower = following(last_epoch=6)

        assert follower.is_ahead
        assert follower.next_fetch() is None
        assert diverged(follower, 3, 3) == []
        assert follower.step(FetchOutOfRange(Offset(20), Offset(30))) == []

    def test_copies_never_take_the_log_back(self) -> None:
        """Copied records never reduce the log end offset, unlike a cut."""
        follower = following()
        fetched(follower, nbytes=1)

        with raises(AssertionError, 10, 9):
            follower.step(CopiesAppended(Offset(9), EPOCH))

    def test_a_log_without_records_parts_from_nothing(self) -> None:
        """A fetch for a log without remaining records has no last epoch, so that the leader does not request a cut."""
        report = following(end=10, log_start=10, last_epoch=4).next_fetch()

        assert report is not None
        assert report.last_epoch is None

    def test_a_log_without_records_says_what_it_deleted(self) -> None:
        """A fetch contains the epoch of the last deleted record only if all records of the log are deleted."""
        emptied = following(end=10, log_start=10, last_epoch=4).next_fetch()
        whole = following(end=10, log_start=9, last_epoch=4).next_fetch()

        assert emptied is not None
        assert emptied.deleted_epoch == 4
        assert whole is not None
        assert whole.deleted_epoch is None


class TestFollowing:
    """High watermark and log start offset follow the leader's."""

    def test_high_watermark_goes_as_far_as_the_own_log(self) -> None:
        """The follower's high watermark is at most its own log end offset."""
        follower = following()

        assert fetched(follower, nbytes=1, high_watermark=12) == [AdvanceHighWatermark(Offset(10))]
        assert follower.step(CopiesAppended(Offset(14), EPOCH)) == [AdvanceHighWatermark(Offset(12))]
        assert follower.high_watermark == 12

    def test_high_watermark_never_goes_back(self) -> None:
        """The follower's high watermark does not fall when a new leader reports a lower high watermark."""
        follower = following(high_watermark=8)

        assert fetched(follower, high_watermark=5) == []
        assert fetched(follower, high_watermark=None) == []
        assert follower.high_watermark == 8

    def test_log_start_follows(self) -> None:
        """The log start offset follows the leader's, even if the leader does not know its high watermark."""
        follower = following(log_start=2)

        assert fetched(follower, log_start=7, high_watermark=None) == [
            AdvanceHighWatermark(Offset(7)),
            MoveLogStart(Offset(7)),
        ]
        assert fetched(follower, log_start=6) == []
        assert follower.log_start == 7


class TestProgress:
    """Reports of synced offsets."""

    def test_reports_what_is_synced(self) -> None:
        """Each rise of the synced offset is reported once."""
        follower = following(end=10, synced=4)
        fetched(follower)

        assert follower.step(FollowerLogSynced(Offset(9))) == [ReportProgress(Offset(9))]
        assert follower.step(FollowerLogSynced(Offset(7))) == []
        assert follower.synced_offset == 9

    def test_says_nothing_before_the_leader_has_agreed_to_the_log(self) -> None:
        """A synced offset is reported by the next fetch if the leader had not yet compared the logs."""
        follower = following(end=10, synced=4)

        assert follower.step(FollowerLogSynced(Offset(10))) == []

        fetched(follower)
        report = follower.next_fetch()

        assert follower.reconciled
        assert report is not None
        assert report.synced_offset == 10

    def test_an_fsync_does_not_count_for_unreported_appends(self) -> None:
        """A sync does not count for records whose append has not been reported yet."""
        follower = following(end=10, synced=4)
        fetched(follower, nbytes=1)

        assert follower.step(FollowerLogSynced(Offset(14))) == [ReportProgress(Offset(10))]


class TestCutting:
    """Logs that diverge from the leader's."""

    @pytest.mark.parametrize(
        ("leader_end", "own_end", "cut_at"), [(7, 9, 7), (9, 7, 7), (20, 15, 10), (8, None, 8)]
    )
    def test_cuts_at_the_least_of_three(self, leader_end: int, own_end: int | None, cut_at: int) -> None:
        """The follower cuts at its log end or at the end of the epoch in either log, whichever is the lowest."""
        follower = following()

        assert diverged(follower, leader_end, own_end) == [TruncateTo(Offset(cut_at))]
        assert follower.next_fetch() is None
        assert not follower.reconciled

        follower.step(Truncated(Offset(cut_at), LeaderEpoch(3)))
        report = follower.next_fetch()

        assert report is not None
        assert (report.fetch_offset, report.last_epoch, report.synced_offset) == (cut_at, 3, cut_at)

    def test_never_cuts_by_the_high_watermark(self) -> None:
        """The follower does not cut at its high watermark, which is one round trip behind the leader's."""
        assert diverged(following(high_watermark=2), 7, 9) == [TruncateTo(Offset(7))]
        assert diverged(following(high_watermark=9), 7, 9) == [TruncateTo(Offset(7))]

    def test_what_is_cut_is_not_committed(self) -> None:
        """A cut below the high watermark, after an unclean election, lowers the high watermark."""
        follower = following(high_watermark=9)
        diverged(follower, 7, 9)
        follower.step(Truncated(Offset(7), LeaderEpoch(3)))

        assert follower.high_watermark == 7

    def test_never_cuts_below_its_log_start(self) -> None:
        """A follower does not cut its log below the log start offset."""
        assert diverged(following(log_start=5), 9, 3) == [TruncateTo(Offset(5))]
        assert following(log_start=5).step(Diverged(BEFORE_ALL, Offset(3), None)) == [TruncateTo(Offset(5))]

    def test_a_divergence_below_the_log_start_copies_the_whole_log_of_the_leader(self) -> None:
        """A log that does not know the epoch of its deleted records lacks no record of its new leader."""
        leader, leader_end = (
            [EpochStart(LeaderEpoch(3), Offset(0)), EpochStart(LeaderEpoch(5), Offset(30))],
            Offset(60),
        )
        follower = following(end=70, log_start=50, last_epoch=4)
        report = follower.next_fetch()
        assert report is not None
        parted = divergence(leader, leader_end, report.last_epoch, report.fetch_offset)
        assert parted is not None
        emptied = follower.step(Diverged(parted.epoch, parted.end_offset, None))
        follower.step(Restarted(Offset(50), LeaderEpoch(3)))
        report = follower.next_fetch()
        assert report is not None
        end = end_before(leader, leader_end, report.deleted_epoch, report.fetch_offset)
        assert end is not None

        assert emptied == [RestartAt(Offset(50), EpochStart(LeaderEpoch(3), Offset(30)))]
        assert follower.step(FetchOutOfRange(Offset(0), end)) == [RestartAt(Offset(0))]

    def test_an_answer_that_comes_while_something_is_ordered_is_ignored(self) -> None:
        """An answer that arrives while a cut or an append runs is ignored."""
        follower = following()
        diverged(follower, 7, 9)

        assert diverged(follower, 5, 9) == []
        assert fetched(follower, high_watermark=5) == []
        assert not follower.reconciled


class TestRestarting:
    """Logs that end before the leader's log start offset."""

    def test_copies_again_where_tombstones_are_missing(self) -> None:
        """A follower that missed removed tombstones restarts at the leader's log start, unless disk work is running."""
        follower = following(end=20)

        assert follower.step(CopyDue(Offset(7))) == [RestartAt(Offset(7))]
        assert follower.step(CopyDue(Offset(7))) == []
        assert following(last_epoch=6).step(CopyDue(Offset(7))) == []

    def test_restarts_where_the_leader_begins(self) -> None:
        """A follower whose next record the leader has deleted restarts at the leader's log start."""
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
        """A restarted log keeps the epoch of the deleted records, and reports it to the next leader."""
        follower = following()
        before = EpochStart(LeaderEpoch(3), Offset(20))

        ordered = follower.step(FetchOutOfRange(Offset(50), Offset(80), before))
        follower.step(Restarted(Offset(50), before.epoch))
        report = follower.next_fetch()

        assert ordered == [RestartAt(Offset(50), before)]
        assert report is not None
        assert (report.last_epoch, report.deleted_epoch) == (None, 3)

    @pytest.mark.parametrize("last_epoch", [None, 4])
    def test_an_empty_log_beyond_the_leader_restarts(self, last_epoch: int | None) -> None:
        """An empty log beyond the leader's end restarts, because the leader has no epoch to compare with."""
        follower = following(end=90, synced=90, log_start=90, last_epoch=last_epoch)

        assert follower.step(FetchOutOfRange(Offset(50), Offset(80))) == [RestartAt(Offset(50))]

    @pytest.mark.parametrize(("leader_start", "leader_end"), [(5, 20), (10, 20), (0, 5)])
    def test_drops_nothing_that_the_leader_could_still_object_to(
        self, leader_start: int, leader_end: int
    ) -> None:
        """A log with records beyond the leader's end is not dropped, because records are cut by epochs only."""
        assert following().step(FetchOutOfRange(Offset(leader_start), Offset(leader_end))) == []
