"""Rounds of cleaning in which the power is cut at every change of the disk: readers see the same records afterwards."""

from __future__ import annotations

import copy
import random
from pathlib import Path

import pytest

from cleaning_kit import KeyedBatches, check_covered, clean_log, committed, newest, random_history, roll
from fairlead_api.batch.batches import Record
from fairlead_api.configuration import TopicConfig
from fairlead_broker.log import LogDirectory, PartitionLog
from log_kit import CLUSTER, DIRECTORY, FIRST_TIME_US, PARTITION, TOPIC, SteppingClock, begin
from lying_disk import Losses, LyingDisk, PowerCut

CONFIG = TopicConfig(cleanup_policy="compact", segment_bytes=1 << 20)
LATER_US = FIRST_TIME_US + 10**12


def opened(disk: LyingDisk) -> tuple[LogDirectory, PartitionLog]:
    """Open the data directory on a disk, and its partition."""
    directory = LogDirectory.open(
        Path("/data"),
        cluster_id=CLUSTER,
        broker_id=1,
        clock=SteppingClock(),
        new_directory_id=DIRECTORY,
        storage=disk,
    )
    return directory, directory.open_partition(TOPIC, PARTITION, CONFIG)


@pytest.fixture(scope="module")
def full() -> tuple[LyingDisk, list[Record]]:
    """A disk with a log of several segments and all kinds of batches, and the records of the log."""
    disk = LyingDisk()
    directory, log = opened(disk)
    begin(log)
    batches, rng = KeyedBatches(log), random.Random(25)
    for _ in range(3):
        random_history(batches, rng, 25, keys=12)
        roll(log)
    records = committed(log)
    directory.close(True)
    return disk, records


def cleaned_until_cut(disk: LyingDisk, number: int) -> bool:
    """Clean a log twice, so that tombstones go, and cut the power at a change. Returns whether the power was cut."""
    directory, log = opened(disk)
    disk.cut_at = disk.operations + number
    try:
        clean_log(log, FIRST_TIME_US, disk)
        clean_log(log, LATER_US, disk, removal_limit=log.end_offset)
        directory.write_checkpoint()
    except PowerCut:
        return True
    return False


def check(log: PartitionLog, full: list[Record]) -> None:
    """Check that the log is intact, and that its newest records are those of the uncleaned log."""
    kept = committed(log)
    check_covered(log)
    assert not log.damaged
    assert newest(kept) == newest(full)
    assert set(map(repr, kept)) <= set(map(repr, full))


@pytest.mark.parametrize("stride", [9, pytest.param(1, marks=pytest.mark.scenario)])
def test_a_cut_at_any_change_of_the_disk_keeps_the_newest_records(
    full: tuple[LyingDisk, list[Record]], stride: int
) -> None:
    """After a cut at the n-th change for every n, the next start finds an intact log, which can be cleaned again."""
    base, records = full
    rng, losses, number = random.Random(1), Losses(), 0
    while True:
        number += stride
        disk = copy.deepcopy(base)
        disk.losses = losses
        was_cut = cleaned_until_cut(disk, number)
        disk = disk.cut(rng)
        _, log = opened(disk)
        check(log, records)
        clean_log(log, LATER_US + number, disk, removal_limit=log.end_offset)
        check(log, records)
        names = disk.list_files(log.folder)

        assert not [name for name in names if name.endswith((".cleaned", ".swap"))]
        if not was_cut:
            break
    assert number > 40
    assert losses.names_lost
    if stride == 1:
        assert losses.renames_undone
        assert losses.renames_half_done
