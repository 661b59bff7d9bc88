"""Syncs of many partitions at the same time."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import ClassVar

import pytest

from fairlead_api.configuration import TopicConfig
from fairlead_api.identifiers import Offset, PartitionIndex
from fairlead_broker.log import PartitionLog, StorageFailed, sync_partitions
from fairlead_broker.log.partition_log import SyncPoint
from fairlead_broker.log.syncing import sync_volume
from log_kit import TOPIC, BatchMaker, FaultyStorage, LogBox, read_all, stored


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    """Yield a pool that runs syncs in parallel."""
    with ThreadPoolExecutor(4) as pool:
        yield pool


def open_many(box: LogBox, make: BatchMaker, count: int = 20) -> list[PartitionLog]:
    """Open partitions with one batch of two records each."""
    directory = box.open_directory()
    logs = [directory.open_partition(TOPIC, PartitionIndex(number), TopicConfig()) for number in range(count)]
    for log in logs:
        make.fill(log, 1)
    return logs


@pytest.mark.parametrize(("count", "volume_syncs"), [(1, 0), (16, 0), (17, 1)])
def test_few_are_synced_side_by_side_and_many_by_one_call(
    box: LogBox,
    make: BatchMaker,
    faults: FaultyStorage,
    pool: ThreadPoolExecutor,
    count: int,
    volume_syncs: int,
) -> None:
    """Up to 16 partitions are synced in parallel, more by one volume sync; a second round has nothing to sync."""
    logs = open_many(box, make, count)
    result = sync_partitions(logs, pool, box.opened.volume)

    assert result == dict.fromkeys(logs, 2)
    assert {log.synced_offset for log in logs} == {2}
    assert faults.volume_syncs == volume_syncs
    faults.syncs.clear()
    assert sync_partitions(logs, pool, box.opened.volume) == result
    assert faults.syncs == []


def test_one_call_syncs_all_partitions(box: LogBox, make: BatchMaker, faults: FaultyStorage) -> None:
    """Every partition is synced up to its log end by one sync of the volume, without a sync of any file."""
    logs = open_many(box, make)
    faults.syncs.clear()
    result = sync_volume(logs, box.opened.volume)

    assert result == dict.fromkeys(logs, 2)
    assert {log.synced_offset for log in logs} == {2}
    assert (faults.volume_syncs, faults.syncs) == (1, [])
    box.opened.write_checkpoint()
    box.kill()
    log = box.open()
    assert log.recovery_report.scanned_bytes == 0
    assert read_all(log) == stored(make(0, 2))


def test_what_is_appended_meanwhile_is_not_claimed(box: LogBox, make: BatchMaker) -> None:
    """A batch that is appended during a volume sync does not count as synced by that sync."""
    logs = open_many(box, make, 1)

    class Appending:
        """A volume that appends a batch during its sync."""

        def sync(self) -> None:
            """Append a batch to the log instead of syncing the volume."""
            make.fill(logs[0], 1)

    assert sync_volume(logs, Appending()) == {logs[0]: 2}
    assert (logs[0].synced_offset, logs[0].end_offset) == (2, 4)


@pytest.mark.parametrize("count", [1, 3, 20])
def test_one_error_fails_all_of_the_directory(
    box: LogBox, make: BatchMaker, faults: FaultyStorage, pool: ThreadPoolExecutor, count: int
) -> None:
    """A sync error fails every partition of the directory and publishes no offset, even if a later sync succeeds."""
    logs = open_many(box, make, count)
    faults.sync_error = errno.EIO
    failed = sync_partitions(logs, pool, box.opened.volume)
    faults.sync_error = 0
    again = sync_partitions(logs, pool, box.opened.volume)

    assert all(isinstance(outcome, StorageFailed) for outcome in (*failed.values(), *again.values()))
    assert {log.synced_offset for log in logs} == {0}


class PointedLog(PartitionLog):
    """A log that creates a sync point after every change to an attribute, as a concurrent sync may."""

    points: ClassVar[list[SyncPoint | None]] = []

    def __setattr__(self, name: str, value: object) -> None:
        super().__setattr__(name, value)
        PointedLog.points.append(self.sync_point())


@pytest.mark.parametrize(
    "cut",
    [lambda log: log.truncate_to(Offset(104)), lambda log: log.restart_at(Offset(50))],
    ids=["truncated", "begun anew"],
)
def test_no_point_amid_a_cut_is_taken_for_one_behind_it(
    box: LogBox, make: BatchMaker, cut: Callable[[PartitionLog], object]
) -> None:
    """A sync point taken during a truncation or restart never moves the synced offset beyond the log end."""
    log = box.open()
    log.restart_at(Offset(100))
    make.fill(log, 5)
    PointedLog.points.clear()
    log.__class__ = PointedLog
    cut(log)
    log.__class__ = PartitionLog
    for point in filter(None, PointedLog.points):
        log.mark_synced(point)

    assert PointedLog.points
    assert log.synced_offset <= log.end_offset
