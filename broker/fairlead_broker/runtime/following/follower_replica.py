"""One partition that this broker follows: its log, and the state machine that decides what to fetch and truncate.

    answer ──▶ received ──▶ disk work ──▶ [disk pool] ──▶ done ──▶ state machine ──▶ more disk work, or the next fetch

A replica is owned by a `ReplicaFetcher` and runs on the event loop. Only `do` runs in the disk pool, one piece of work
at a time. The state machine of `replication` decides; the shell passes events to the state machine and executes its
effects.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeAlias

from fairlead_api.configuration import TopicConfig
from fairlead_api.identifiers import (
    Offset,
    TopicIdPartition,
)
from fairlead_broker.compaction.removal import Copying, copying, lowered_removed
from fairlead_broker.log import BadCopy, LogError, PartitionLog, StorageFailed
from fairlead_broker.log.copies import first_offsets
from fairlead_broker.peers.messages import EpochBegin, ReplicaFetchResult
from fairlead_broker.registry.metadata import Versioned
from fairlead_broker.registry.quorum import in_sync, relied_on
from fairlead_broker.registry.records import DurabilityState, PartitionRecord
from fairlead_broker.replication import (
    AdvanceHighWatermark,
    CopiesAppended,
    CopyDue,
    Diverged,
    EpochStart,
    Fetched,
    FetchOutOfRange,
    FollowerEffect,
    FollowerEvent,
    FollowerLogSynced,
    FollowerReport,
    MoveLogStart,
    PartitionFollower,
    ReportProgress,
    RestartAt,
    Restarted,
    SkipTo,
    Truncated,
    TruncateTo,
)
from fairlead_broker.runtime.engine.sync_rounds import ReplicaSync
from fairlead_broker.runtime.leading.shared_parts import SharedParts
from fairlead_broker.runtime.roles import Following


@dataclass(frozen=True, slots=True)
class AppendCopies:
    """Disk work that appends the leader's batches to the log."""

    data: memoryview
    end_offset: Offset
    """End of the log at the time of the fetch."""
    lacks_below: Offset | None = None
    """Offset below which the log may lack tombstones, lowered to this value before the append; None if unchanged."""


DiskWork: TypeAlias = AppendCopies | TruncateTo | RestartAt | SkipTo | MoveLogStart
"""Work on the disk that must finish before the next fetch of the partition."""


class FollowerReplica:
    """A replica of this broker that copies a leader's log."""

    def __init__(
        self,
        topic: str,
        key: TopicIdPartition,
        config: TopicConfig,
        log: PartitionLog,
        following: Following,
        record: Versioned[PartitionRecord],
        shared: SharedParts,
        report: Callable[[FollowerReplica, Offset], None],
    ) -> None:
        """`report` is called with each synced offset that must be reported to the leader."""
        self.topic = topic
        self.key = key
        self.topic_id = key.topic_id
        """Id of the topic."""
        self.index = key.partition
        """Number of the partition in its topic."""
        self.config = config
        """Effective configuration of the topic."""
        self.log = log
        """Log of the partition; synced by the sync rounds."""
        self.sync = ReplicaSync(self, config, shared.rounds, shared.clock, shared.sync_interval_seconds)
        """Object that marks appended bytes for the sync rounds."""
        self.following = following
        self.failed_fetches = 0
        """Number of consecutive failed fetches of the partition."""
        self.got_damaged = False
        """Whether the last received records were damaged; the next fetch reports the damage to the leader."""
        self.leader_end_offset: Offset | None = None
        """End of the leader's log according to the leader's last answer; None before the first answer in this leader
        epoch."""
        self._leader_removed: Offset | None = None
        """Offset below which the leader's log may lack tombstones; None before the first answer."""
        self._shared = shared
        self._report = report
        self._record = record
        self._end = log.end_offset
        self._closed = False
        self._idle = asyncio.Event()
        self._idle.set()
        self._machine = self._new_machine()

    # -- state for other components

    @property
    def closed(self) -> bool:
        """Whether this broker no longer follows the partition."""
        return self._closed

    @property
    def lag(self) -> int | None:
        """Number of offsets from this log's end to the leader's last reported end; None before the first answer."""
        if self.leader_end_offset is None:
            return None
        return max(0, self.leader_end_offset - self._end)

    @property
    def caught_up(self) -> bool:
        """Whether the replica is in the isr or a voter, or meets the conditions for it."""
        own = (self.following.broker, self.following.broker_epoch)
        if any((entry.broker, entry.broker_epoch) == own for entry in in_sync(self._record.value)):
            return True
        return self._machine.reconciled and self.lag == 0

    @property
    def is_added(self) -> bool:
        """Whether the replica is being added by a move and is not in sync yet."""
        record, broker = self._record.value, self.following.broker
        return broker in record.adding and all(entry.broker != broker for entry in in_sync(record))

    # -- fetching

    def next_fetch(self) -> FollowerReport | None:
        """Return the report for the next fetch; None while disk work is pending or the replica is closed."""
        return None if self._closed else self._machine.next_fetch()

    def received(self, result: ReplicaFetchResult) -> list[DiskWork]:
        """Pass the leader's answer to the state machine; return the resulting disk work."""
        if self._closed or result.leader_epoch != self.following.leader_epoch or self.next_fetch() is None:
            return []  # The answer belongs to an outdated fetch.
        self.leader_end_offset = result.end_offset
        if result.diverging is not None:
            epoch, end = result.diverging.epoch, result.diverging.end_offset
            own_end = self.log.end_offset_for_epoch(epoch)
            kept = end if own_end is None else min(end, own_end.end_offset)
            if kept < min(self.log.cleaning.differs_below, self._end) and not self._must_keep:
                # A round may have dropped records below the cut in favour of newer records above the cut.
                self._shared.copied_again()
                return self._step(CopyDue(result.log_start))
            return self._step(Diverged(epoch, end, own_end))
        self._leader_removed = result.removed
        self.log.note_deleted(result.deleted_to)
        end = self.log.end_offset
        state, base = self.log.cleaning, _cut_to(end, result)
        how = copying(end, state.removed, result.removed, base, own_removing=state.removing)
        if how is Copying.COPY_AGAIN and not self._must_keep:
            if self.log.end_offset > self.log.log_start_offset:
                self._shared.copied_again()
            return self._step(CopyDue(result.log_start))
        work = self._step(
            Fetched(
                result.leader_epoch,
                result.high_watermark,
                result.log_start,
                result.nbytes,
                result.next_offset,
                tuple(_begin_of(each) for each in result.lost_epochs),
            )
        )
        if result.data:
            lowered = None
            if how is Copying.LOWER:
                lowered = Offset(lowered_removed(end, result.removed, base))
            work.append(AppendCopies(result.data[0], self._end, lowered))
        return work

    def removal_limit(self) -> Offset:
        """Return the offset below which this replica may remove expired tombstones."""
        return self._leader_removed or Offset(0)

    def out_of_range(self, result: ReplicaFetchResult) -> list[DiskWork]:
        """Notify the state machine that the leader has no record at the fetch offset.

        Return the disk work that follows from the change.
        """
        if self._closed:
            return []
        deleted = None if result.epoch_before is None else _begin_of(result.epoch_before)
        return self._step(FetchOutOfRange(result.log_start, result.end_offset, deleted))

    def begin_work(self) -> None:
        """Reserve the log for disk work until `end_work` is called."""
        self._idle.clear()

    def end_work(self) -> None:
        """Release the log after disk work."""
        self._idle.set()

    def do(self, work: DiskWork) -> None:
        """Execute disk work. The call blocks and runs in the disk pool. Raises LogError."""
        match work:
            case AppendCopies(data, end_offset, lacks_below):
                if lacks_below is not None:
                    self.log.lower_removed(lacks_below)
                self.log.append_copies(
                    data, end_offset, self.following.leader_epoch, may_cut=not self._must_keep
                )
            case TruncateTo(offset):
                self.log.truncate_to(offset)
            case RestartAt(offset, deleted):
                self.log.restart_at(offset, deleted)
                if self._leader_removed is not None:
                    self.log.take_removed(self._leader_removed)
            case SkipTo(offset, lost_epochs):
                self.log.skip_to(offset, lost_epochs)
            case MoveLogStart(offset):
                # The new log start applies to readers at once. After the log start of every partition in the answer has
                # moved, the new log starts are made durable together, and the files are removed.
                self.log.move_log_start(min(offset, self.log.checkpoint_high_watermark))

    def done(self, work: DiskWork, error: LogError | None) -> list[DiskWork]:
        """Pass the outcome of disk work to the state machine; return the resulting disk work."""
        end = self.log.end_offset
        if isinstance(work, AppendCopies):
            self.got_damaged = isinstance(error, BadCopy)
        match work:
            case AppendCopies(data) if end >= self._end:
                records, self._end = end - self._end, end
                following = self._step(CopiesAppended(end, self.log.last_epoch))
                if records > 0:
                    self._shared.rounds.appended_bytes += len(data)
                    self.sync.appended(len(data), records, counts_synced=self._counts_synced)
            case TruncateTo() if error is None:
                self._end = end
                following = self._step(Truncated(end, self.log.last_epoch))
            case RestartAt() if error is None:
                self._end = end
                following = self._step(Restarted(end, self.log.last_epoch))
            case SkipTo() if error is None:
                self._end = end
                following = self._step(CopiesAppended(end, self.log.last_epoch))
                following += self._step(FollowerLogSynced(self.log.synced_offset))
            case MoveLogStart():
                following = []
            case _:
                # After a failure, the end offset can be read only from the log itself. A new state machine starts
                # from the log's end and reconciles with the leader again.
                self._end = end
                self._machine = self._new_machine()
                following = []
        if isinstance(error, StorageFailed):
            self._shared.directory_failed(error)
        return following

    # -- syncing, called by the rounds

    def synced(self, offset: Offset) -> None:
        """Notify the state machine that a sync round made more records of the log durable."""
        if self._closed:
            return
        # The offset from the sync round is not used, because the log may have been truncated since, or may have grown
        # without an event to the state machine.
        offset = min(self.log.synced_offset, self._end)
        self.sync.synced(offset, self._end)
        self._step(FollowerLogSynced(offset))

    # -- changes by other components

    def record_changed(self, record: Versioned[PartitionRecord]) -> None:
        """Apply a new version of the partition record in which this broker still follows the same leader."""
        self._record = record
        if self._counts_synced:
            self.sync.sync_at_once(self._end)

    def change_config(self, config: TopicConfig) -> None:
        """Apply a changed topic configuration. The log is updated separately, in the disk pool."""
        self.config = config
        self.sync.change_config(config)

    async def close(self) -> None:
        """Stop following the leader, and wait until no disk work uses the log."""
        self.end()
        await self.idle()

    def end(self) -> None:
        """Stop following the leader without waiting for disk work."""
        self._closed = True

    async def idle(self) -> None:
        """Wait until no disk work uses the log."""
        await self._idle.wait()

    @property
    def _counts_synced(self) -> bool:
        return self._record.value.durability is not DurabilityState.REPLICATED

    @property
    def _must_keep(self) -> bool:
        """Whether no record of this replica may be dropped, because only members of the isr and elr may have it.

        A leader merges batches and removes tombstones below the high watermark only. A voter whose log ends below such
        an offset did not count for that high watermark, so as many other voters as the write quorum needs have every
        record below it.
        """
        broker, record = self.following.broker, self._record.value
        return record.quorum is None and any(entry.broker == broker for entry in relied_on(record))

    # -- the state machine

    def _new_machine(self) -> PartitionFollower:
        following, log = self.following, self.log
        return PartitionFollower(
            following.broker,
            following.broker_epoch,
            following.generation,
            following.leader_epoch,
            log.end_offset,
            log.synced_offset,
            log.log_start_offset,
            log.checkpoint_high_watermark,
            log.last_epoch,
        )

    def _step(self, event: FollowerEvent) -> list[DiskWork]:
        work: list[DiskWork] = []
        for effect in self._machine.step(event):
            self._run_effect(effect, work)
        return work

    def _run_effect(self, effect: FollowerEffect, work: list[DiskWork]) -> None:
        match effect:
            case AdvanceHighWatermark(offset):
                self.log.checkpoint_high_watermark = offset
            case ReportProgress(offset):
                if self._counts_synced:
                    self._report(self, offset)
            case _:
                work.append(effect)


def _cut_to(end_offset: Offset, result: ReplicaFetchResult) -> Offset | None:
    """Return the base offset of an answer's first batch if below the log's end; None for other and bad batches."""
    data = result.data[0] if result.data else memoryview(b"")
    if int.from_bytes(data[:8], "little") >= end_offset:
        return None
    with suppress(BadCopy, StopIteration):
        return first_offsets(data)[0]
    return None


def _begin_of(begin: EpochBegin) -> EpochStart:
    return EpochStart(begin.epoch, begin.start_offset)
