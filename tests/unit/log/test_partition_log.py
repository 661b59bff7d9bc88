"""The log of a partition: appends, reads, rolls, syncs, truncation."""

from __future__ import annotations

import errno
from dataclasses import replace
from pathlib import Path

import pytest

from fairlead_api.configuration import Durability, TopicConfig
from fairlead_api.identifiers import LeaderEpoch, Offset, TimestampUs
from fairlead_broker.log import (
    DiskFull,
    EpochEnd,
    LogClosed,
    OffsetOutOfRange,
    StaleLeaderEpoch,
    StorageFailed,
)
from log_kit import FIRST_TIME_US, BatchMaker, FaultyStorage, LogBox, begin, read_all, stored
from refusals import raises

SMALL = TopicConfig(segment_bytes=4096, index_interval_bytes=512)
EVERY_DURABILITY = pytest.mark.parametrize("durability", list(Durability))


def test_a_new_log_is_empty(box: LogBox) -> None:
    """The log of a new partition begins at offset 0 with one empty segment."""
    log = box.open()

    assert (log.log_start_offset, log.synced_offset, log.end_offset) == (0, 0, 0)
    assert (log.size_bytes, log.segment_count) == (0, 1)
    assert log.read(Offset(0), 100, Offset(0)).data == b""


def test_what_was_appended_is_read_byte_for_byte(box: LogBox, make: BatchMaker) -> None:
    """A read of any size returns stamps and contents of batches as they are stored."""
    log = box.open()
    batches = make.fill(log, 50, records=3)

    assert log.end_offset == 150
    for bytes_max in (1, 700, 5000, 1 << 20):
        assert read_all(log, bytes_max) == stored(*batches)


def test_a_group_is_appended_in_one_call(box: LogBox, make: BatchMaker) -> None:
    """A group of batches that exceeds one vectored write (1,024 buffers) is appended completely and in order."""
    log = box.open()
    group = [make(offset) for offset in range(1500)]
    log.append(group)

    assert log.end_offset == 1500
    assert read_all(log) == stored(*group)


def test_reads_end_before_the_limit(box: LogBox, make: BatchMaker) -> None:
    """A read returns no batch that reaches the offset limit, even if it is the first batch."""
    log = box.open()
    batches = make.fill(log, 10, records=3)

    assert log.read(Offset(0), 1 << 20, Offset(7)).data == stored(*batches[:2])
    assert log.read(Offset(0), 1 << 20, Offset(9)).next_offset == 9
    nothing = log.read(Offset(0), 1 << 20, Offset(2))
    assert (nothing.data, nothing.next_offset) == (b"", 0)


def test_a_read_begins_with_the_batch_that_holds_the_offset(box: LogBox, make: BatchMaker) -> None:
    """A read begins with the batch that contains the offset, whole even if the batch exceeds `bytes_max`."""
    log = box.open(SMALL)
    batches = make.fill(log, 60, records=3)

    for offset in range(log.end_offset):
        assert log.read(Offset(offset), 1, log.end_offset).data == stored(batches[offset // 3])


def test_bytes_max_holds_back_later_batches(box: LogBox, make: BatchMaker) -> None:
    """A read returns batches after the first batch only if they fit whole into `bytes_max`."""
    log = box.open()
    batches = make.fill(log, 30)
    nbytes = batches[0].nbytes

    assert log.read(Offset(0), 3 * nbytes, log.end_offset).data == stored(*batches[:3])
    assert log.read(Offset(0), 4 * nbytes - 1, log.end_offset).data == stored(*batches[:3])
    assert log.read(Offset(10), 2 * nbytes, log.end_offset).data == stored(*batches[5:7])


def test_a_batch_larger_than_asked_for_is_read_whole(box: LogBox, make: BatchMaker) -> None:
    """A batch of 3 MB is returned whole to a reader that requests one byte, even after small batches."""
    log = box.open()
    batches = [*make.fill(log, 3), *make.fill(log, 1, 1, 3_000_000), *make.fill(log, 3)]

    assert log.read(Offset(6), 1, log.end_offset).data == stored(batches[3])
    assert log.read_cached(Offset(6), 1, log.end_offset) is None
    assert read_all(log, 1) == stored(*batches)


@pytest.mark.parametrize("offset", [-1, 21, 1000])
def test_offsets_outside_are_refused(box: LogBox, make: BatchMaker, offset: int) -> None:
    """A read below the log start or above the log end is refused, and the error contains both offsets."""
    log = box.open()
    make.fill(log, 10)

    with raises(OffsetOutOfRange, 0, 20) as refused:
        log.read(Offset(offset), 100, log.end_offset)
    assert (refused.value.log_start, refused.value.end) == (0, 20)


@EVERY_DURABILITY
def test_segments_roll_by_bytes(box: LogBox, make: BatchMaker, durability: Durability) -> None:
    """Segments never exceed `segment.bytes`, no batch is split between segments, and reads cross all segments."""
    log = box.open(replace(SMALL, durability=durability))
    batches = make.fill(log, 100, records=2)

    assert log.segment_count == len(box.log_files()) > 5
    assert all(file.stat().st_size <= 4096 for file in box.log_files())
    assert b"".join(file.read_bytes() for file in box.log_files()) == stored(*batches)
    assert log.size_bytes == len(stored(*batches))
    assert read_all(log) == stored(*batches)


def test_a_batch_larger_than_a_segment_has_one_to_itself(box: LogBox, make: BatchMaker) -> None:
    """A batch larger than `segment.bytes` gets a separate segment."""
    log = box.open(SMALL)
    batches = [*make.fill(log, 1), *make.fill(log, 1, 1, 9000), *make.fill(log, 1)]

    assert [file.read_bytes() for file in box.log_files()] == [stored(batch) for batch in batches]


def test_one_group_may_fill_several_segments(box: LogBox, make: BatchMaker) -> None:
    """A group of batches that is larger than a segment is split only between batches."""
    log = box.open(SMALL)
    group = [make(offset) for offset in range(40)]
    log.append(group)

    assert log.segment_count > 3
    assert read_all(log) == stored(*group)


def test_a_segment_rolls_by_age_of_its_first_batch(box: LogBox, make: BatchMaker) -> None:
    """A segment rolls `segment.ms` after its first batch's append time, on append or when idle, even after restarts."""
    log = box.open(TopicConfig(segment_ms=1000))
    make.fill(log, 1)
    make.append_time_us = FIRST_TIME_US + 999_999
    make.fill(log, 1)
    box.stop()
    log = box.open()
    first = log.segment_count
    make.append_time_us = FIRST_TIME_US + 1_000_000
    make.fill(log, 1)

    assert (first, log.segment_count) == (1, 2)
    assert not log.roll_if_due(TimestampUs(FIRST_TIME_US + 1_999_999))
    assert log.roll_if_due(TimestampUs(FIRST_TIME_US + 2_000_000))
    assert log.segment_count == 3
    assert not log.roll_if_due(TimestampUs(FIRST_TIME_US * 2)), "an empty segment has no age"


def test_a_first_batch_from_the_future_does_not_keep_its_segment(box: LogBox, make: BatchMaker) -> None:
    """If a segment's first batch has a time in the future, the segment's age is counted from the first check."""
    log = box.open(TopicConfig(segment_ms=1000))
    make.append_time_us = FIRST_TIME_US * 2
    make.fill(log, 1)
    now_us = FIRST_TIME_US + 5_000_000

    assert not log.roll_if_due(TimestampUs(now_us))
    assert not log.roll_if_due(TimestampUs(now_us + 999_999))
    assert log.roll_if_due(TimestampUs(now_us + 1_000_000))


def test_large_batches_do_not_write_the_index_one_by_one(box: LogBox, make: BatchMaker) -> None:
    """Index entries of batches of 1 MiB are written sixteen at a time, entries of small batches every 1 MiB of log."""
    index = box.folder / "00000000000000000000.index"
    log = box.open()
    make.fill(log, 16, 1, 1 << 20)
    assert not index.exists()
    make.fill(log, 1, 1, 1 << 20)
    assert index.stat().st_size == 16 + 16 * 16
    make.fill(log, 15, 1, 1 << 20)
    assert index.stat().st_size == 16 + 16 * 16


def test_a_full_index_rolls_the_segment(box: LogBox, make: BatchMaker) -> None:
    """A batch whose entry does not fit into `segment.index.bytes` begins a new segment."""
    log = box.open(TopicConfig(index_interval_bytes=0, segment_index_bytes=16 + 3 * 16))
    make.fill(log, 9)

    assert [int(file.stem) for file in box.log_files()] == [0, 8, 16]
    assert (box.folder / "00000000000000000000.index").stat().st_size == 16 + 3 * 16


def test_a_changed_configuration_holds_from_the_next_batch(box: LogBox, make: BatchMaker) -> None:
    """A smaller `segment.bytes` closes the segment at the next append."""
    log = box.open()
    make.fill(log, 5)
    log.update_config(SMALL)
    make.fill(log, 5, 1, 4000)

    assert log.segment_count == 6


def test_sync_moves_the_synced_offset(box: LogBox, make: BatchMaker) -> None:
    """The synced offset advances to the log end at a sync, and does not move without a sync."""
    log = box.open(replace(SMALL, durability=Durability.REPLICATED))
    make.fill(log, 40)
    before = log.synced_offset
    after = log.sync()
    make.fill(log, 1)

    assert (before, after, log.synced_offset, log.end_offset) == (0, 80, 80, 82)


def test_a_roll_syncs_the_old_segment_only_where_syncing_counts(
    box: LogBox, make: BatchMaker, faults: FaultyStorage
) -> None:
    """With `synced` durability a roll syncs the old segment's file, and with `replicated` a later sync syncs it."""
    first = f"{0:020d}.log"
    log = box.open(replace(SMALL, durability=Durability.REPLICATED))
    faults.syncs.clear()
    make.fill(log, 20)
    unsynced = [path.name for path in faults.syncs]
    log.sync()
    synced = [path.name for path in faults.syncs]
    log.update_config(SMALL)
    make.fill(log, 20)

    assert first not in unsynced
    assert first in synced
    assert all(not segment.unsynced_files for segment in log._segments[:3])
    assert faults.syncs[-1].name in {file.name for file in box.folder.iterdir()}
    assert log.synced_offset == 40, "a roll does not publish what a sync has to"


def test_sync_covers_files_closed_since_the_last_one(
    box: LogBox, make: BatchMaker, faults: FaultyStorage
) -> None:
    """A sync writes out every batch file with unsynced batches, and the index files of closed segments."""
    log = box.open(replace(SMALL, durability=Durability.REPLICATED))
    make.fill(log, 40)
    faults.syncs.clear()
    log.sync()
    logs = [path for path in faults.syncs if path.suffix == ".log"]
    indexes = [path for path in faults.syncs if path.suffix == ".index"]

    assert sorted(logs) == box.log_files()
    assert len(indexes) == len(logs) - 1
    faults.syncs.clear()
    log.sync()
    assert faults.syncs == []


def test_the_first_failed_sync_ends_writing_for_good(
    box: LogBox, make: BatchMaker, faults: FaultyStorage
) -> None:
    """A log whose sync failed is not synced, appended or checkpointed again, even after the disk recovers."""
    log = box.open()
    make.fill(log, 5)
    faults.sync_error = errno.EIO
    with pytest.raises(StorageFailed):
        log.sync()
    faults.sync_error = 0
    syncs = len(faults.syncs)

    with pytest.raises(StorageFailed):
        log.sync()
    with pytest.raises(StorageFailed):
        log.append([make(10)])
    with pytest.raises(StorageFailed):
        box.opened.write_checkpoint()
    assert len(faults.syncs) == syncs, "a failed sync was retried"
    assert log.synced_offset == 0
    assert isinstance(box.opened.failure, StorageFailed)
    assert log.read(Offset(0), 1, log.end_offset).next_offset == 2, "reads continue"


def test_a_failed_write_ends_writing_for_good(box: LogBox, make: BatchMaker, faults: FaultyStorage) -> None:
    """After a write error other than a full disk, no batch is stored, and the log refuses every later append."""
    log = box.open()
    batches = make.fill(log, 5)
    faults.write_error, faults.room_bytes = errno.EIO, 100
    with pytest.raises(StorageFailed):
        log.append([make(10)])
    faults.room_bytes = None

    with pytest.raises(StorageFailed):
        log.append([make(10)])
    assert log.end_offset == 10
    assert read_all(log) == stored(*batches)


@EVERY_DURABILITY
def test_a_full_disk_keeps_nothing_and_passes(
    box: LogBox, make: BatchMaker, faults: FaultyStorage, durability: Durability
) -> None:
    """A group of batches for which a disk lacks space leaves no byte in the log, and the same append succeeds later."""
    log = box.open(TopicConfig(segment_bytes=2000, index_interval_bytes=0, durability=durability))
    batches = make.fill(log, 2)
    group = [make(4 + 2 * index, 2) for index in range(8)]
    nbytes = len(stored(*group))
    for room in [*range(0, nbytes, 97), nbytes - 1]:
        before = [(file.name, file.read_bytes()) for file in box.log_files()]
        faults.room_bytes = room
        with pytest.raises(DiskFull):
            log.append(group)
        faults.room_bytes = None

        assert [(file.name, file.read_bytes()) for file in box.log_files()] == before
        assert (log.end_offset, log.segment_count) == (4, 1)
        assert read_all(log) == stored(*batches)
    log.append(group)
    log.sync()
    assert read_all(log) == stored(*batches, *group)
    box.stop()
    assert read_all(box.open()) == stored(*batches, *group)


def test_epochs_begin_durably_and_only_rise(box: LogBox, make: BatchMaker, faults: FaultyStorage) -> None:
    """A leader epoch is durable before `begin_epoch` returns, and an epoch that is not above all others is refused."""
    log = box.open()
    begin(log, 3)
    synced = faults.syncs[-1].name
    make.fill(log, 2)
    begin(log, 7)

    assert synced == "leader-epochs"
    with raises(StaleLeaderEpoch, 7):
        begin(log, 7)
    box.kill()
    log = box.open()
    assert [(entry.epoch, entry.start_offset) for entry in log.leader_epochs] == [(3, 0), (7, 4)]
    assert log.end_offset_for_epoch(LeaderEpoch(3)) == EpochEnd(LeaderEpoch(3), Offset(4))
    assert log.end_offset_for_epoch(LeaderEpoch(7)) == EpochEnd(LeaderEpoch(7), log.end_offset)


@pytest.mark.parametrize("stop_first", [True, False])
def test_truncation_drops_batches_and_epochs(box: LogBox, make: BatchMaker, stop_first: bool) -> None:
    """A truncation at any offset durably drops later batches and epochs, and appends continue at the new end."""
    batches = []
    log = box.open(TopicConfig(segment_bytes=2000, index_interval_bytes=300))
    for make.leader_epoch in range(1, 6):
        begin(log, make.leader_epoch)
        batches += make.fill(log, 5, records=3)
    for offset in range(74, 0, -7):
        end = log.truncate_to(Offset(offset))
        kept = [batch for batch in batches if batch.last_offset < offset]

        assert end == log.end_offset == (kept[-1].last_offset + 1 if kept else 0)
        assert log.synced_offset <= end
        assert read_all(log) == stored(*kept)
        assert [entry.start_offset for entry in log.leader_epochs] == [s for s in range(0, 75, 15) if s < end]
        make.leader_epoch = log.last_epoch or 1
        batches = kept + make.fill(log, 1, records=3)
        assert read_all(log) == stored(*batches)
        log.sync()
        if stop_first:
            box.stop()
        else:
            box.opened.write_checkpoint()
            box.kill()
        log = box.open()
        assert read_all(log) == stored(*batches)


def test_truncation_to_the_end_changes_nothing(box: LogBox, make: BatchMaker) -> None:
    """A truncation at or above the log end changes nothing."""
    log = box.open()
    batches = make.fill(log, 3)

    assert log.truncate_to(Offset(99)) == 6
    assert read_all(log) == stored(*batches)


def test_a_sync_that_a_truncation_overtook_claims_nothing(box: LogBox, make: BatchMaker) -> None:
    """A sync that a truncation overtakes marks no rewritten offset as synced."""
    log = box.open()
    make.fill(log, 5)
    point = log.sync_point()
    assert point is not None
    log.truncate_to(Offset(4))
    make.fill(log, 5)

    assert log.mark_synced(point) == log.synced_offset == 0


def test_the_log_start_moves_before_segments_go(box: LogBox, make: BatchMaker) -> None:
    """A new log start removes the segments below it, and reads below it are refused, even after a restart."""
    log = box.open(SMALL)
    batches = make.fill(log, 60)
    log.sync()
    log.checkpoint_high_watermark = Offset(100)
    with pytest.raises(OffsetOutOfRange):
        log.advance_log_start(Offset(101))
    log.advance_log_start(Offset(61))
    box.kill()
    assert min(int(file.stem) for file in box.log_files()) > 30
    log = box.open()

    assert log.log_start_offset == 61
    assert log.checkpoint_high_watermark == 100
    with pytest.raises(OffsetOutOfRange):
        log.read(Offset(60), 1, log.end_offset)
    assert read_all(log) == stored(*batches[30:])


def test_leader_epochs_go_with_the_records(box: LogBox, make: BatchMaker) -> None:
    """A new log start drops older leader epochs, except the last epoch that starts at or below the log start."""
    log = box.open(SMALL)
    for epoch in range(1, 7):
        log.begin_epoch(LeaderEpoch(epoch))
        make.fill(log, 10)
    log.sync()
    log.checkpoint_high_watermark = log.end_offset
    gone = log.advance_log_start(Offset(61))
    box.kill()
    log = box.open()

    assert [entry.epoch for entry in log.leader_epochs] == [4, 5, 6]
    assert [segment.next_offset <= 61 for segment in gone] == [True] * len(gone) != []


def test_the_growing_segment_is_never_removed(box: LogBox, make: BatchMaker) -> None:
    """A log whose start offset equals its end offset keeps its last segment file, and assigns no offset twice."""
    log = box.open()
    make.fill(log, 5)
    log.checkpoint_high_watermark = log.end_offset
    log.advance_log_start(log.end_offset)
    box.kill()
    log = box.open()

    assert (log.log_start_offset, log.end_offset, log.segment_count) == (10, 10, 1)


def test_a_closed_log_refuses_everything(box: LogBox, make: BatchMaker) -> None:
    """A closed log refuses appends and reads with `LogClosed`."""
    log = box.open()
    make.fill(log, 2)
    log.close()
    log.close()

    with pytest.raises(LogClosed):
        log.append([make(4)])
    with pytest.raises(LogClosed):
        log.read(Offset(0), 1, Offset(4))


def test_a_lost_index_is_made_again(box: LogBox, make: BatchMaker) -> None:
    """An index file that is missing, empty, foreign or damaged is rebuilt from the batch headers and written."""
    log = box.open(SMALL)
    batches = make.fill(log, 30)
    log.sync()
    box.stop()
    names = sorted(path for path in box.folder.iterdir() if path.suffix in {".index", ".timeindex"})
    good = {path: path.read_bytes() for path in names}
    harm: tuple[tuple[str, bytes], ...] = (("empty", b""), ("garbage", b"x" * 200))
    for path in names[:-2]:
        for _, data in harm:
            path.write_bytes(data)
            log = box.open()
            assert read_all(log, 600) == stored(*batches)
            box.stop()
        path.unlink()
        log = box.open()
        assert read_all(log, 600) == stored(*batches)
        box.stop()

    # Rebuilt indexes of closed segments have an entry every 4 KiB, regardless of the topic's interval, so only the ends
    # of old and rebuilt indexes must agree.
    for path, data in good.items():
        if path.suffix == ".timeindex" and path in names[:-2]:
            assert path.read_bytes()[-24:] == data[-24:]


def test_an_index_that_belongs_to_another_log_is_found_out(box: LogBox, make: BatchMaker) -> None:
    """An index of another log, whose valid entries point to wrong places, is detected by a read and rebuilt."""
    config = TopicConfig(segment_bytes=6000, index_interval_bytes=0)
    log = box.open(config)
    batches = []
    for _ in range(20):
        batches += [*make.fill(log, 1, 1, 10), *make.fill(log, 1, 1, 300)]
    box.stop()
    other = LogBox(box.path.parent / "other")
    log = other.open(config)
    for _ in range(20):
        make.fill(log, 1, 1, 300), make.fill(log, 1, 1, 10)
    other.stop()
    first = Path(f"{0:020d}")
    for suffix in (".index", ".timeindex"):
        assert (other.folder / first.with_suffix(suffix)).stat().st_size > 50
        (box.folder / first.with_suffix(suffix)).write_bytes(
            (other.folder / first.with_suffix(suffix)).read_bytes()
        )
    log = box.open()

    for offset in range(log.end_offset):
        assert log.read(Offset(offset), 1, log.end_offset).data == stored(batches[offset])
