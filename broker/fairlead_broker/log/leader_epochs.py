"""List of a partition's leader epochs with their start offsets, on disk.

Replicas use this list to find where their logs diverge, so an epoch is added durably before the first batch of
that epoch is written. `partition_log` owns the list. The module must not know how the leader epoch of a partition
is chosen; `replication.divergence` defines the meaning of the list.

The list of epochs is written by the first append in an epoch, not by a start of the broker. A starting broker therefore
needs no fsync for idle partitions, and the list names only epochs that have records.
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
    """The leader epochs of one partition: the epochs increase, and their start offsets never decrease."""

    __slots__ = ("_path", "_storage", "complete", "entries")

    def __init__(self, storage: Storage, folder: Path) -> None:
        self._storage = storage
        self._path = folder / FILE_NAME
        data = read_whole(storage, self._path)
        decoded = LEADER_EPOCHS.decode(data)
        starts = () if decoded is None else zip(decoded["f1"].tolist(), decoded["f0"].tolist(), strict=True)
        self.entries = [EpochStart(LeaderEpoch(epoch), Offset(offset)) for epoch, offset in starts]
        self.complete = decoded is not None and len(data or b"") == LEADER_EPOCHS.position_of(len(decoded))
        """Whether the whole file passed its checks. After a failed check, `replace` rebuilds the list from the
        epochs of the batches.
        """

    @property
    def highest(self) -> LeaderEpoch | None:
        """Newest epoch, or None if the partition has had no leader yet."""
        return self.entries[-1].epoch if self.entries else None

    def begin(self, epoch: LeaderEpoch, start_offset: Offset) -> None:
        """Durably add an epoch. Raises `StaleLeaderEpoch` unless the epoch exceeds all earlier epochs."""
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
        """Add the epoch of a leader's batches at the log's end, unless the newest epoch with records is the same.

        Existing epochs that begin at the log's end have no records and are dropped, since they may be above the
        leader's epoch.
        """
        if epoch != self.highest:
            self.cut(log_end - 1)
            if epoch != self.highest:
                self.begin(epoch, start_offset)

    def take_over_lost(self, lost: Iterable[EpochStart], log_end: Offset) -> None:
        """Add the epochs of a leader's lost records at the log's end, oldest first, atomically and durably.

        Existing epochs that begin at the log's end have no records and are dropped, as in `take_over`.
        """
        kept = [entry for entry in self.entries if entry.start_offset < log_end]
        for begin in lost:
            if not kept or begin.epoch > kept[-1].epoch:
                kept.append(EpochStart(begin.epoch, max(begin.start_offset, log_end)))
        if kept != self.entries:
            self.replace(kept)

    def forget(self, log_end: Offset) -> None:
        """Drop the epochs that start at the log's end or later from memory only, since the disk may be full.

        The next entry overwrites the dropped epochs in the file. A broker that starts before the next entry is
        written drops the epochs at or after the log's end. No record belongs to a dropped epoch.
        """
        self.entries = [entry for entry in self.entries if entry.start_offset < log_end]

    def end_offset(self, epoch: int, log_end: Offset) -> EpochEnd | None:
        """Return the largest epoch that is not newer than the requested epoch, with the end offset of its records."""
        return epoch_end(self.entries, epoch, log_end)

    def before(self, offset: Offset) -> EpochStart | None:
        """Return the epoch of the record before an offset, or None if the epoch of that record is unknown."""
        return epoch_before(self.entries, offset)

    def cut(self, start_offset_max: int) -> None:
        """Durably drop the epochs that start after an offset."""
        kept = [entry for entry in self.entries if entry.start_offset <= start_offset_max]
        if len(kept) < len(self.entries):
            self.replace(kept)

    def trim(self, log_start: Offset) -> None:
        """Durably drop the epochs before the epoch of the last record below the log start.

        The epoch of the last deleted record is kept with its start offset: the leader uses this epoch to check a
        follower whose log ends at the log start, and a follower with a different epoch must not continue. The
        highest epoch is never dropped.
        """
        below = bisect_left(self.entries, log_start, key=_BY_START)
        if below > 1:
            self.replace(self.entries[below - 1 :])

    def replace(self, entries: Iterable[EpochStart]) -> None:
        """Durably replace the whole list."""
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
        """Open the file, truncated to its valid entries, to append one entry. The file is closed after the append."""
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
