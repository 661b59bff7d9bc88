"""The list of leader epochs on the disk."""

from __future__ import annotations

from pathlib import Path

import pytest

from fairlead_api.identifiers import LeaderEpoch, Offset
from fairlead_broker.log import EpochEnd, StaleLeaderEpoch
from fairlead_broker.log.leader_epochs import EpochStart, LeaderEpochs
from fairlead_broker.log.segments.storage import PosixStorage
from fairlead_broker.replication.divergence import divergence
from log_kit import BatchMaker, LogBox, begin


def epochs_of(folder: Path, *starts: tuple[int, int]) -> LeaderEpochs:
    """Return the stored list of leader epochs with entries (epoch, start offset) added."""
    epochs = LeaderEpochs(PosixStorage(), folder)
    for epoch, offset in starts:
        epochs.begin(LeaderEpoch(epoch), Offset(offset))
    return epochs


@pytest.mark.parametrize(
    ("asked", "epoch", "end_offset"),
    [(0, 0, 10), (1, 1, 10), (2, 2, 20), (3, 2, 20), (4, 4, 20), (5, 5, 40), (6, 5, 40), (7, 7, 50)],
)
def test_the_end_of_an_epoch(tmp_path: Path, asked: int, epoch: int, end_offset: int) -> None:
    """A leader epoch ends at the next epoch's start or the log end; an unlisted epoch counts as the last lower one."""
    epochs = epochs_of(tmp_path, (2, 10), (4, 20), (5, 20), (7, 40))

    assert epochs.end_offset(asked, Offset(50)) == EpochEnd(LeaderEpoch(epoch), Offset(end_offset))


def test_an_unknown_newer_epoch_has_no_end(tmp_path: Path) -> None:
    """A leader epoch above all listed epochs has no end offset; in an empty list, no epoch has an end offset."""
    assert epochs_of(tmp_path).end_offset(1, Offset(0)) is None
    assert epochs_of(tmp_path, (2, 0)).end_offset(3, Offset(0)) is None


def test_epochs_survive(tmp_path: Path) -> None:
    """A leader epoch that was begun is listed when the file is opened again, and newer epochs can be added."""
    epochs_of(tmp_path, (1, 0), (2, 5))
    epochs = epochs_of(tmp_path, (3, 5))

    assert epochs_of(tmp_path).entries == epochs.entries
    assert [entry.epoch for entry in epochs.entries] == [1, 2, 3]
    assert epochs.complete
    assert epochs.highest == 3
    with pytest.raises(StaleLeaderEpoch) as refused:
        epochs.begin(LeaderEpoch(2), Offset(9))
    assert (refused.value.epoch, refused.value.highest) == (2, 3)


def test_a_cut_is_durable(tmp_path: Path) -> None:
    """Leader epochs that start after the cut offset are dropped, and stay dropped when the file is opened again."""
    epochs = epochs_of(tmp_path, (1, 0), (2, 5), (3, 9))
    epochs.cut(5)

    assert epochs_of(tmp_path).entries == [
        EpochStart(LeaderEpoch(1), Offset(0)),
        EpochStart(LeaderEpoch(2), Offset(5)),
    ]
    epochs.begin(LeaderEpoch(4), Offset(6))
    assert [entry.epoch for entry in epochs_of(tmp_path).entries] == [1, 2, 4]


@pytest.mark.parametrize("nbytes", range(1, 16))
def test_a_torn_last_entry_is_left_out_and_marked(tmp_path: Path, nbytes: int) -> None:
    """A torn last entry is left out of the list of epochs, marks the list as incomplete, and is overwritten."""
    epochs_of(tmp_path, (1, 0), (2, 5))
    path = tmp_path / "leader-epochs"
    path.write_bytes(path.read_bytes()[:-nbytes])
    epochs = epochs_of(tmp_path)

    assert ([entry.epoch for entry in epochs.entries], epochs.complete) == ([1], False)
    epochs.begin(LeaderEpoch(3), Offset(7))
    again = epochs_of(tmp_path)
    assert ([entry.epoch for entry in again.entries], again.complete) == ([1, 3], True)


@pytest.mark.parametrize(
    ("log_start", "kept"),
    [(0, [2, 4, 5, 7]), (20, [2, 4, 5, 7]), (21, [5, 7]), (40, [5, 7]), (41, [7]), (59, [7])],
)
def test_epochs_below_the_log_start_are_forgotten(tmp_path: Path, log_start: int, kept: list[int]) -> None:
    """A trimmed list of epochs reports a divergence at or above the log start if and only if the whole list does."""
    epochs = epochs_of(tmp_path, (2, 10), (4, 20), (5, 20), (7, 40))
    whole = list(epochs.entries)
    epochs.trim(Offset(log_start))
    again = epochs_of(tmp_path)

    assert [entry.epoch for entry in again.entries] == kept
    for offset in range(log_start, 60):
        for last_epoch in range(10):
            place = LeaderEpoch(last_epoch), Offset(offset)
            told = divergence(again.entries, Offset(60), *place)
            before = divergence(whole, Offset(60), *place)
            assert (told is None) == (before is None)
            # A follower at a trimmed epoch truncates below the log start with either list.
            assert told == before or last_epoch < kept[0]


@pytest.mark.parametrize("lost", [1, 2])
def test_a_list_that_lost_whole_entries_is_made_again(box: LogBox, make: BatchMaker, lost: int) -> None:
    """A list of epochs that lost whole entries is rebuilt, although the list looks complete."""
    # A leader would find no divergence in the log of a follower that lacks its last epochs.
    log = box.open()
    for epoch in (1, 5):
        begin(log, epoch)
        make.leader_epoch = epoch
        make.fill(log, 3)
    epochs = log.leader_epochs
    box.stop()
    path = box.folder / "leader-epochs"
    path.write_bytes(path.read_bytes()[: -16 * lost])

    assert box.open().leader_epochs == epochs


def test_a_restarted_log_keeps_the_epoch_before(box: LogBox, make: BatchMaker) -> None:
    """A restarted log keeps the epoch of the record before its new offset, even after a stop and a start."""
    log = box.open()
    begin(log, 1)
    make.fill(log, 3)
    log.restart_at(Offset(50), EpochStart(LeaderEpoch(4), Offset(20)))
    before = log.last_epoch
    box.stop()
    again = box.open()

    assert (before, again.last_epoch, again.log_start_offset, again.end_offset) == (4, 4, 50, 50)
    assert again.leader_epochs == (EpochStart(LeaderEpoch(4), Offset(20)),)
