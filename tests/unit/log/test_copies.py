"""Copies of batches that another replica has stamped, and a log that restarts at a new offset."""

from __future__ import annotations

import pytest

from fairlead_api.configuration import TopicConfig
from fairlead_api.identifiers import LeaderEpoch, Offset
from fairlead_broker.log import BadCopy, DamagedRange, DiskFull, LogCut, StampedBatch
from fairlead_broker.log.leader_epochs import EpochStart
from log_kit import BatchMaker, FaultyStorage, LogBox, begin, read_all, stored
from refusals import raises

SMALL = TopicConfig(segment_bytes=4096, index_interval_bytes=512)


def copies(*batches: StampedBatch) -> memoryview:
    """Return batches as a leader sends them."""
    return memoryview(stored(*batches))


def made_by(epoch: int, offset: int, records: int = 2) -> StampedBatch:
    """Return a batch of a leader epoch."""
    return BatchMaker(leader_epoch=epoch)(offset, records)


class TestAppend:
    """Copies that a follower appends to its log."""

    def test_copies_are_stored_byte_for_byte(self, box: LogBox) -> None:
        """A follower stores copies over many segments, in calls of any size, with exactly the leader's bytes."""
        log = box.open(SMALL)
        batches = [made_by(3, offset) for offset in range(0, 200, 2)]
        log.append_copies(copies(*batches[:1]))
        log.append_copies(copies(*batches[1:70]))
        log.append_copies(copies(*batches[70:]))

        assert log.end_offset == 200
        assert log.segment_count > 1
        assert read_all(log) == stored(*batches)

    def test_epochs_begin_where_the_batches_say(self, box: LogBox) -> None:
        """A log lists each epoch in a call's batches, starting at the epoch's first batch, even after a restart."""
        log = box.open()
        log.append_copies(copies(made_by(1, 0), made_by(1, 2), made_by(4, 4), made_by(5, 6)))
        log.append_copies(copies(made_by(5, 8), made_by(9, 10)))
        expected = (
            EpochStart(LeaderEpoch(1), Offset(0)),
            EpochStart(LeaderEpoch(4), Offset(4)),
            EpochStart(LeaderEpoch(5), Offset(6)),
            EpochStart(LeaderEpoch(9), Offset(10)),
        )
        before = log.leader_epochs
        box.stop()

        assert before == expected
        assert box.open().leader_epochs == expected

    def test_a_gap_between_copies_is_refused(self, box: LogBox) -> None:
        """A call whose batches leave an offset gap is refused and stores no batch, so that no reader misses records."""
        log = box.open()
        with raises(BadCopy, 2):
            log.append_copies(copies(made_by(1, 0), made_by(1, 10)))

        assert (log.end_offset, log.leader_epochs) == (0, ())

    @pytest.mark.parametrize("position", [0, 9, 30, 33, 90, 150])
    def test_a_flipped_bit_keeps_everything_out(self, box: LogBox, position: int) -> None:
        """A log verifies both checksums of every batch before it stores any batch of a call."""
        log = box.open()
        good, bad = made_by(1, 0), bytearray(stored(made_by(1, 2)))
        bad[position] ^= 1
        with pytest.raises(BadCopy):
            log.append_copies(memoryview(stored(good) + bad))

        assert log.end_offset == 0
        assert log.leader_epochs == ()

    def test_half_a_batch_is_refused(self, box: LogBox) -> None:
        """A call that ends inside a batch is refused, and the log stores no batch of that call."""
        log = box.open()
        with pytest.raises(BadCopy):
            log.append_copies(copies(made_by(1, 0), made_by(1, 2))[:-8])

        assert log.end_offset == 0

    def test_offsets_and_epochs_never_go_back(self, box: LogBox) -> None:
        """A batch below the log end, or of an older epoch than the log's last epoch, is refused."""
        log = box.open()
        log.append_copies(copies(made_by(5, 0), made_by(5, 2)))
        for bad in (made_by(5, 2), made_by(5, 3), made_by(4, 4)):
            with pytest.raises(BadCopy):
                log.append_copies(copies(bad))
        with pytest.raises(BadCopy):
            log.append_copies(copies(made_by(6, 4), made_by(5, 6)))

        assert log.end_offset == 4
        assert [start.epoch for start in log.leader_epochs] == [5]

    def test_nothing_newer_than_its_sender_is_stored(self, box: LogBox) -> None:
        """A batch of a newer epoch than its sender's is refused: a deposed leader may send its successor's records."""
        log = box.open()
        log.append_copies(copies(made_by(5, 0)), None, LeaderEpoch(5))
        with raises(BadCopy, 5):
            log.append_copies(copies(made_by(5, 2), made_by(6, 4)), None, LeaderEpoch(5))

        assert log.end_offset == 2
        assert [start.epoch for start in log.leader_epochs] == [5]

    def test_a_full_disk_keeps_whole_batches(self, box: LogBox, faults: FaultyStorage) -> None:
        """A log on a full disk keeps whole batches, and appends the remaining batches once there is space."""
        log = box.open()
        log.append_copies(copies(made_by(1, 0)))
        faults.room_bytes = 100
        with pytest.raises(DiskFull):
            log.append_copies(copies(*(made_by(1, offset) for offset in range(2, 40, 2))))
        faults.room_bytes = None
        log.append_copies(copies(*(made_by(1, offset) for offset in range(log.end_offset, 40, 2))))

        assert read_all(log) == stored(*(made_by(1, offset) for offset in range(0, 40, 2)))

    def test_an_epoch_without_records_does_not_stand_in_the_way(self, box: LogBox) -> None:
        """A leader epoch without records does not prevent a log from appending copies of older epochs."""
        log = box.open()
        log.append_copies(copies(made_by(4, 0)))
        log.begin_epoch(LeaderEpoch(7))
        last = log.last_epoch
        log.append_copies(copies(made_by(4, 2), made_by(6, 4)))

        assert last == 4
        assert [(start.epoch, start.start_offset) for start in log.leader_epochs] == [(4, 0), (6, 4)]
        assert log.last_epoch == 6


class TestRestart:
    """Restarts of a log at the offset where its leader's log begins."""

    @pytest.mark.parametrize("offset", [0, 7, 500, 100_000])
    def test_nothing_of_before_is_left(self, box: LogBox, offset: int) -> None:
        """A restarted log has no old records, epochs or producers and continues at the new offset, even if reopened."""
        log = box.open(SMALL)
        log.append_copies(copies(*(made_by(3, at) for at in range(0, 200, 2))))
        log.sync()
        log.restart_at(Offset(offset))
        log.append_copies(copies(made_by(2, offset)))
        box.stop()
        log = box.open(SMALL)

        assert (log.log_start_offset, log.end_offset) == (offset, offset + 2)
        assert log.leader_epochs == (EpochStart(LeaderEpoch(2), Offset(offset)),)
        assert read_all(log) == stored(made_by(2, offset))
        assert not log.recovery_report.damaged

    @pytest.mark.parametrize("offset", [7, 500])
    def test_it_is_durable(self, box: LogBox, offset: int) -> None:
        """A log that is killed right after a restart is empty and begins at the new offset."""
        log = box.open(SMALL)
        log.append_copies(copies(*(made_by(3, at) for at in range(0, 200, 2))))
        log.sync()
        log.restart_at(Offset(offset))
        box.kill()
        log = box.open(SMALL)

        assert (log.log_start_offset, log.end_offset, log.leader_epochs) == (offset, offset, ())
        assert not log.damaged

    def test_a_start_amid_a_batch_takes_the_whole_batch(self, box: LogBox) -> None:
        """A log that restarts inside a batch stores the whole batch, but its readers begin at the restart's offset."""
        log = box.open()
        log.restart_at(Offset(13))
        log.append_copies(copies(made_by(2, 10, records=6), made_by(2, 16)))
        starts = (log.log_start_offset, log.end_offset, log.synced_offset)
        box.stop()
        log = box.open()

        assert starts == (13, 18, 18)
        assert (log.log_start_offset, log.end_offset) == (13, 18)
        assert log.read(Offset(13), 1 << 20, Offset(18)).data == stored(
            made_by(2, 10, records=6), made_by(2, 16)
        )

    @pytest.mark.parametrize("has_crashed", [False, True])
    def test_a_merged_batch_may_begin_below_the_log_start(self, box: LogBox, has_crashed: bool) -> None:
        """A log that ends inside a merged batch takes it if records may be dropped, and keeps its log start."""
        log = box.open(SMALL)
        log.append_copies(copies(*(made_by(1, at) for at in range(0, 60, 2)), made_by(2, 60, records=60)))
        log.sync()
        log.checkpoint_high_watermark = log.end_offset
        log.delete_to(Offset(100))
        merged = copies(made_by(2, 90, records=61), made_by(2, 151))
        with pytest.raises(BadCopy):
            log.append_copies(merged)
        kept = (log.log_start_offset, log.end_offset)
        log.append_copies(merged, Offset(120), may_cut=True)
        if has_crashed:
            box.opened.write_checkpoint()
            box.kill()
            log = box.open(SMALL)

        assert kept == (100, 120)
        assert (log.log_start_offset, log.synced_offset, log.end_offset) == (100, 153, 153)
        assert (log.checkpoint_high_watermark, log.deleted_to) == (100, 100)
        assert log.read(Offset(100), 1 << 20, Offset(153)).data == merged
        assert log.last_epoch == 2
        assert not log.damaged

    def test_a_sync_under_way_does_not_count(self, box: LogBox) -> None:
        """A sync point from before a restart marks no offset of the restarted log as synced."""
        log = box.open()
        log.append_copies(copies(*(made_by(3, at) for at in range(0, 20, 2))))
        point = log.sync_point()
        log.restart_at(Offset(0))
        log.append_copies(copies(made_by(4, 0)))

        assert point is not None
        assert log.mark_synced(point) == 0


class TestTruncate:
    """Truncation of a log where it diverges from another replica's log."""

    def test_an_epoch_without_records_goes_at_the_end(self, box: LogBox) -> None:
        """A truncation at the log end drops an epoch without records, so that the log agrees with its leader's log."""
        log = box.open()
        log.append_copies(copies(made_by(1, 0), made_by(2, 2)))
        log.begin_epoch(LeaderEpoch(3))
        end = log.truncate_to(Offset(4))
        epochs = [start.epoch for start in log.leader_epochs]
        further = log.truncate_to(Offset(9))

        assert (end, further, epochs) == (4, 4, [1, 2])
        assert [start.epoch for start in log.leader_epochs] == [1, 2]

    @pytest.mark.parametrize("at", [28, 60])
    def test_damage_is_cut_off(self, box: LogBox, at: int) -> None:
        """A log is truncated right before an unreadable batch, and the range of that batch is no longer damaged."""
        log = box.open()
        batches = [made_by(1, offset) for offset in range(0, 20, 2)]
        log.append_copies(copies(*batches))
        log.sync()
        [path] = box.log_files()
        content = bytearray(path.read_bytes())
        content[5 * batches[0].nbytes + at] ^= 1
        path.write_bytes(content)
        log.note_damage([DamagedRange(Offset(10), Offset(12))])
        end = log.truncate_to(Offset(10))
        log.append_copies(copies(*batches[5:]))

        assert end == 10
        assert log.damaged == ()
        assert read_all(log) == stored(*batches)


@pytest.mark.parametrize("bit", [8 * 8 + 7, 8 * 9 + 1, 8 * 1, 8 * 41, 8 * 200])
def test_a_damaged_first_batch_is_a_bad_copy(box: LogBox, make: BatchMaker, bit: int) -> None:
    """An empty log refuses a damaged first batch as a bad copy and keeps its log start."""
    log = box.open()
    log.restart_at(Offset(258))
    data = bytearray(stored(make(0, 3, 500)))
    data[bit // 8] ^= 1 << bit % 8
    for damaged in (bytes(data), bytes(176), bytes(40)):
        with pytest.raises(BadCopy):
            log.append_copies(memoryview(damaged))

        assert (log.log_start_offset, log.end_offset) == (258, 258)


def test_a_full_disk_does_not_hide_that_removed_tombstones_must_be_lowered(
    box: LogBox, faults: FaultyStorage
) -> None:
    """If the lowered offset of removed tombstones finds no space, the next attempt makes it durable."""
    log = box.open(SMALL)
    log.append_copies(copies(made_by(1, 0), made_by(1, 2)))
    log.take_removed(Offset(4))
    before = log.cleaning
    faults.room_bytes, faults.full_suffixes = 0, {".tmp"}
    with pytest.raises(DiskFull):
        log.lower_removed(Offset(2))
    failed = log.cleaning
    faults.room_bytes = None
    log.lower_removed(Offset(2))
    box.kill()
    log = box.open(SMALL)

    assert failed == before
    assert (before.removed, before.lacks_below) == (4, 4)
    assert (log.cleaning.removed, log.cleaning.lacks_below) == (2, 2)


def test_a_full_disk_leaves_a_log_unchanged_that_should_restart(
    box: LogBox, faults: FaultyStorage, make: BatchMaker
) -> None:
    """A log whose restart finds no space for the checkpoint keeps its records, synced offset, epochs and damage."""
    log = box.open(SMALL)
    begin(log)
    batches = make.fill(log, 20)
    log.sync()
    log.checkpoint_high_watermark = log.end_offset
    log.note_damage([DamagedRange(Offset(4), Offset(6))])
    faults.room_bytes, faults.full_suffixes = 0, {".tmp"}

    with pytest.raises(DiskFull):
        log.restart_at(Offset(100))
    assert (log.log_start_offset, log.synced_offset, log.end_offset) == (0, 40, 40)
    assert (log.checkpoint_high_watermark, log.last_epoch) == (40, 1)
    assert log.damaged == (DamagedRange(Offset(4), Offset(6)),)
    assert log.read(Offset(6), 1 << 20, log.end_offset).data[:36] == batches[3].stamp
    with pytest.raises(LogCut):
        log.append_copies(copies(made_by(1, 0)), Offset(0))
    faults.room_bytes = None
    log.restart_at(Offset(100))
    assert (log.log_start_offset, log.end_offset) == (100, 100)
