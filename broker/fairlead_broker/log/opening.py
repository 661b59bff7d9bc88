"""Open a partition log from its folder on the disk.

`directory` calls this module. Opening a log lists the segments, determines the end of the log with `recovery`,
truncates the list of leader epochs to the log's end, and applies the checkpoint.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path

from fairlead_api.configuration import TopicConfig
from fairlead_api.identifiers import LeaderEpoch, Offset
from fairlead_broker.log.cleaning.swap import finish_swaps
from fairlead_broker.log.documents import PartitionCheckpoint
from fairlead_broker.log.errors import wrap_os_error
from fairlead_broker.log.health import DirectoryHealth
from fairlead_broker.log.leader_epochs import EpochStart, LeaderEpochs
from fairlead_broker.log.partition_log import PartitionLog
from fairlead_broker.log.producer_snapshots import TEMPORARY_SUFFIX, LoggedProducers
from fairlead_broker.log.recovery import Recovery
from fairlead_broker.log.segments.batch_walk import BadBatch, walk_headers
from fairlead_broker.log.segments.segment_writer import SegmentWriter, open_empty_writer
from fairlead_broker.log.segments.segments import INDEX_SUFFIXES, LOG_SUFFIX, Segment, SegmentCache
from fairlead_broker.log.segments.storage import Storage
from fairlead_broker.log.synced_offsets import SyncedOffset

_NAME_DIGITS = 20


def open_log(
    storage: Storage,
    folder: Path,
    config: TopicConfig,
    health: DirectoryHealth,
    cache: SegmentCache,
    checkpoint: PartitionCheckpoint | None,
    synced: SyncedOffset,
    *,
    durable: bool,
) -> PartitionLog:
    """Open the log in a partition's folder. An existing log is recovered.

    Raises `StorageFailed`, `Shortage` or `UnknownFormat`. `durable`: whether the folder exists, and all its files and
    names are known to be on the disk.
    """
    with health:
        try:
            return _Opening(storage, folder, config, cache, checkpoint, synced, durable).run(health)
        except OSError as error:
            raise wrap_os_error(error, f"{folder}: cannot open the log") from error


class _Opening:
    """The steps of opening one partition log."""

    def __init__(
        self,
        storage: Storage,
        folder: Path,
        config: TopicConfig,
        cache: SegmentCache,
        checkpoint: PartitionCheckpoint | None,
        synced: SyncedOffset,
        durable: bool,
    ) -> None:
        self._storage = storage
        self._folder = folder
        self._config = config
        self._cache = cache
        self._checkpoint = checkpoint
        self._synced = synced
        self._durable = durable
        self._names: frozenset[str] = frozenset()
        """Names of the files in the folder, as last listed."""

    def run(self, health: DirectoryHealth) -> PartitionLog:
        log_start = self._checkpoint.log_start if self._checkpoint else Offset(0)
        self._make_folders()
        segments = self._list_segments(log_start)
        existed = bool(segments)
        if not segments or (self._checkpoint and segments[0].base_offset > log_start):
            # The files before the first segment are missing. With an empty segment at the log start, the missing
            # files become a gap, which the recovery handles like other gaps.
            self._make_first(log_start)
            segments = self._list_segments(log_start)
        # Without a checkpoint entry, no byte is known to be synced.
        point = self._checkpoint.recovery_point if self._checkpoint else segments[0].base_offset
        synced = max(point, self._synced.offset or Offset(0))
        recovery = Recovery(self._storage, self._folder, self._config, segments, point, synced, self._names)
        writer = recovery.run()
        end = writer.segment.next_offset
        # Batches below the log start, and their epochs, no longer belong to the log.
        last_epoch = recovery.last_epoch if end > log_start else None
        epochs = self._open_epochs(recovery.segments, end, last_epoch)
        producers = LoggedProducers(self._storage)
        producers.rebuild(recovery.segments, end, self._names)
        log = PartitionLog(
            self._storage,
            self._folder,
            self._config,
            health,
            recovery.segments,
            writer,
            epochs,
            producers,
            recovery.report,
            self._synced,
        )
        known = self._checkpoint.damaged if self._checkpoint else ()
        high_watermark = self._checkpoint.high_watermark if self._checkpoint else Offset(0)
        if self._checkpoint and self._checkpoint.cleaning:
            log.set_cleaning(self._checkpoint.cleaning)
        log.set_start(log_start, synced, high_watermark, (*known, *recovery.report.damaged))
        if self._checkpoint:
            log.note_deleted(min(self._checkpoint.deleted_to, log.log_start_offset))
        if existed and not self._durable:
            self._keep_the_end(writer)
        return log

    def _keep_the_end(self, writer: SegmentWriter) -> None:
        """Sync the last file, which a killed process may have truncated without a sync.

        No later sync would make the truncation durable, because a log that ends at its synced offset is not
        synced again. After a power failure the truncated bytes would reappear.
        """
        body = writer.segment.body
        if body is not None:
            body.file.sync()

    def _make_folders(self) -> None:
        """Create the partition's folder, or sync the file names in an existing folder, unless they are durable.

        A killed process may have created or removed files without a sync. The names that this start reads
        must be durable, so that the next start reads the same names.
        """
        topic = self._folder.parent
        if self._durable:
            return
        while True:
            # Another thread may be opening another partition of the topic, and may have created the topic's folder
            # without syncing it yet, so the folder's name is synced here in any case.
            self._storage.make_folder(topic)
            try:
                self._storage.sync_folder(topic.parent)
                self._storage.make_folder(self._folder)
            except FileNotFoundError:
                continue  # Another thread may have deleted the topic's last partition and folder.
            break
        self._storage.sync_folder(topic)
        self._storage.sync_folder(self._folder)

    def _make_first(self, base_offset: Offset) -> None:
        segment = Segment(self._storage, self._folder, base_offset, self._cache)
        open_empty_writer(self._storage, segment, self._config)
        self._storage.sync_folder(self._folder)

    def _list_segments(self, log_start: Offset) -> list[Segment]:
        """Return the segments in order, after deleting files that an interrupted removal left behind."""
        names = finish_swaps(self._storage, self._folder)
        self._names = frozenset(names)
        bases = sorted(int(name[:_NAME_DIGITS]) for name in names if _is_segment(name, LOG_SUFFIX))
        kept = set(bases)
        for name in names:
            if _is_segment(name, TEMPORARY_SUFFIX):
                self._storage.unlink(self._folder / name)
            if _is_segment(name, INDEX_SUFFIXES) and int(name[:_NAME_DIGITS]) not in kept:
                self._storage.unlink(self._folder / name)
        segments = [Segment(self._storage, self._folder, Offset(base), self._cache) for base in bases]
        for segment, following in itertools.pairwise(segments):
            segment.next_offset = following.base_offset
        below = [segment for segment in segments[:-1] if segment.next_offset <= log_start]
        for segment in below:
            segment.unlink()
        return segments[len(below) :]

    def _open_epochs(
        self, segments: Sequence[Segment], end: Offset, last_epoch: LeaderEpoch | None
    ) -> LeaderEpochs:
        epochs = LeaderEpochs(self._storage, self._folder)
        # A list that has lost whole entries looks complete. Only the epoch of the last batch reveals missing entries.
        lacks_last = last_epoch is not None and all(entry.epoch != last_epoch for entry in epochs.entries)
        if (lacks_last or not epochs.complete) and end > segments[0].base_offset:
            epochs.replace(_epochs_from(segments, epochs.entries))
        epochs.cut(end)
        return epochs


def _is_segment(name: str, suffix: str | tuple[str, ...]) -> bool:
    return name.endswith(suffix) and name[:_NAME_DIGITS].isdecimal() and name[_NAME_DIGITS:].startswith(".")


def _epochs_from(segments: Sequence[Segment], known: Sequence[EpochStart]) -> list[EpochStart]:
    """Return the known epochs and the epochs of later batches. Other epochs that have no batches are left out."""
    entries = list(known)
    start = entries[-1].start_offset if entries else Offset(0)
    for epoch, base_offset in _epochs_of_batches(segments, start):
        if not entries or epoch > entries[-1].epoch:
            entries.append(EpochStart(epoch, base_offset))
    return entries


def _epochs_of_batches(segments: Sequence[Segment], start: Offset) -> Iterator[tuple[LeaderEpoch, Offset]]:
    for segment in segments:
        if segment.next_offset <= start:
            continue
        body = segment.load()
        try:
            for batch in walk_headers(body.file, 0, body.size, None):
                yield LeaderEpoch(batch.header.leader_epoch), Offset(batch.header.base_offset)
        except BadBatch:
            # The recovery has already reported the damage. Epochs of later batches are read from the next segment.
            continue
