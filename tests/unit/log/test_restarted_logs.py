"""Restarts of a log at its leader's log start, with kills of the process during the restart."""

from __future__ import annotations

from itertools import count
from pathlib import Path

import pytest

from fairlead_api.identifiers import LeaderEpoch, Offset, TimestampUs
from fairlead_broker.log import PartitionLog
from fairlead_broker.log.leader_epochs import EpochStart
from fairlead_broker.replication.divergence import divergence, end_before
from log_kit import BatchMaker, FaultyStorage, LogBox, begin, stored

LEADER_END = Offset(40)


class Killed(BaseException):
    """End of the process, which no handler of the log may mistake for a disk error."""


class KillingStorage(FaultyStorage):
    """A disk that kills the process before a given change."""

    changes_left: int | None = None

    def take_room(self, path: Path, nbytes: int) -> int:
        """Return how many of the bytes may be written, unless the process is killed first."""
        self._change()
        return super().take_room(path, nbytes)

    def unlink(self, path: Path) -> None:
        """Remove a file, unless the process is killed first."""
        self._change()
        super().unlink(path)

    def rename(self, source: Path, target: Path) -> None:
        """Rename a file, unless the process is killed first."""
        self._change()
        super().rename(source, target)

    def sync_folder(self, path: Path) -> None:
        """Sync a folder, unless the process is killed first."""
        self._change()
        super().sync_folder(path)

    def _change(self) -> None:
        if self.changes_left == 0:
            raise Killed
        if self.changes_left is not None:
            self.changes_left -= 1


@pytest.mark.parametrize("emptied", [False, True])
@pytest.mark.parametrize(
    ("epochs", "log_start", "told"),
    [
        (((4, 0), (7, 5)), 0, None),
        pytest.param(((4, 3), (7, 12)), 5, (4, 3), marks=pytest.mark.scenario),
        (((4, 0), (5, 5), (7, 12)), 6, (5, 5)),
        pytest.param(((8, 25),), 30, (8, 25), marks=pytest.mark.scenario),
    ],
)
def test_a_log_killed_in_its_restart_is_consistent_with_its_leader(
    tmp_path: Path,
    emptied: bool,
    epochs: tuple[tuple[int, int], ...],
    log_start: Offset,
    told: tuple[LeaderEpoch, Offset] | None,
) -> None:
    """A log whose process is killed in a restart begins at the new offset, or its leader detects a divergence."""
    leader = [EpochStart(LeaderEpoch(epoch), Offset(start)) for epoch, start in epochs]
    killed_at: list[tuple[int, Offset, Offset, LeaderEpoch | None]] = []
    for changes in count():
        disk = KillingStorage()
        box = LogBox(tmp_path / str(changes), storage=disk)
        log = made(box, emptied)
        disk.changes_left = changes
        try:
            log.restart_at(log_start, None if told is None else EpochStart(*told))
        except Killed:
            disk.changes_left = None
        box.kill()
        ended = disk.changes_left is not None
        disk.changes_left = None
        log = box.open()
        if not objects(leader, log_start, log) and log.log_start_offset != log_start:
            killed_at.append((changes, log.log_start_offset, log.end_offset, log.last_epoch))
        if ended:
            break

    assert changes > 10
    assert killed_at == []
    assert (log.log_start_offset, log.end_offset) == (log_start, log_start)
    assert log.leader_epochs == (() if told is None else (EpochStart(*told),))


def test_a_kill_before_the_first_copy_forgets_no_epoch(tmp_path: Path) -> None:
    """A log that moves back to the start of its first copied batch keeps its last epoch after a kill at any step."""
    killed_at: list[tuple[int, Offset, LeaderEpoch | None]] = []
    for changes in count():
        disk = KillingStorage()
        box = LogBox(tmp_path / str(changes), storage=disk)
        log = made(box, emptied=True)
        disk.changes_left = changes
        try:
            log.append_copies(memoryview(stored(BatchMaker(leader_epoch=6)(8, 5))))
        except Killed:
            disk.changes_left = None
        box.kill()
        ended = disk.changes_left is not None
        disk.changes_left = None
        log = box.open()
        if log.last_epoch != 6:
            killed_at.append((changes, log.log_start_offset, log.last_epoch))
        if ended:
            break

    assert changes > 10
    assert killed_at == []
    assert (log.end_offset, log.leader_epochs) == (13, (EpochStart(LeaderEpoch(6), Offset(5)),))


def made(box: LogBox, emptied: bool) -> PartitionLog:
    """Return a log without the deleted records of epochs 4 and 6, and with records of epoch 9 unless `emptied`."""
    log = box.open()
    for epoch, records in ((4, 5), (6, 5)):
        begin(log, epoch)
        BatchMaker(leader_epoch=epoch).fill(log, records, 1)
    log.checkpoint_high_watermark = log.end_offset
    log.roll_if_due(TimestampUs(1 << 62))
    log.advance_log_start(log.end_offset)
    if not emptied:
        begin(log, 9)
        BatchMaker(leader_epoch=9).fill(log, 5, 1)
    log.sync()
    box.opened.write_checkpoint()
    return log


def objects(leader: list[EpochStart], leader_start: Offset, log: PartitionLog) -> bool:
    """Return whether a leader with other records detects that a follower's log diverges from its own."""
    end, empty = log.end_offset, log.end_offset == log.log_start_offset
    if not leader_start <= end <= LEADER_END:
        return True
    if empty:
        return end_before(leader, LEADER_END, log.last_epoch, end) is not None
    return divergence(leader, LEADER_END, log.last_epoch, end) is not None
