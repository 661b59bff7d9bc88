"""The log of one partition: append, sync, read and truncate, and the offsets that these operations have reached.

`runtime` calls the log: appends and syncs from its disk pool, cached reads from the event loop. One thread appends at a
time. Any number of reads may run during an append; they return only published bytes, which an append publishes after
its write. A sync may run during appends and reads. The log must not know about replication, rules for the high
watermark, or time: the offset limit of readers and the time are arguments. This code is in one file because append,
sync (`SyncPoint`), truncation and reset share these offsets:

    log start <= ... <= synced <= end        synced = recovery point: everything below is on the disk
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Lock, RLock
from typing import Final

from msgspec.structs import replace

from fairlead_api.configuration import Durability, TopicConfig
from fairlead_api.identifiers import LeaderEpoch, Offset, ProducerId, TimestampUs
from fairlead_broker.compaction.cleanable import CleaningState
from fairlead_broker.log.aborted_index import first_offset, without_aborted
from fairlead_broker.log.cleaning.rounds import GroupCleaned, RoundDone
from fairlead_broker.log.cleaning.swap import begin_swap, drop_cleaned, finish_swap
from fairlead_broker.log.copies import first_offsets, read_copies
from fairlead_broker.log.errors import LogCut, LogDamaged, LogError, Shortage, StorageFailed, wrap_os_error
from fairlead_broker.log.health import DirectoryHealth
from fairlead_broker.log.leader_epochs import EpochStart, LeaderEpochs
from fairlead_broker.log.producer_snapshots import LoggedProducers
from fairlead_broker.log.readable_log import ReadableLog
from fairlead_broker.log.recovery import RecoveryReport
from fairlead_broker.log.segments.batch_walk import BadBatch
from fairlead_broker.log.segments.damage import DamagedRange, merge_ranges, ranges_within
from fairlead_broker.log.segments.dropped_segments import (
    TIME_MAX,
    TIME_MIN,
    DroppedSegments,
    make_starts_durable,
)
from fairlead_broker.log.segments.reading import LogRead
from fairlead_broker.log.segments.segment_writer import (
    SegmentWriter,
    StampedBatch,
    WriterMark,
    find_end,
    open_empty_writer,
    unlink_added,
)
from fairlead_broker.log.segments.segments import Segment
from fairlead_broker.log.segments.storage import File, Storage
from fairlead_broker.log.synced_offsets import SyncedOffset, SyncedOffsets
from fairlead_broker.producers import ProducerEntry


@dataclass(frozen=True, slots=True)
class SyncPoint:
    """State of the log that a sync covers."""

    generation: int
    """Number of truncations so far: after a truncation the same offsets belong to other records. A truncation
    changes the log's end before the generation, and `sync_point` reads the generation before the end, so the end in
    a `SyncPoint` is never older than its generation.
    """
    end_offset: Offset
    names: int
    """Number of files created so far. A sync must also make the directory entries of these files durable."""
    segments: tuple[Segment, ...]
    files: tuple[File, ...]

    def forget_files(self) -> None:
        """Release the files of closed segments once their bytes are written to the disk."""
        for segment in self.segments:
            # This sync did not write out the index files of a segment that was closed during the sync.
            segment.forget_files(self.files)


def unsynced_segments(segments: Sequence[Segment], synced: Offset) -> Iterator[Segment]:
    """Yield the segments that have batches beyond an offset, newest first."""
    for segment in reversed(segments):
        if segment.next_offset > synced or segment.unsynced_files:
            yield segment
        elif segment.next_offset > segment.base_offset:
            return


FULL_BYTES: Final = 64 << 20
"""Free bytes of a volume below which the files of dropped segments are removed immediately."""


class PartitionLog(ReadableLog):
    """The open log in one partition's folder, created by `LogDirectory.open_partition`."""

    def __init__(
        self,
        storage: Storage,
        folder: Path,
        config: TopicConfig,
        health: DirectoryHealth,
        segments: Sequence[Segment],
        writer: SegmentWriter,
        epochs: LeaderEpochs,
        producers: LoggedProducers,
        report: RecoveryReport,
        stored: SyncedOffset,
    ) -> None:
        super().__init__(folder, segments, writer.segment.next_offset, epochs)
        self.producers = producers
        """Producer state at the end of the log."""
        self.recovery_report = report
        """Findings of the recovery that ran when the log was opened."""
        self.checkpoint_high_watermark = Offset(0)
        """High watermark for the checkpoint; the leader or follower replica that uses the log sets it at each change.
        The initial value is the high watermark of the last checkpoint, clamped to the range from log start to log end.
        """
        self.cleaning = CleaningState()
        """Facts about the cleaning of the log, which the next checkpoint makes durable."""
        self.deleted_to = Offset(0)
        """Offset below which records were deleted on request, and not only by retention."""
        self._storage = storage
        self._config = config
        self._health = health
        self._dropped = DroppedSegments()
        self._writer = writer
        self._synced = self._log_start
        self._stored = stored
        # Number of files created so far, and number of durable file names. Initially the number of files exceeds the
        # number of durable names by one, because after a process was killed, the names of existing files may still be
        # in memory only.
        self._names = 1
        self._names_synced = 0
        # A thread that needs both the write lock and the sync lock acquires the write lock first. The write lock
        # serialises all changes to the log. The sync lock serialises syncs, because the kernel reports a failed
        # write-back to only one of two concurrent callers.
        self._write_lock = RLock()
        self._sync_lock = Lock()

    # ------------------------------------------------------------------------------------------ offsets

    @property
    def synced_offset(self) -> Offset:
        """Recovery point: every record below this offset survives a power failure."""
        return self._synced

    @property
    def size_bytes(self) -> int:
        """Total size of all batches. The first call reads the size of every closed segment from the file system."""
        return sum(segment.size for segment in self._segments)

    @property
    def config(self) -> TopicConfig:
        """Topic configuration in use."""
        return self._config

    def set_start(
        self, log_start: Offset, synced: Offset, high_watermark: Offset, damaged: Sequence[DamagedRange]
    ) -> None:
        """Apply the offsets of the checkpoint, clamped to the range of the files, before the log is used."""
        end = self._end
        self._log_start = min(max(log_start, self._segments[0].base_offset), end)
        self._synced = min(max(synced, self._log_start), end)
        self.checkpoint_high_watermark = min(max(high_watermark, self._log_start), end)
        self.damaged = merge_ranges(damaged, self._log_start, end)

    def set_cleaning(self, state: CleaningState) -> None:
        """Replace the facts about the cleaning, clamped to the end of the log."""
        end = int(self._end)
        self.cleaning = replace(state, cleaned=min(state.cleaned, end), rewritten=min(state.rewritten, end))

    def on_offsets_moved(self, write_checkpoint: Callable[[], None]) -> None:
        """Set the function that writes the checkpoint, which makes a moved log start durable before files change."""
        self._write_checkpoint = write_checkpoint

    # ------------------------------------------------------------------------------------------ appending

    def begin_epoch(self, epoch: LeaderEpoch) -> None:
        """Durably record that a leader epoch starts at the end of the log, before the first write in that epoch.

        Raises `StaleLeaderEpoch` unless the epoch exceeds every known epoch; also raises `Shortage` or `StorageFailed`.
        """
        with self._write_lock:
            self._check_writable()
            with self._health:
                self._epochs.begin(epoch, self._end)

    def append(self, batches: Sequence[StampedBatch], *, end_offset: Offset | None = None) -> None:
        """Append batches to the log atomically and publish them to readers, without a sync.

        Raises `LogCut` if the log does not end at the caller's `end_offset`, `Shortage` (no batch was kept, later
        appends may succeed) or `StorageFailed` (later appends fail until a restart).
        """
        if not batches:
            return
        with self._write_lock:
            self._check_writable()
            if self._health.reserve.missing:
                self._health.reserve.check()
            self._check_end(end_offset)
            assert batches[0].base_offset >= self._end, f"{batches[0].base_offset} < {self._end}"
            writer, mark, segments = self._writer, self._writer.mark(), self._segments
            with self._health:
                try:
                    self._append(batches)
                except Shortage:
                    self._take_back(writer, mark, segments)
                    raise
                # The offsets are updated last, since readers and syncs read the offsets before other state.
                self._end = self._writer.segment.next_offset
                self._writer.flush_index()
                self.producers.appended(
                    batches,
                    self._segments[len(segments) :],
                    self._log_start,
                    self.checkpoint_high_watermark,
                )

    def append_copies(
        self,
        data: memoryview,
        end_offset: Offset | None = None,
        leader_epoch: LeaderEpoch | None = None,
        *,
        may_cut: bool = False,
    ) -> None:
        """Append whole batches from the leader of an epoch unchanged, with the epochs in the batch headers.

        `may_cut`: whether the log may first be cut to the base offset of the first batch, which the leader has merged
        with earlier batches.

        Raises `LogCut` if the log no longer ends at the `end_offset` for which the batches were requested, or
        `BadCopy`; no batch is kept after either error. Raises `Shortage`, after which some of the batches may be
        kept, or `StorageFailed`.
        """
        with self._write_lock:
            self._check_writable()
            self._check_end(end_offset)
            start, deleted_to = self._log_start, self.deleted_to
            cut = self._cut_to_merged(data, may_cut=may_cut)
            for run in read_copies(data, self._end, self.last_epoch, leader_epoch):
                with self._health:
                    self._epochs.take_over(run.epoch, run.start_offset, self._end)
                self.append(run.batches)
            if cut:
                # Bytes that were already reported as synced are synced again.
                self.sync()
            if start > self._log_start:
                # The bytes were synced first: after a crash, a recovery point within unsynced bytes would be incorrect.
                self._log_start = start
                self.checkpoint_high_watermark = max(self.checkpoint_high_watermark, start)
                self.note_deleted(deleted_to)

    def _cut_to_merged(self, data: memoryview, *, may_cut: bool) -> bool:
        """Durably cut the log if it ends inside the first batch in `data`. Returns whether the log was cut.

        A leader merges batches, and may delete records up to an offset inside a batch; it sends the whole batch. If the
        log start is inside the batch too, the log is restarted at the base offset of the batch, and the caller moves
        the log start up again. An empty log has nothing to lose, so `may_cut` does not matter for it.

        Raises `LogCut` if no batch of the log ends where the leader's batch begins.
        """
        start, end = self._log_start, self._end
        if not data or not (may_cut or start == end):
            return False
        base, last = first_offsets(data)
        if not base < end <= last:
            return False
        if base < start:
            self.restart_at(base, self.epoch_before(base))
        elif self.truncate_to(base) != base:
            raise LogCut(self.folder, self._end, base)
        return True

    def skip_to(self, offset: Offset, lost_epochs: Iterable[EpochStart]) -> None:
        """Durably move the log's end forward to an offset, by starting a new segment there.

        Records between the old end and the offset are lost. A follower skips records whose loss its leader has
        accepted: the follower's readers also skip them, and their offsets are not assigned again. `lost_epochs`: epochs
        of the lost records, as in the leader's list. Raises `Shortage`, after which the log is unchanged, or
        `StorageFailed`.
        """
        with self._write_lock:
            self._check_writable()
            end, damaged, segments = self._end, self.damaged, self._segments
            writer, mark = self._writer, self._writer.mark()
            with self._health:
                try:
                    self._epochs.take_over_lost(lost_epochs, end)
                    self._roll(base_offset=offset)
                    self._end_at(offset, (*damaged, DamagedRange(end, offset, accepted=True)))
                    self.sync()
                    self._write_checkpoint()
                except Shortage:
                    # The log would end at `end` after the next start, so no higher offset may be reported to the
                    # leader.
                    with self._sync_lock:
                        # If the stored offset cannot be lowered, the next start reports the skipped records as damage.
                        with suppress(Shortage):
                            self._stored.lower(end)
                        self._epochs.forget(end)
                        self._end_at(end, damaged)
                        self._synced, self._generation = min(self._synced, end), self._generation + 1
                    self._take_back(writer, mark, segments)
                    raise
                self.producers.rolled(self._writer.segment, self._log_start)

    def roll_if_due(self, now_us: TimestampUs) -> bool:
        """Close the last segment if its first batch is older than `segment.ms`, so that the segment can expire."""
        if not self._writer.is_due(now_us):
            return False
        with self._write_lock:
            return self._writer.is_due(now_us) and self.roll()

    def roll(self) -> bool:
        """Close the last segment, so that it can be cleaned. Returns False if the segment has no batch."""
        with self._write_lock:
            self._check_writable()
            if not self._writer.segment.size:
                return False
            with self._health:
                self._roll()
                self.producers.rolled(self._writer.segment, self._log_start)
        return True

    def save_producers_if_due(self) -> None:
        """Save the producer state to a snapshot file if many batches were appended since the last snapshot."""
        with self._write_lock, self._health:
            if not self._closed and self._health.failure is None:
                self.producers.save_if_due(self._writer.segment, self._end)

    def update_config(self, config: TopicConfig) -> None:
        """Replace the topic configuration that the log uses."""
        with self._write_lock:
            self._config = config
            self._writer.update_config(config)

    # ------------------------------------------------------------------------------------------ syncing

    def sync(self) -> Offset:
        """Write out every batch up to the current end and return the synced offset.

        After the first error the whole directory fails with `StorageFailed`, and the sync is never retried: the
        kernel may have dropped pages that it could not write, and a second sync would succeed without these
        pages.
        """
        with self._sync_lock:
            self._health.check()
            if (point := self.sync_point()) is None:
                return self._synced
            try:
                for file in point.files:
                    file.sync()
                if point.names != self._names_synced:
                    self._storage.sync_folder(self.folder)
            except OSError as error:
                raise self.mark_sync_failed(error) from error
            with self._health:
                if self._store_synced(point):
                    self._stored.file.write()
            self._publish_synced(point)
            return self._synced

    def sync_point(self) -> SyncPoint | None:
        """Return the state that the next sync must cover, or None if every batch is synced."""
        generation, end, names = self._generation, self._end, self._names
        if end <= self._synced and names == self._names_synced:
            return None
        unsynced = tuple(unsynced_segments(self._segments, self._synced))
        files = tuple(file for segment in unsynced for file in segment.files_to_sync())
        return SyncPoint(generation, end, names, unsynced, files)

    @property
    def synced_offsets(self) -> SyncedOffsets:
        """File that stores the synced offsets of all partitions in the directory."""
        return self._stored.file

    def note_synced(self, point: SyncPoint) -> None:
        """Change the stored synced offset to the end of `point`, which a sync of the whole volume has made durable.

        The caller writes `synced_offsets` before it calls `mark_synced`.
        """
        with self._sync_lock:
            self._store_synced(point)

    def mark_synced(self, point: SyncPoint) -> Offset:
        """Publish the end of `point` as synced after `note_synced`, and return the synced offset."""
        with self._sync_lock:
            self._health.check()
            self._publish_synced(point)
            return self._synced

    def mark_sync_failed(self, error: OSError) -> StorageFailed:
        """Record that a sync of a file or of the whole volume failed, and return the error of this directory."""
        failed = StorageFailed(f"{self.folder}: cannot sync: {error.strerror or error}")
        failed.__cause__ = error
        return self.mark_failed(failed)

    def mark_failed(self, failed: StorageFailed) -> StorageFailed:
        """Record a failure of the directory, and return the first failure."""
        return self._health.fail(failed)

    # ------------------------------------------------------------------------------------------ aborted transactions

    def without_aborted(self, read: LogRead) -> list[memoryview] | None:
        """Return the batches of a read without the batches of aborted transactions.

        Returns None if `load_aborted` must be called first. The read must end at or below the last stable offset.
        """
        aborted = self.producers.aborted.between(Offset(first_offset(read.data)), read.next_offset)
        if aborted is None:
            return None
        return without_aborted(read.data, aborted) if aborted else [read.data]

    def load_aborted(self) -> None:
        """Read the aborted transactions of closed segments. The call may wait for the disk. Raises `StorageFailed`."""
        self.producers.aborted.load(lambda: self._segments)

    # ------------------------------------------------------------------------------------------ shortening

    def truncate_to(self, offset: Offset) -> Offset:
        """Durably drop every batch that ends beyond an offset, and every epoch that starts at or after the new end.

        Returns the new end, which is below the offset if the offset was inside a batch. The caller must ensure
        that no reader is given the dropped batches.
        """
        with self._write_lock, self._sync_lock:
            self._check_writable()
            if offset > self._end:
                return self._end
            with self._health:
                try:
                    if offset < self._end:
                        self._truncate(offset)
                    # Epochs that start at the log's end are also dropped: if an epoch without records remained, the
                    # logs of the leader and the follower would never agree.
                    self._epochs.cut(self._end - 1)
                except OSError as error:
                    raise wrap_os_error(error, f"{self.folder}: cannot truncate to {offset}") from error
                except BadBatch as bad:
                    path = self._segment_of(offset).path
                    raise LogDamaged(path, offset, Offset(offset + 1), str(bad)) from bad
            return self._end

    def restart_at(self, offset: Offset, deleted: EpochStart | None = None) -> None:
        """Durably drop every batch and leader epoch, and start an empty log at an offset.

        A follower restarts its log when the leader has none of the follower's records. `deleted` is the epoch of
        the record before the offset, if that epoch is known. After a crash during the call, or after `Shortage`,
        the log is either unchanged, or empty at its old or new offset with its old epoch: in each case it still
        diverges from the leader's log.
        """
        with self._write_lock, self._sync_lock:
            self._check_open()
            with self._health:
                try:
                    self._empty(offset)
                    self._begin_at(offset)
                    # The epoch is replaced last: the new epoch would be wrong at any other offset, and an empty log
                    # without an epoch diverges from no leader.
                    self._epochs.replace(() if deleted is None else (deleted,))
                except OSError as error:
                    # The log's files have been deleted, so a batch appended now would go to a file without a name.
                    message = f"{self.folder}: cannot restart the log at {offset}: {error}"
                    raise StorageFailed(message) from error

    def advance_log_start(self, offset: Offset, *, remove_us: TimestampUs = TIME_MIN) -> list[Segment]:
        """Durably move the log start to a later offset, and then drop the segments that end at or below the log start.

        Returns the dropped segments, whose files are removed at `remove_us`. Raises `OffsetOutOfRange` for an
        offset above the high watermark, because uncommitted records cannot be deleted.
        """
        with self._write_lock:
            before = self._log_start, self._synced
            if not self.move_log_start(offset):
                return []
            with self._health:
                try:
                    # The log start must be durable before files are removed: a broker that starts and misses files
                    # above the stored log start reports damage.
                    make_starts_durable(self._write_checkpoint, (self,))
                except Shortage:
                    self._log_start, self._synced = before
                    raise
            return self.drop_below_start(remove_us)

    def delete_to(self, offset: Offset, *, remove_us: TimestampUs = TIME_MIN) -> list[Segment]:
        """Delete records on request: move the log start like `advance_log_start`, and durably remember the offset.

        An offset below the log start is remembered too. Raises like `advance_log_start`.
        """
        with self._write_lock:
            before, start = self.deleted_to, self._log_start
            self.deleted_to = max(before, offset)
            try:
                gone = self.advance_log_start(offset, remove_us=remove_us)
                if before < offset <= start:
                    self._write_checkpoint()
            except LogError:
                self.deleted_to = before
                raise
            return gone

    def note_deleted(self, offset: Offset) -> None:
        """Remember that records below an offset were deleted on request; the next checkpoint makes it durable.

        The event loop calls this method while a disk thread may hold the lock, so the method takes no lock.
        """
        self.deleted_to = max(self.deleted_to, min(offset, self._end))

    def move_log_start(self, offset: Offset) -> bool:
        """Move the log start for readers, and return False if the log already starts there.

        Raises `OffsetOutOfRange` like `advance_log_start`. A caller moves the log starts of many partitions,
        makes all of these log starts durable by one checkpoint, and only then calls `drop_below_start`.
        """
        with self._write_lock:
            self._check_open()
            if offset > self.checkpoint_high_watermark:
                self._out_of_range(offset)
            if offset <= self._log_start:
                return False
            self._log_start, self._synced = offset, max(self._synced, offset)
            return True

    def drop_below_start(self, remove_us: TimestampUs) -> list[Segment]:
        """Drop the segments wholly below the checkpointed log start. The segments' files are removed at `remove_us`."""
        with self._write_lock:
            gone = [segment for segment in self._segments[:-1] if segment.next_offset <= self._log_start]
            self._segments = self._segments[len(gone) :]
            self._dropped.add(gone, remove_us)
            # On a full disk, appends need the space of all dropped files. Readers that have a file open can read it
            # after its removal.
            is_full = self._storage.free_bytes(self.folder) < FULL_BYTES
            self.remove_dropped(TIME_MAX if is_full else TIME_MIN)
            # On a full disk, the list of epochs stays longer than necessary, which is harmless.
            with suppress(Shortage), self._health:
                self._epochs.trim(self._log_start)
            return gone

    def remove_dropped(self, now_us: TimestampUs) -> None:
        """Remove the files of dropped segments whose removal is due.

        Readers may use a dropped segment until its files are removed. Appends may run during the removal, since the
        file system may need a long time to remove a full segment.
        """
        with self._health:
            self._dropped.remove_due(now_us)
        released = self._dropped.release_due(now_us)
        if released is not None:
            # Only until now could reads of replaced segments find batches of these aborted transactions.
            self.producers.aborted.drop_below(min(released, Offset(self.cleaning.cleaned)))

    # ------------------------------------------------------------------------------------------ cleaning

    def swap(self, group: GroupCleaned, generation: int, release_us: TimestampUs) -> bool:
        """Durably replace a group of segments with the cleaned segment, whose files are written and synced.

        Readers may use the old segments until `release_us`. Returns False, and removes the cleaned files, if the log
        has been cut since `generation`, or no longer has all of these segments. Raises `StorageFailed`, or `Shortage`,
        after which the log is unchanged.
        """
        with self._write_lock:
            self._check_writable()
            old = [each for each in self._segments[:-1] if each.base_offset in group.base_offsets]
            with self._health:
                try:
                    if not self._may_swap(old, group, generation):
                        drop_cleaned(self._storage, self.folder)
                        return False
                    self._announce(group)
                    for segment in old:
                        segment.keep_open()
                    first = old[0].base_offset
                    begin_swap(self._storage, self.folder, first)
                    finish_swap(self._storage, self.folder, first, [each.base_offset for each in old[1:]])
                except OSError as error:
                    # The next start decides which of the two segments takes effect.
                    message = (
                        f"{self.folder}: cannot replace segment {group.base_offsets[0]}: {error.strerror}"
                    )
                    raise StorageFailed(message) from error
            fresh = old[0].successor(old[0].base_offset)
            fresh.next_offset = group.next_offset
            at = self._segments.index(old[0])
            self._segments = (*self._segments[:at], fresh, *self._segments[at + len(old) :])
            self._dropped.hold(old, release_us)
            self.cleaning = replace(self.cleaning, removed=max(self.cleaning.removed, int(group.removed_to)))
            return True

    def _announce(self, group: GroupCleaned) -> None:
        """Durably record what a swap may remove and rewrite, before it takes effect. Raises `Shortage`.

        Only a completed swap raises `removed`: a replica whose `removed` is too high would continue at its end although
        it has records that its leader has deleted.
        """
        before = self.cleaning
        removes, rewrites = int(group.removed_to), int(group.cleaned_to)
        if removes <= before.lacks_below and rewrites <= before.differs_below:
            return
        self.cleaning = replace(
            before, removing=max(before.removing, removes), rewritten=max(before.rewritten, rewrites)
        )
        try:
            self._write_checkpoint()
        except Shortage:
            self.cleaning = before
            # The files of the group may be large.
            drop_cleaned(self._storage, self.folder)
            raise

    def stable_offset(self) -> Offset:
        """Return the offset below which all records are committed and all transactions ended, as far as known here."""
        with self._write_lock:
            transactions = self.producers.state.transactions
            return transactions.stable_offset(self.checkpoint_high_watermark, self._log_start)

    def free_bytes(self) -> int:
        """Return the free bytes of the volume."""
        return self._storage.free_bytes(self.folder)

    def remembered_batches(self) -> tuple[list[Offset], list[Offset], list[tuple[int, int]]]:
        """Return the batches and markers to which the producer state refers, and which cleaning must therefore keep.

        The lists contain the base offsets of the last batches of producers, the base offsets of batches with an
        idempotency key, and the producer id and epoch of the last markers of transactional producers.
        """
        with self._write_lock:
            producers, keys = self.producers.state.producers, self.producers.state.keys
            # The sequences of a Kafka client continue from its last transaction, so its last batch stays as well.
            batches = [batch.base_offset for entry in producers.values() for batch in entry.batches]
            markers = [(number, int(entry.epoch)) for number, entry in producers.items() if entry.is_ended]
            return batches, [entry.base_offset for entry in keys.values()], [(int(a), b) for a, b in markers]

    def remembered_producers(self) -> list[tuple[ProducerId, ProducerEntry]]:
        """Return the producers that the log remembers, the least recently active first."""
        with self._write_lock:
            return list(self.producers.state.producers.items())

    def note_removed(self, removed_to: Offset) -> None:
        """Durably record that tombstones and markers below an offset are missing in the source of a mirror.

        Raises `Shortage` or `StorageFailed`.
        """
        with self._write_lock:
            if removed_to > self.cleaning.removed:
                before = self.cleaning
                self.cleaning = replace(before, removed=removed_to)
                try:
                    self._write_checkpoint()
                except Shortage:
                    self.cleaning = before
                    raise

    def take_removed(self, removed: Offset) -> None:
        """Durably replace the offset below which tombstones are missing, after the log was restarted.

        Raises `Shortage` or `StorageFailed`.
        """
        self._set_removed(removed, removed)

    def lower_removed(self, lacks_below: Offset) -> None:
        """Durably lower the offset below which tombstones may be missing, before the leader's batches are appended.

        Raises `Shortage` or `StorageFailed`.
        """
        with self._write_lock:
            self._set_removed(min(self.cleaning.removed, lacks_below), lacks_below)

    def _set_removed(self, removed: int, lacks_below: int) -> None:
        with self._write_lock:
            changed = replace(self.cleaning, removed=int(removed), removing=int(lacks_below))
            if changed != self.cleaning:
                before, self.cleaning = self.cleaning, changed
                try:
                    self._write_checkpoint()
                except Shortage:
                    # The next attempt must write the checkpoint before any batch is appended.
                    self.cleaning = before
                    raise

    def note_cleaned(self, done: RoundDone, generation: int) -> bool:
        """Record the end of a round. The next checkpoint makes it durable; until then, a restart repeats the round.

        Returns False if the log has been cut since `generation`: records below the end of the round may be new.
        """
        with self._write_lock:
            if generation != self._generation:
                return False
            self.set_cleaning(
                replace(
                    self.cleaning,
                    cleaned=done.until,
                    oldest_horizon_us=done.oldest_horizon_us,
                    horizon_bytes=done.horizon_bytes,
                )
            )
            return True

    def drop_cleaned(self) -> None:
        """Remove the files left by a failed round, which may be large. Raises `StorageFailed`."""
        with self._write_lock:
            self._check_open()
            try:
                drop_cleaned(self._storage, self.folder)
            except OSError as error:
                raise wrap_os_error(
                    error, f"{self.folder}: cannot remove the files of a failed round"
                ) from error

    def _wait_for_swap(self) -> None:
        with self._write_lock:
            return

    def _may_swap(self, old: Sequence[Segment], group: GroupCleaned, generation: int) -> bool:
        if generation != self._generation or tuple(each.base_offset for each in old) != group.base_offsets:
            return False
        damaged = ranges_within(self.damaged, old[0].base_offset, group.next_offset)
        lost = tuple((each.first_offset, each.next_good_offset) for each in damaged)
        return (
            old[-1].next_offset == group.next_offset
            and all(each.accepted for each in damaged)
            and lost == group.lost
        )

    def close(self) -> None:
        """Write out buffered index entries and close the files. Methods must not be called after `close`.

        Reads in progress are completed. The call does not sync the log: an orderly stop syncs the log before
        closing it.
        """
        with self._write_lock, self._sync_lock:
            if not self._closed and self._health.failure is None:
                with self._health:
                    self._writer.flush_index(now=True)
                    self.producers.save_at_end(self._writer.segment, self._end)
            self._closed = True
            self._dropped.forget()

    # ------------------------------------------------------------------------------------------ inside

    def _append(self, batches: Sequence[StampedBatch]) -> None:
        start = 0
        while start < len(batches):
            count = self._writer.count_fitting(batches, start)
            if count == 0:
                self._roll(batches[:start])
                continue
            self._writer.append(batches[start : start + count] if count < len(batches) else batches)
            start += count

    def _roll(self, unpublished: Sequence[StampedBatch] = (), base_offset: Offset | None = None) -> None:
        """Start a new segment at or beyond the log's end. `unpublished`: batches already written beyond the log's end.

        Unless durability is `replicated`, the old segment is synced first. Without a sync of the old segment, a power
        failure could keep the new segment and lose the end of the old segment, which would look like damage. With
        `replicated`, an append must never wait for the sync of an unsynced log of up to a GiB.
        """
        old = self._writer
        # The file of aborted transactions is written before the segment is closed: once a sync covers the segment, the
        # file must be durable.
        aborted = self.producers.write_aborted(old.segment, unpublished)
        fresh = old.segment.successor(old.segment.next_offset if base_offset is None else base_offset)
        try:
            writer = open_empty_writer(self._storage, fresh, self._config)
        except OSError as error:
            raise wrap_os_error(error, f"{fresh.path}: cannot create") from error
        old.segment.next_offset = fresh.base_offset
        old.seal(aborted)
        self._names += 1
        self._segments = (*self._segments, fresh)
        self._writer = writer
        if self._config.durability is Durability.SYNCED:
            with self._sync_lock:
                try:
                    old.segment.sync_closed()
                except OSError as error:
                    raise self.mark_sync_failed(error) from error

    def _take_back(self, writer: SegmentWriter, mark: WriterMark, segments: tuple[Segment, ...]) -> None:
        """Undo a partial write of a group of batches."""
        added = self._segments[len(segments) :]
        self._segments, self._writer = segments, writer
        if writer.mark() != mark or added:
            writer.restore(mark)
        unlink_added(reversed(added))

    def _truncate(self, offset: Offset) -> None:
        kept = [segment for segment in self._segments if segment.base_offset <= offset] or [self._segments[0]]
        last = find_end(kept[-1], offset, self._config.index_interval_bytes)
        end = last.next_offset
        before = self._log_start, self._synced
        # If the log start is inside a dropped batch, the log start moves back to the base offset of the batch, so
        # that the batch can be fetched again.
        self._log_start, self._synced = min(self._log_start, end), min(self._synced, end)
        try:
            # The checkpoint is written before bytes are removed: a broker that starts and misses bytes below the
            # stored recovery point reports damage.
            self._write_checkpoint()
            self._stored.lower(end)
        except Shortage:
            self._log_start, self._synced = before
            raise
        self._end, self._generation = end, self._generation + 1
        self.deleted_to = min(self.deleted_to, end)
        self.set_cleaning(self.cleaning)
        self.damaged = merge_ranges(self.damaged, self._log_start, end)
        self.checkpoint_high_watermark = min(self.checkpoint_high_watermark, end)
        for segment in reversed(self._segments[len(kept) :]):
            segment.unlink()
        if len(kept) < len(self._segments):
            self._storage.sync_folder(self.folder)
        self._segments = tuple(kept)
        self._writer = SegmentWriter.reopen(self._storage, kept[-1], last, self._config)
        self.producers.rebuild(self._segments, end)

    def _empty(self, restart: Offset) -> None:
        """Write a checkpoint without the segments, then remove the files of every segment, last segment first.

        `restart`: offset at which the log is restarted. The stored synced offset must not be above this offset.
        """
        before = self._log_start, self._synced, self._end, self.checkpoint_high_watermark, self.damaged
        self._log_start = self._synced = self._end = self._segments[0].base_offset
        self.checkpoint_high_watermark, self.damaged = self._end, ()
        try:
            self._write_checkpoint()
            self._stored.lower(min(self._end, restart))
        except Shortage:
            self._log_start, self._synced, self._end, self.checkpoint_high_watermark, self.damaged = before
            raise
        self._generation += 1
        self._dropped.remove_due(TIME_MAX)
        for segment in reversed(self._segments):
            segment.unlink()
        self._storage.sync_folder(self.folder)

    def _begin_at(self, offset: Offset) -> None:
        fresh = self._segments[-1].successor(offset)
        self._writer = open_empty_writer(self._storage, fresh, self._config)
        self._storage.sync_folder(self.folder)
        self._segments = (fresh,)
        self._names = self._names_synced = self._names + 1
        self._log_start = self._synced = self._end = self.checkpoint_high_watermark = offset
        self.deleted_to = min(self.deleted_to, offset)
        self.cleaning = replace(CleaningState(), cleaned=offset, removed=self.cleaning.removed)
        self._generation += 1
        self.producers.rebuild(self._segments, offset)
        self._write_checkpoint()

    def _store_synced(self, point: SyncPoint) -> bool:
        """Raise the stored synced offset to the end of `point`. Returns whether the offset has changed."""
        changed = (
            not self._closed and point.generation == self._generation and point.end_offset > self._synced
        )
        if changed:
            self._stored.note(point.end_offset)
        return changed

    def _publish_synced(self, point: SyncPoint) -> None:
        if point.generation != self._generation:
            return
        point.forget_files()
        self._names_synced = max(self._names_synced, point.names)
        self._synced = max(self._synced, point.end_offset)

    def _check_end(self, end_offset: Offset | None) -> None:
        """Raise `LogCut` unless the log ends where the writer expects: a write to a truncated log would leave a gap."""
        if end_offset is not None and end_offset != self._end:
            raise LogCut(self.folder, self._end, end_offset)

    def _check_writable(self) -> None:
        self._check_open()
        self._health.check()
