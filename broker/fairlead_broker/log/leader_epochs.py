"""The start offset of each leader epoch of a partition, on disk.

Replicas find by this list where their logs differ: an epoch is added, durably, before its first batch is
written. `partition_log` owns the list. The module must not know how an epoch is decided;
`replication.divergence` defines the meaning of the list.

The first append in an epoch writes the list, not the start of the broker: a start needs no fsync for idle
partitions, and the list names only epochs that have records.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from operator import attrgetter
from pathlib import Path
from typing import Final

from fairlead_api.identifiers import LeaderEpoch, Offset
from fairlead_broker.log.errors import StaleLeaderEpoch, StorageFailed, wrap_os_error
from fairlead_broker.log.segments.entry_file import EntryKind, EntryLayout
from fairlead_broker.log.segments.storage import File, Storage, read_whole, write_atomically
from fairlead_broker.replication.divergence import EpochEnd, EpochStart, epoch_before, epoch_end

__all__ = ["FILE_NAME", "LEADER_EPOCHS", "EpochEnd", "EpochStart", "LeaderEpochs"]

LEADER_EPOCHS: Final = EntryLayout(EntryKind.LEADER_EPOCHS, "qi")
FILE_NAME: Final = "leader-epochs"
_BY_START: Final = attrgetter("start_offset")


class LeaderEpochs:
    """The epochs of one partition: epochs rise, start offsets never fall."""

    __slots__ = ("_path", "_storage", "complete", "entries")

    def __init__(self, storage: Storage, folder: Path) -> None:
        self._storage = storage
        self._path = folder / FILE_NAME
        data = read_whole(storage, self._path)
        decoded = LEADER_EPOCHS.decode(data)
        starts = () if decoded is None else zip(decoded["f1"].tolist(), decoded["f0"].tolist(), strict=True)
        self.entries = [EpochStart(LeaderEpoch(epoch), Offset(offset)) for epoch, offset in starts]
        self.complete = decoded is not None and len(data or b"") == LEADER_EPOCHS.position_of(len(decoded))
        """Whether the whole file passed its checks; if not, `replace` rebuilds the list from the epochs of
        the batches.
        """

    @property
    def highest(self) -> LeaderEpoch | None:
        """Newest epoch, or None if the partition has had no leader yet."""
        return self.entries[-1].epoch if self.entries else None

    def begin(self, epoch: LeaderEpoch, start_offset: Offset) -> None:
        """Add an epoch, durable on return. Raises `StaleLeaderEpoch` unless the epoch exceeds all earlier ones."""
        highest = self.highest
        if highest is not None and epoch <= highest:
            raise StaleLeaderEpoch(self._path, epoch, highest)
        entry = LEADER_EPOCHS.encode([(start_offset, epoch)])
        position = LEADER_EPOCHS.position_of(len(self.entries))
        try:
            file = self._open()
        except OSError as error:
            raise wrap_os_error(error, f"{self._path}: cannot create") from error
        try:
            file.write([entry], position)
        except OSError as error:
            # A partial entry fails its checksum, and the next write replaces it.
            raise wrap_os_error(error, f"{self._path}: cannot add leader epoch {epoch}") from error
        self._sync(file)
        self.entries.append(EpochStart(epoch, start_offset))

    def take_over(self, epoch: LeaderEpoch, start_offset: Offset, log_end: Offset) -> None:
        """Begin the epoch of a leader's batches after the log's end, unless it is the newest epoch with records.

        Other epochs that begin at the end and have no records are dropped, since they may be above the
        leader's epoch.
        """
        if epoch != self.highest:
            self.cut(log_end - 1)
            if epoch != self.highest:
                self.begin(epoch, start_offset)

    def take_over_lost(self, lost: Iterable[EpochStart], log_end: Offset) -> None:
        """Add the epochs of a leader's lost records after the log's end, the oldest first, all or none, durably.

        Other epochs that begin at the end and have no records are dropped, as by `take_over`.
        """
        kept = [entry for entry in self.entries if entry.start_offset < log_end]
        for begin in lost:
            if not kept or begin.epoch > kept[-1].epoch:
                kept.append(EpochStart(begin.epoch, max(begin.start_offset, log_end)))
        if kept != self.entries:
            self.replace(kept)

    def forget(self, log_end: Offset) -> None:
        """Drop the epochs that start at the log's end or later, only from memory: the disk may be full.

        The next entry overwrites the dropped epochs in the file. A start before the next entry drops the
        epochs after the end. None of the dropped epochs has a record.
        """
        self.entries = [entry for entry in self.entries if entry.start_offset < log_end]

    def end_offset(self, epoch: int, log_end: Offset) -> EpochEnd | None:
        """Return the end of the records of the largest epoch that is not newer than the requested epoch."""
        return epoch_end(self.entries, epoch, log_end)

    def before(self, offset: Offset) -> EpochStart | None:
        """Return the epoch of the record before an offset, or None if no record is known there."""
        return epoch_before(self.entries, offset)

    def cut(self, start_offset_max: int) -> None:
        """Drop epochs that start after an offset, durably."""
        kept = [entry for entry in self.entries if entry.start_offset <= start_offset_max]
        if len(kept) < len(self.entries):
            self.replace(kept)

    def trim(self, log_start: Offset) -> None:
        """Drop the epochs before the epoch of the last record below the log start, durably.

        The epoch of the last deleted record stays, with its start: a follower at the log start is compared by
        that epoch, and must not continue with another epoch there. The highest epoch is never dropped.
        """
        below = bisect_left(self.entries, log_start, key=_BY_START)
        if below > 1:
            self.replace(self.entries[below - 1 :])

    def replace(self, entries: Iterable[EpochStart]) -> None:
        """Replace the whole list, durably."""
        kept = list(entries)
        data = LEADER_EPOCHS.encode_header()
        data += LEADER_EPOCHS.encode((entry.start_offset, entry.epoch) for entry in kept)
        try:
            write_atomically(self._storage, self._path, data)
        except OSError as error:
            raise wrap_os_error(error, f"{self._path}: cannot replace") from error
        self.entries = kept
        self.complete = True

    def _open(self) -> File:
        """Open the file for one entry, truncated to the valid entries. The file is not kept open."""
        file = self._storage.open(self._path, create=True)
        is_new = file.size() < LEADER_EPOCHS.position_of(0)
        file.truncate(LEADER_EPOCHS.position_of(len(self.entries)))
        file.write([LEADER_EPOCHS.encode_header()], 0)
        if is_new:
            self._storage.sync_folder(self._path.parent)
        return file

    def _sync(self, file: File) -> None:
        try:
            file.sync()
        except OSError as error:
            message = f"{self._path}: cannot sync: {error.strerror}"
            raise StorageFailed(message) from error
