"""The file of synced offsets: the entries that a start finds after changes or in a damaged file."""

from __future__ import annotations

import errno
from dataclasses import replace
from pathlib import Path

import pytest

from fairlead_api.identifiers import Offset, PartitionIndex, TopicId, TopicIdPartition
from fairlead_broker.log import DiskFull, PartitionLog, StorageFailed
from fairlead_broker.log.segments.storage import PosixStorage
from fairlead_broker.log.synced_offsets import ENTRY_BYTES, SyncedOffsets
from fairlead_broker.log.syncing import sync_volume
from log_kit import OTHER_TOPIC, PARTITION, TOPIC, BatchMaker, FaultyStorage, LogBox
from refusals import raises

KEYS = [TopicIdPartition(TOPIC, PartitionIndex(index)) for index in range(4)]


def opened(path: Path, storage: PosixStorage | None = None) -> SyncedOffsets:
    """Open a file, which must be intact or missing."""
    offsets = SyncedOffsets(storage or PosixStorage(), path)
    assert offsets.open()
    return offsets


def found(path: Path) -> list[Offset | None]:
    """Return the offsets that a start finds."""
    offsets = opened(path)
    return [offsets.entry(key).offset for key in KEYS]


def test_a_start_finds_the_last_written_offsets(tmp_path: Path) -> None:
    """A start finds exactly the last raised or lowered offsets, and new entries reuse the space of removed entries."""
    path = tmp_path / "synced"
    offsets = opened(path)
    entries = [offsets.entry(key) for key in KEYS[:3]]
    for entry in entries:
        entry.note(Offset(7))
    offsets.write()
    assert found(path) == [7, 7, 7, None]
    entries[1].note(Offset(9))
    offsets.write()
    entries[0].lower(Offset(3))
    entries[2].lower(Offset(8))
    assert found(path) == [3, 9, 7, None]
    assert offsets.remove(KEYS[1])
    assert not offsets.remove(KEYS[3])
    offsets.entry(KEYS[3]).note(Offset(1))
    offsets.sync_removals()

    assert found(path) == [3, None, 7, 1]
    assert path.stat().st_size == 4 * ENTRY_BYTES


def test_damage_loses_only_its_own_entry(tmp_path: Path) -> None:
    """A flipped bit or a lost end hides only the affected entries, and a damaged header is reported."""
    path = tmp_path / "synced"
    offsets = opened(path)
    for number, key in enumerate(KEYS):
        offsets.entry(key).note(Offset(number))
    offsets.write()
    whole = path.read_bytes()
    for at in range(ENTRY_BYTES, len(whole)):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 4]) + whole[at + 1 :])
        harmed = at // ENTRY_BYTES - 1
        assert found(path) == [None if number == harmed else number for number in range(4)]
    path.write_bytes(whole[: 3 * ENTRY_BYTES + 5])
    assert found(path) == [0, 1, None, None]
    path.write_bytes(b"?" + whole[1:])
    assert not SyncedOffsets(PosixStorage(), path).open()

    assert found(path) == [None] * 4


def test_a_full_disk_refuses_only_what_must_be_durable(tmp_path: Path) -> None:
    """On a full disk, increases of an offset are deferred and decreases fail; any other error ends all writes."""
    path, storage = tmp_path / "synced", FaultyStorage()
    offsets = opened(path, storage)
    entry = offsets.entry(KEYS[0])
    storage.full_suffixes, storage.room_bytes = {""}, 0
    entry.note(Offset(5))
    offsets.write()
    with pytest.raises(DiskFull):
        entry.lower(Offset(2))
    assert found(path) == [None] * 4
    storage.room_bytes = None
    entry.note(Offset(6))
    offsets.write()
    assert found(path) == [6, None, None, None]
    storage.room_bytes, storage.write_error = 0, errno.EIO
    entry.note(Offset(7))

    with raises(StorageFailed, "synced"):
        offsets.write()


@pytest.mark.parametrize("volume", [False, True])
def test_each_sync_stores_its_offset(box: LogBox, make: BatchMaker, volume: bool) -> None:
    """A sync of a partition or of the whole volume stores its offset, which a start takes as the synced offset."""
    log = box.open()
    make.fill(log, 3, 1)
    sync(box, log, volume)
    make.fill(log, 2, 1)
    box.kill()
    log = box.open()

    assert (log.synced_offset, log.end_offset) == (3, 5)


@pytest.mark.parametrize("volume", [False, True])
def test_an_offset_that_cannot_be_stored_is_not_synced(
    tmp_path: Path, make: BatchMaker, volume: bool
) -> None:
    """An error while an offset is stored ends all writes to the directory, as a failed sync does."""
    storage = FaultyStorage()
    box = LogBox(tmp_path / "data", storage=storage)
    log = box.open()
    make.fill(log, 3, 1)
    storage.full_suffixes, storage.room_bytes, storage.write_error = {""}, 0, errno.EIO
    with raises(StorageFailed, "synced"):
        sync(box, log, volume)

    assert log.synced_offset == 0
    assert box.opened.failure is not None


def sync(box: LogBox, log: PartitionLog, volume: bool) -> None:
    """Sync a log alone or with the whole volume, and raise its error."""
    if not volume:
        log.sync()
        return
    outcome = sync_volume([log], box.opened.volume)[log]
    if isinstance(outcome, StorageFailed):
        raise outcome


def test_a_shorter_log_is_no_damage(box: LogBox, make: BatchMaker) -> None:
    """A log that was truncated, restarted, or deleted and created again has no damage after a kill."""
    log = box.open()
    make.fill(log, 6, 1)
    log.sync()
    log.truncate_to(Offset(4))
    box.kill()
    log = box.open()
    assert (log.end_offset, log.damaged) == (4, ())
    log.restart_at(Offset(2))
    box.kill()
    log = box.open()
    assert (log.end_offset, log.damaged) == (2, ())
    make.fill(log, 6, 1)
    log.sync()
    gone = box.opened.give_up_partition(TOPIC, PARTITION)
    assert gone is not None
    log = box.opened.open_partition(TOPIC, PARTITION, box.config)
    box.kill()
    log = box.open()

    assert (log.end_offset, log.damaged) == (0, ())
    other = box.opened.open_partition(TopicId(OTHER_TOPIC), PARTITION, replace(box.config))
    assert (other.end_offset, other.damaged) == (0, ())
