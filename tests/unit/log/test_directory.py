"""The data directory: identity, lock, clean marker, checkpoint, deletion, stray folders.

The tests share one file because all of them open, kill and reopen one directory.
"""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from fairlead_api.configuration import TopicConfig
from fairlead_api.identifiers import BrokerEpoch, Offset, PartitionIndex
from fairlead_broker.log import (
    DirectoryLocked,
    DiskFull,
    Identity,
    IdentityMismatch,
    LogDirectory,
    StorageFailed,
)
from fairlead_broker.log.documents import Checkpoint, CorruptDocument, PartitionCheckpoint, write_document
from fairlead_broker.log.segments.storage import PosixStorage
from fairlead_broker.producers import ProducerState, Snapshot, encode_snapshot
from log_kit import (
    CLUSTER,
    DIRECTORY,
    FIRST_TIME_US,
    OTHER_TOPIC,
    PARTITION,
    TOPIC,
    BatchMaker,
    FaultyStorage,
    LogBox,
    SteppingClock,
    begin,
    read_all,
    stored,
)
from refusals import raises


def open_directory(
    path: Path, cluster_id: str | None = CLUSTER, broker_id: int = 1, residence: str | None = None
) -> LogDirectory:
    """Open a data directory as a broker of a cluster."""
    return LogDirectory.open(
        path,
        cluster_id=cluster_id,
        broker_id=broker_id,
        clock=SteppingClock(),
        new_directory_id=DIRECTORY,
        residence=residence,
    )


def test_a_new_directory_gets_an_identity(tmp_path: Path) -> None:
    """The first opening of a data directory writes its cluster, broker and directory ids, which later openings find."""
    directory = open_directory(tmp_path / "data")
    expected = Identity(cluster_id=CLUSTER, broker_id=1, directory_id=DIRECTORY)

    assert directory.identity == expected
    assert not directory.was_clean
    directory.close(True)
    again = LogDirectory.open(
        tmp_path / "data", cluster_id=None, broker_id=1, clock=SteppingClock(), new_directory_id="unused"
    )
    assert again.identity == expected
    assert again.was_clean
    again.close(False)


def test_a_file_is_no_data_directory(tmp_path: Path) -> None:
    """A file in place of the data directory is refused, and the error says that the path is a file."""
    (tmp_path / "data").touch()
    with raises(StorageFailed, "data"):
        open_directory(tmp_path / "data")


def test_a_new_directory_may_wait_for_its_cluster(tmp_path: Path) -> None:
    """A new data directory without a cluster id is only locked, and its partitions open once a cluster adopts it."""
    directory = open_directory(tmp_path, cluster_id=None)

    assert directory.cluster_id is None
    with raises(AssertionError, "adopt_cluster"):
        directory.open_partition(TOPIC, PARTITION, TopicConfig())
    assert directory.adopt_cluster(CLUSTER).cluster_id == CLUSTER
    assert directory.open_partition(TOPIC, PARTITION, TopicConfig()).end_offset == 0
    directory.close(True)


def test_a_start_that_is_killed_early_leaves_word_of_where_the_bytes_are(tmp_path: Path) -> None:
    """Without a clean marker, the residence (volume and boot) of the first start after the last clean stop is kept."""

    def residence_after(here: str, *, clean: bool) -> str | None:
        directory = open_directory(tmp_path, residence=here)
        found = directory.identity.residence
        directory.close(clean)
        return found

    open_directory(tmp_path).close(True)
    after_a_clean_stop = residence_after("this boot", clean=False)
    after_a_kill = residence_after("the next boot", clean=False)

    assert after_a_clean_stop == "this boot"
    assert after_a_kill == "this boot"


def test_the_directory_of_another_cluster_is_refused(tmp_path: Path) -> None:
    """A data directory of another cluster stays unchanged and unlocked, and its refusal names the next step."""
    open_directory(tmp_path).close(True)
    with pytest.raises(IdentityMismatch):
        open_directory(tmp_path, cluster_id="another")
    directory = open_directory(tmp_path)

    assert directory.was_clean
    with pytest.raises(IdentityMismatch):
        directory.adopt_cluster("another")
    assert directory.identity.cluster_id == CLUSTER
    directory.close(False)


def test_the_directory_of_another_broker_is_refused(tmp_path: Path) -> None:
    """A data directory that belongs to a different broker id is refused."""
    open_directory(tmp_path).close(True)

    with raises(IdentityMismatch, 1, 2):
        open_directory(tmp_path, broker_id=2)


def test_a_corrupt_identity_is_refused(tmp_path: Path) -> None:
    """A data directory with a corrupt identity file is refused and not locked, because its broker cannot be guessed."""
    open_directory(tmp_path).close(True)
    path = tmp_path / ".fairlead" / "identity"
    intact = path.read_bytes()
    path.write_bytes(intact.replace(b'"broker_id":1', b'"broker_id":2'))

    with raises(CorruptDocument, "checksum") as refused:
        open_directory(tmp_path, broker_id=2)
    path.write_bytes(intact)
    # The traceback of an error keeps the objects of a failed start alive.
    assert refused.tb is not None
    open_directory(tmp_path).close(True)


def test_a_second_process_is_refused_by_the_pid_of_the_first(tmp_path: Path) -> None:
    """A locked data directory is refused with the pid of its process, and is free once that process has closed it."""
    directory = open_directory(tmp_path)
    with raises(DirectoryLocked, os.getpid()):
        open_directory(tmp_path)
    program = (
        "import sys; sys.path.insert(0, sys.argv[1]); import pathlib, log_kit;"
        "log_kit.LogBox(pathlib.Path(sys.argv[2])).open_directory()"
    )
    kit = str(Path(sys.modules["log_kit"].__file__ or "").parent)
    arguments = [sys.executable, "-c", program, kit, str(tmp_path)]
    refused = subprocess.run(arguments, capture_output=True, text=True, check=False)
    directory.close(False)
    allowed = subprocess.run(arguments, capture_output=True, text=True, check=False)

    assert refused.returncode != 0
    assert f"pid {os.getpid()}" in refused.stderr
    assert (allowed.returncode, allowed.stderr) == (0, "")


def test_the_broker_epoch_is_durable_at_once(box: LogBox, faults: FaultyStorage) -> None:
    """The last broker epoch is synced and renamed into place before the call returns."""
    directory = box.open_directory()
    directory.set_broker_epoch(BrokerEpoch(41))

    assert faults.syncs[-1].name == "identity.tmp"
    box.kill()
    assert box.open_directory().identity.last_broker_epoch == 41


def test_the_clean_marker_holds_for_one_start(box: LogBox, make: BatchMaker) -> None:
    """The clean marker is removed by the start that finds it, so a kill right after that start is not a clean stop."""
    make.fill(box.open(), 3)
    box.stop()

    assert box.open_directory().was_clean
    assert not (box.path / ".fairlead" / "clean").exists()
    box.kill()
    assert not box.open_directory().was_clean


def test_a_stop_without_order_leaves_no_marker(box: LogBox, make: BatchMaker) -> None:
    """A data directory that is closed with `close(False)` has neither synced logs nor a clean marker."""
    log = box.open()
    make.fill(log, 3)
    box.opened.close(False)
    log = box.open()

    assert not box.opened.was_clean
    assert (log.synced_offset, log.end_offset) == (0, 6)


def test_the_high_watermark_is_kept(box: LogBox, make: BatchMaker) -> None:
    """A log opens with the high watermark of the last checkpoint, bounded by its log start and log end."""
    log = box.open()
    make.fill(log, 10)
    log.checkpoint_high_watermark = Offset(14)
    box.opened.write_checkpoint()
    log.checkpoint_high_watermark = Offset(20)
    box.kill()
    log = box.open()

    assert log.checkpoint_high_watermark == 14
    box.opened.write_checkpoint()
    box.kill()
    first = box.log_files()[0]
    first.write_bytes(first.read_bytes()[: first.stat().st_size // 2])
    log = box.open()
    assert log.checkpoint_high_watermark == log.end_offset == 10


@pytest.mark.parametrize("harm", ["flipped", "short", "gone", "foreign"])
def test_without_a_checkpoint_everything_is_read(box: LogBox, make: BatchMaker, harm: str) -> None:
    """A start with an unusable checkpoint scans the whole log and loses no record, even after a clean stop."""
    log = box.open(TopicConfig(segment_bytes=4096))
    batches = make.fill(log, 50)
    log.checkpoint_high_watermark = log.end_offset
    box.stop()
    path = box.path / ".fairlead" / "checkpoint"
    data = path.read_bytes()
    if harm == "flipped":
        path.write_bytes(data[:40] + bytes([data[40] ^ 1]) + data[41:])
    elif harm == "short":
        path.write_bytes(data[:9])
    elif harm == "foreign":
        path.write_bytes((path.parent / "identity").read_bytes())
    else:
        path.unlink()
    log = box.open()

    assert not box.opened.was_clean
    assert [str(path) in sentence for sentence in box.opened.corrupt] == [True]
    assert log.recovery_report.scanned_bytes == len(stored(*batches))
    assert (log.synced_offset, log.end_offset, log.checkpoint_high_watermark) == (100, 100, 0)
    assert read_all(log) == stored(*batches)


def test_partitions_that_are_not_open_stay_in_the_checkpoint(box: LogBox, make: BatchMaker) -> None:
    """A partition that a run of the broker does not open keeps its entry in the checkpoint."""
    make.fill(box.open(), 10)
    box.stop()
    box.open_directory()
    box.stop()
    log = box.open()

    assert (log.synced_offset, log.recovery_report.scanned_bytes) == (20, 0)


def test_an_open_partition_is_not_opened_twice(box: LogBox) -> None:
    """A partition that is already open is not opened again, because two logs would write into the same files."""
    box.open()
    with pytest.raises(AssertionError):
        box.opened.open_partition(TOPIC, PARTITION, TopicConfig())


def delete(directory: LogDirectory, partition: PartitionIndex) -> None:
    """Drop a partition and remove its files, as the broker does."""
    gone = directory.give_up_partition(TOPIC, partition)
    if gone is not None:
        directory.remove_given_up(gone)


def test_deletion_removes_the_files(box: LogBox, make: BatchMaker) -> None:
    """Deleting a partition removes its folder, and with the last partition the topic's folder.

    A new partition with the index of a deleted partition begins at offset 0.
    """
    log = box.open()
    begin(log)
    make.fill(log, 10)
    other = box.opened.open_partition(TOPIC, PartitionIndex(1), TopicConfig())
    delete(box.opened, PARTITION)

    assert sorted(path.name for path in (box.path / TOPIC).iterdir()) == ["1"]
    assert log.closed
    assert not other.closed
    delete(box.opened, PartitionIndex(1))
    assert not (box.path / TOPIC).exists()
    delete(box.opened, PartitionIndex(1))
    log = box.opened.open_partition(TOPIC, PARTITION, TopicConfig())
    assert (log.end_offset, log.leader_epochs) == (0, ())
    assert not list(box.path.rglob("*-deleted"))


def test_a_partition_is_opened_while_the_last_one_is_removed(box: LogBox) -> None:
    """Opening a partition creates the topic's folder again if a concurrent deletion has removed the folder."""

    class Removing(PosixStorage):
        """A disk that removes the topic's folder once, before the partition's folder is created."""

        __slots__ = ("left",)

        def make_folder(self, path: Path) -> None:
            if path.name == "0" and self.left:
                self.left -= 1
                path.parent.rmdir()
            super().make_folder(path)

    box.storage = storage = Removing()
    storage.left = 1
    log = box.open()

    assert (log.end_offset, storage.left) == (0, 0)
    assert box.folder.is_dir()


def test_a_topic_folder_that_is_in_use_again_stays(box: LogBox, make: BatchMaker) -> None:
    """A topic's folder stays when a dropped partition's files are removed after the partition was opened again."""
    make.fill(box.open(), 3)
    gone = box.opened.give_up_partition(TOPIC, PARTITION)
    assert gone is not None
    log = box.opened.open_partition(TOPIC, PARTITION, TopicConfig())
    box.opened.remove_given_up(gone)

    assert [path.name for path in (box.path / TOPIC).iterdir()] == [str(PARTITION)]
    assert log.end_offset == 0


def test_open_and_unopened_partitions_are_deleted_alike(box: LogBox, make: BatchMaker) -> None:
    """Deleted partitions of a topic leave no file, whether they were open or not, and other topics stay."""
    make.fill(box.open(), 3)
    box.stop()
    directory = box.open_directory()
    directory.open_partition(TOPIC, PartitionIndex(11), TopicConfig())
    directory.open_partition(OTHER_TOPIC, PARTITION, TopicConfig())
    for index in (PARTITION, PartitionIndex(11)):
        delete(directory, index)

    assert sorted(path.name for path in box.path.iterdir()) == [".fairlead", OTHER_TOPIC]
    box.stop()
    log = box.open()
    assert (log.end_offset, log.damaged) == (0, ())


def test_an_interrupted_deletion_is_finished(box: LogBox, make: BatchMaker) -> None:
    """A partition folder that was renamed for deletion is removed at the next start."""
    make.fill(box.open(), 10)
    box.kill()
    box.folder.rename(box.folder.with_name("0.1700000000000000-deleted"))
    log = box.open()

    assert log.end_offset == 0
    assert [path.name for path in (box.path / TOPIC).iterdir()] == ["0"]


@pytest.mark.parametrize("removed", [False, True])
def test_the_checkpoint_does_not_outlive_a_partition(box: LogBox, make: BatchMaker, removed: bool) -> None:
    """A partition that was deleted before a kill begins at offset 0 when it returns, without damage."""
    log = box.open()
    make.fill(log, 10)
    log.checkpoint_high_watermark = log.sync()
    box.opened.write_checkpoint()
    gone = box.opened.give_up_partition(TOPIC, PARTITION)
    assert gone is not None
    if removed:
        box.opened.remove_given_up(gone)
    box.kill()
    box.open_directory()
    box.kill()
    log = box.open()

    assert (log.end_offset, log.synced_offset, log.checkpoint_high_watermark) == (0, 0, 0)
    assert (log.damaged, log.recovery_report.damaged) == ((), [])


def test_files_of_a_deleted_topic_are_removed_without_a_checkpoint(
    box: LogBox, make: BatchMaker, faults: FaultyStorage
) -> None:
    """The removal of a deleted topic's partitions writes no checkpoint; the next start updates the checkpoint."""
    directory = box.open_directory()
    for index in range(3):
        make.fill(directory.open_partition(TOPIC, PartitionIndex(index), TopicConfig()), 3)
    directory.write_checkpoint()
    faults.syncs.clear()
    for index in range(3):
        gone = directory.give_up_partition(TOPIC, PartitionIndex(index))
        assert gone is not None
        directory.remove_given_up(gone, for_good=True)
    written = [path for path in faults.syncs if path.name.startswith("checkpoint")]
    box.kill()
    directory = box.open_directory()
    directory.forget_topics({TOPIC})
    directory.write_checkpoint()

    assert written == []
    assert not (box.path / TOPIC).exists()
    assert TOPIC.encode() not in (box.path / ".fairlead" / "checkpoint").read_bytes()


def test_a_start_after_a_kill_syncs_once_for_all_partitions(
    box: LogBox, make: BatchMaker, faults: FaultyStorage
) -> None:
    """A start after a kill makes the files of all partitions durable with a single sync of the volume."""
    directory = box.open_directory()
    for index in range(4):
        log = directory.open_partition(TOPIC, PartitionIndex(index), TopicConfig())
        begin(log)
        make.fill(log, 3)
        log.sync()
    directory.write_checkpoint()
    box.kill()
    before = faults.volume_syncs
    directory = box.open_directory()
    faults.syncs.clear()
    for index in range(4):
        directory.open_partition(TOPIC, PartitionIndex(index), TopicConfig())

    assert faults.volume_syncs == before + 1
    assert faults.syncs == []


def test_a_found_partition_that_was_dropped_is_opened_empty(box: LogBox, make: BatchMaker) -> None:
    """A partition that a start finds and drops before it is opened begins at offset 0 when it returns."""
    make.fill(box.open(), 3)
    box.kill()
    directory = box.open_directory()
    assert directory.give_up_partition(TOPIC, PARTITION) is not None
    log = directory.open_partition(TOPIC, PARTITION, TopicConfig())

    assert (log.end_offset, log.damaged) == (0, ())


def given_up(box: LogBox, make: BatchMaker) -> Path:
    """Fill a partition that the checkpoint lists, drop it, and return the path of its renamed folder."""
    log = box.open()
    make.fill(log, 10)
    log.sync()
    box.opened.write_checkpoint()
    gone = box.opened.give_up_partition(TOPIC, PARTITION)
    assert gone is not None
    return gone


@pytest.mark.parametrize("synced", [False, True])
def test_a_partition_that_came_back_is_not_measured_by_its_first_stay(
    box: LogBox, make: BatchMaker, synced: bool
) -> None:
    """The recovery of a partition that returned before a kill uses only its new checkpoint entry, not the old entry."""
    given_up(box, make)
    log = box.opened.open_partition(TOPIC, PARTITION, TopicConfig())
    again = BatchMaker()
    batches = again.fill(log, 3)
    if synced:
        log.sync()
        box.opened.write_checkpoint()
    box.kill()
    log = box.open()

    assert (log.end_offset, log.damaged, log.recovery_report.damaged) == (6, (), [])
    assert (log.synced_offset == 6) or not synced
    assert read_all(log) == stored(*batches)
    assert [path.name for path in (box.path / TOPIC).iterdir()] == ["0"]


def test_a_full_disk_keeps_the_folder_of_a_partition_until_the_checkpoint_is_written(
    box: LogBox, make: BatchMaker, faults: FaultyStorage
) -> None:
    """A start on a full disk empties a dropped partition's folder, but reopens the partition only with free space."""
    gone = given_up(box, make)
    faults.full_suffixes, faults.room_bytes = {".tmp"}, 0
    with pytest.raises(DiskFull):
        box.opened.remove_given_up(gone)
    box.kill()
    box.open_directory()

    assert list(gone.iterdir()) == []
    with pytest.raises(DiskFull):
        box.opened.open_partition(TOPIC, PARTITION, TopicConfig())
    box.kill()
    faults.room_bytes = None
    log = box.open()
    assert (log.end_offset, log.damaged) == (0, ())
    assert not gone.exists()


def test_a_folder_that_is_lost_is_damage(box: LogBox, make: BatchMaker) -> None:
    """A partition folder that is lost without a deletion is damage, and its synced offsets are not assigned again."""
    log = box.open()
    make.fill(log, 10)
    log.sync()
    box.opened.write_checkpoint()
    box.kill()
    shutil.rmtree(box.folder)
    log = box.open()

    assert log.end_offset == 20
    assert [(each.first_offset, each.next_good_offset) for each in log.damaged] == [(0, 20)]


def test_unknown_topics_are_put_aside_and_never_deleted(box: LogBox, make: BatchMaker) -> None:
    """A folder of an unknown topic is renamed, kept and reported at every start, and a foreign folder is unchanged."""
    make.fill(box.open(), 10)
    content = box.log_files()[0].read_bytes()
    box.stop()
    (box.path / "lost+found").mkdir()
    for number in range(2):
        directory = box.open_directory()
        kept = directory.mark_strays({TOPIC})
        strays = directory.mark_strays({OTHER_TOPIC})
        names = [f"{TOPIC}.stray", f"{TOPIC}.stray.2"]

        assert len(kept) == number
        assert [path.name for path in strays] == names[: number + 1]
        assert (strays[0] / "0" / f"{0:020d}.log").read_bytes() == content
        assert (box.path / "lost+found").exists()
        box.stop()
        make.fill(box.open(), 1)
        box.stop()


def test_a_folder_that_was_put_aside_is_created_again(box: LogBox, make: BatchMaker) -> None:
    """The log of a topic whose folder was renamed opens, and its offsets are not assigned again."""
    make.fill(box.open(), 10)
    box.stop()
    directory = box.open_directory()
    directory.mark_strays({OTHER_TOPIC})
    log = directory.open_partition(TOPIC, PARTITION, TopicConfig())

    assert log.end_offset == 20
    assert [(each.first_offset, each.next_good_offset) for each in log.damaged] == [(0, 20)]


def test_a_failed_checkpoint_ends_the_directory(box: LogBox, make: BatchMaker, faults: FaultyStorage) -> None:
    """A checkpoint that cannot be synced leaves the old checkpoint in place and ends writes to the data directory."""
    log = box.open()
    make.fill(log, 3)
    log.sync()
    box.opened.write_checkpoint()
    before = (box.path / ".fairlead" / "checkpoint").read_bytes()
    make.fill(log, 3)
    log.sync()
    faults.sync_error = errno.EIO
    with pytest.raises(StorageFailed):
        box.opened.write_checkpoint()
    faults.sync_error = 0

    assert (box.path / ".fairlead" / "checkpoint").read_bytes() == before
    with pytest.raises(StorageFailed):
        log.append([make(12)])


@pytest.mark.slow
def test_a_start_opens_few_files_however_many_segments(
    box: LogBox, make: BatchMaker, faults: FaultyStorage
) -> None:
    """A start opens only the files of the last of 10,000 segments, and a read opens only the files that it needs."""
    begin(box.open())
    box.stop()
    box.log_files()[0].unlink()
    for number in range(10_000):
        (box.folder / f"{number:020d}.log").write_bytes(stored(make.at_times(number, [FIRST_TIME_US])))
    entry = PartitionCheckpoint(
        topic_id=TOPIC,
        partition=PARTITION,
        log_start=Offset(0),
        high_watermark=Offset(0),
        recovery_point=Offset(10_000),
    )
    write_document(faults, box.path / ".fairlead" / "checkpoint", Checkpoint(partitions=(entry,)))
    snapshot = Snapshot(Offset(9_999), ProducerState())
    (box.folder / f"{9_999:020d}.producers").write_bytes(encode_snapshot(snapshot))
    faults.opened.clear()
    log = box.open()
    opened = [path for path in faults.opened if path.parent == box.folder]
    faults.opened.clear()
    data = log.read(Offset(5000), 1, log.end_offset)

    assert (log.segment_count, log.end_offset) == (10_000, 10_000)
    assert len(opened) < 10
    assert data.next_offset == 5001
    assert len(faults.opened) < 10
