"""One partition that this broker leads, owned by one task.

    produce ──▶ queue ──▶ [task: stamp, one append in the disk pool] ──▶ Appended ─┐
                                      sync rounds ──▶ Synced ──────────────────────┴▶ leadership ──▶ answers, polls

While an append runs in the pool, further batches accumulate in the queue and are then appended as one group. All code
except the disk calls runs on the event loop without locks. `replication.LeaderMachine` decides, and `leadership`
passes the decisions on to followers and to the coordination store. The module is a single file because appending,
reading and waiting share the queue and the offsets of one partition.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import TypeAlias

from fairlead_api.batch.control_batches import EpochBeginning, EpochVoter, pack_epoch_beginning
from fairlead_api.batch.header import STAMP_BYTES, StampFlag, make_stamp
from fairlead_api.configuration import TimestampType, TopicConfig
from fairlead_api.identifiers import (
    Acks,
    LeaderEpoch,
    Offset,
    ProducerEpoch,
    ProducerId,
    Revision,
    TimestampUs,
    TopicIdPartition,
)
from fairlead_api.problems import ProblemError, SideEffect
from fairlead_broker.controlling.operation_refusals import topic_is_mirror
from fairlead_broker.links.eras import era_start
from fairlead_broker.log import LogError, LogRead, OffsetOutOfRange, PartitionLog, StampedBatch, StorageFailed
from fairlead_broker.log.segments.segments import Segment
from fairlead_broker.registry.records import HandedOver, MirrorOf, PartitionRecord
from fairlead_broker.replication import LeaderMachine
from fairlead_broker.replication.divergence import EpochEnd, divergence, end_before
from fairlead_broker.runtime import refusals
from fairlead_broker.runtime.engine.sync_rounds import ReplicaSync
from fairlead_broker.runtime.leading.copy_report import CopyReport
from fairlead_broker.runtime.leading.leadership import Leadership
from fairlead_broker.runtime.leading.long_poll import LongPoll
from fairlead_broker.runtime.leading.producer_order import (
    PendingAppend,
    PendingProduce,
    ProducerOrder,
    pending_beginning,
    pending_end,
)
from fairlead_broker.runtime.leading.shared_parts import SharedParts
from fairlead_broker.runtime.meters import TopicMeters
from fairlead_broker.runtime.requests import TransactionEnd
from fairlead_broker.runtime.topic_views import limits_of

SHORT_APPEND_BYTES_MAX = 1 << 14
"""Maximum number of bytes in a group whose append is a short call of the disk pool. The markers of a transaction's
partitions are then appended together, so that a reader gets the records of the transaction in one fetch."""
SYNCED_ALONE_BYTES_MAX = 1 << 16
"""Maximum number of bytes in a group that is synced in the same call to the disk pool as its append, if no sync is
running: a lone producer waits for one thread instead of two. Larger groups are synced by the rounds, so that the next
group is written while the round syncs."""

Refusal: TypeAlias = Callable[[SideEffect], ProblemError]
"""Function that returns the problem for a refused batch; its argument states whether the batch may be stored."""


class LeaderReplica:
    """Log, leader state machine and waiting calls of a partition that this broker leads."""

    def __init__(
        self,
        topic: str,
        key: TopicIdPartition,
        config: TopicConfig,
        log: PartitionLog,
        leader: LeaderMachine,
        shared: SharedParts,
        meters: TopicMeters,
    ) -> None:
        self.topic = topic
        self.key = key
        self.topic_id = key.topic_id
        """Id of the topic."""
        self.index = key.partition
        """Number of the partition in its topic."""
        self.log = log
        """Log of the partition; synced by the sync rounds."""
        self.sync = ReplicaSync(self, config, shared.rounds, shared.clock, shared.sync_interval_seconds)
        """Marks appended bytes for the sync rounds."""
        self._leader = leader
        self.leadership = Leadership(
            topic, key, leader, shared, meters, self._advanced, self._raise_log_start
        )
        """Shell that passes events from followers and from the coordination store to the leader state machine, and
        executes the effects of the state machine.
        """
        self._shared = shared
        self._meters = meters
        self._queue: deque[PendingAppend] = deque()
        self._work = asyncio.Event()
        self._uncommitted: deque[PendingAppend] = deque()
        self._polls: dict[LongPoll, None] = {}
        # An earlier leader replica of this process may have begun the epoch in the log before it failed.
        self._epoch_begun = any(start.epoch == leader.leader_epoch for start in log.leader_epochs[-1:])
        self._refusal: Refusal | None = None
        self.closed = False
        """Whether this broker's leadership in this leader epoch has ended."""
        starts = ((start.epoch, start.start_offset) for start in log.leader_epochs)
        producers = log.producers.state.copy()
        producers.forget_shared_ids(era_start(leader.leader_epoch, starts, log.end_offset))
        self._order = ProducerOrder(
            topic,
            key.partition,
            leader.leader_epoch,
            producers,
            shared,
            meters,
            self._work.set,
            log.end_offset,
        )
        self.mirror: MirrorOf | None = None
        """Origin of the records of a mirror; None for a partition that accepts records."""
        self.copying = CopyReport()
        """Progress of a mirror's partition, which the link's fetches report."""
        self._handed_over: HandedOver | None = None
        self._is_appending = False
        self._stable_limit = Offset(0)
        """Last stable offset in the latest notification to long polls of readers of committed records."""
        self._use(config)

    # -- state for callers

    @property
    def leader_epoch(self) -> LeaderEpoch:
        """Leader epoch in which this broker leads the partition."""
        return self._leader.leader_epoch

    @property
    def log_start_offset(self) -> Offset:
        """First offset that clients can read."""
        return self.log.log_start_offset

    @property
    def log_end_offset(self) -> Offset:
        """Offset of the next record to be appended."""
        return self._leader.end_offset

    @property
    def high_watermark(self) -> Offset:
        """Offset below which every record is committed.

        Raises `offset_not_available` while the high watermark is unknown, and while another leader may have a
        higher high watermark.
        """
        return self.leadership.check_latest()

    @property
    def known_high_watermark(self) -> Offset | None:
        """High watermark for answers to followers; None while the high watermark is unknown."""
        return self._leader.high_watermark

    @property
    def last_stable_offset(self) -> Offset:
        """Offset below which every record is committed, and every transaction has ended.

        Raises `offset_not_available` like `high_watermark`.
        """
        return self._order.stable_offset(self.high_watermark, self.log_start_offset)

    @property
    def readable_limit(self) -> Offset:
        """Offset below which records may be served, even while the high watermark is unknown."""
        return self._leader.readable_limit

    @property
    def stable_limit(self) -> Offset:
        """Last stable offset below `readable_limit`."""
        return self._order.stable_offset(self._leader.readable_limit, self.log_start_offset)

    def removal_limit(self) -> Offset:
        """Return the offset below which this replica may remove expired tombstones."""
        return self._leader.removal_limit()

    def tombstones_removed(self) -> None:
        """Let followers remove expired tombstones as far as a round of this replica has removed tombstones."""
        self.leadership.tombstones_removed()

    @property
    def has_open_transactions(self) -> bool:
        """Whether a transaction is open in the partition."""
        return self._order.has_open

    def open_transactions(self) -> Iterator[tuple[ProducerId, ProducerEpoch, Offset]]:
        """Return producer id, epoch and first offset of each open transaction, in ascending order of offsets."""
        return self._order.open_transactions()

    def open_epoch(self, producer_id: ProducerId) -> ProducerEpoch | None:
        """Return the epoch of a producer's open transaction, or None if no transaction is open."""
        return self._order.open_epoch(producer_id)

    @property
    def size_bytes(self) -> int:
        """Size of the log's files in bytes."""
        return self.log.size_bytes

    @property
    def meters(self) -> TopicMeters:
        """Metrics of the topic."""
        return self._meters

    @property
    def queued_batches(self) -> int:
        """Number of batches that wait for the partition's task or for earlier batches from their producer."""
        return len(self._queue) + self._order.held_count

    @property
    def held_batches(self) -> int:
        """Number of queued batches that wait for an earlier batch of their producer."""
        return self._order.held_count

    @property
    def is_drained(self) -> bool:
        """Whether the partition was handed over and its end is final: no batch or marker can move the end (L18)."""
        return (
            self._handed_over is not None
            and not self._is_appending
            and not self.queued_batches
            and not self.has_open_transactions
            and self._leader.high_watermark == self.log_end_offset
        )

    # -- appending

    def check_writable(self, acks: Acks) -> None:
        """Raise the refusal of a batch that cannot be appended, before memory or time is spent on it."""
        self.check_not_mirror()
        if self._handed_over is not None:
            raise refusals.topic_moved(self.topic, self._handed_over)
        self._check_appendable(acks)

    def check_not_mirror(self) -> None:
        """Raise `topic_is_mirror` for a partition that only a link may change."""
        if self.mirror is not None:
            raise topic_is_mirror(self.topic, self.mirror)

    def _check_appendable(self, acks: Acks) -> None:
        if self._refusal is not None:
            raise self._refusal(SideEffect.NONE)
        self.leadership.check_writable(acks)
        if self.queued_batches >= self._shared.queue_batches_max:
            waiting = f"{self.queued_batches} batches wait for {self.topic}-{self.index}"
            raise refusals.overloaded(waiting)

    def digest_of(self, key: bytes) -> bytes | None:
        """Return the digest of the request that used an idempotency key within 24 hours; None if unused."""
        return self._order.digest_of(key)

    def knows_producer(self, producer_id: ProducerId) -> bool:
        """Return whether an idempotent producer wrote to the partition within the last 24 hours."""
        return self._order.knows_producer(producer_id)

    def enqueue(self, append: PendingAppend) -> None:
        """Queue a validated batch; the call that sent the batch receives the outcome.

        The caller must call `check_writable` first, without an await in between.
        """
        self._queue.append(append)
        if append.acks is Acks.NONE:
            append.accepted(self.leader_epoch)
        self._work.set()

    async def end_transaction(self, end: TransactionEnd, timeout_seconds: float) -> None:
        """Append the marker of a decided transaction, unless the partition has it; return once the marker is committed.

        Raises the problem of an append that failed or took too long; the call may be repeated.
        """
        call = PendingProduce(1)
        self.queue_end(call, 0, end)
        [answer] = await call.wait(timeout_seconds)
        if isinstance(answer, ProblemError):
            raise answer

    def queue_end(self, call: PendingProduce, slot: int, end: TransactionEnd) -> None:
        """Queue the marker of a decided transaction; the slot of the call gets the outcome.

        Raises the problem of a partition that cannot append.
        """
        self.check_not_mirror()
        self._check_appendable(Acks.ALL)
        append = pending_end(call, slot, end)
        call.appends.append((self.leadership, append))
        self.enqueue(append)

    async def run(self, failed: Callable[[Exception], None] | None = None) -> None:
        """Append queued batches until the task is cancelled or fails; the partition has no other task.

        `failed` gets an unexpected error, which ends only this leadership. A violated invariant raises an exception
        that stops the broker.
        """
        try:
            await self._append_queued()
        except AssertionError:
            raise
        except Exception as error:
            if failed is None:
                raise
            failed(error)

    async def _append_queued(self) -> None:
        while self._refusal is None:
            await self._work.wait()
            self._work.clear()
            if not self._shared.rounds.has_room():
                await self._shared.rounds.room()
            group = self._take_queue()
            if group:
                await self._append(group)

    def _take_queue(self) -> list[PendingAppend]:
        group = self._order.take(self._queue)
        self._queue.clear()
        return group

    async def _append(self, group: list[PendingAppend]) -> None:
        rounds = self._shared.rounds
        nbytes = sum(append.nbytes for append in group)
        stamped = self._stamp(group, self._order.append_time_us())
        alone = self._counts_synced and nbytes <= SYNCED_ALONE_BYTES_MAX and rounds.claim()
        self._is_appending = True
        try:
            is_short = not alone and nbytes <= SHORT_APPEND_BYTES_MAX
            submit = self._shared.pool.submit_short if is_short else self._shared.pool.submit
            synced = await submit(self._append_on_disk, stamped, alone)
        except LogError as error:
            self._append_failed(group, nbytes, error)
        except Exception:
            # The task and the leadership are ending, so the calls of the group are answered here.
            self._let_go(group, nbytes)
            self._refuse(group, partial(refusals.leader_changed, self.topic, self.index))
            raise
        else:
            self._appended(group, nbytes, synced)
        finally:
            self._is_appending = False
            if alone:
                rounds.release()

    def _appended(self, group: list[PendingAppend], nbytes: int, synced: Offset | None) -> None:
        self._let_go(group, nbytes)
        self._uncommitted.extend(group)
        self._order.appended(group, group[0].append_time_us)
        if self._order.has_open:
            self._shared.looks.has_open(self)
        if self._refusal is not None:
            # During the disk write, the directory failed or the topic was deleted. The batches of the group may be
            # stored.
            self._refuse(group, self._refusal)
            self._order.refuse(self._refusal)
        for append in group:
            if append.acks is Acks.LEADER:
                append.stored(self.leader_epoch)
            elif append.end is not None:
                self._shared.looks.appended_marker(append.end.kind)
        end_offset = group[-1].next_offset
        records = end_offset - group[0].base_offset
        self._meters.appended(len(group), records, nbytes)
        self._shared.rounds.appended_bytes += nbytes
        self.leadership.appended(end_offset)
        if synced is not None:
            self.synced(synced)
        else:
            self.sync.appended(nbytes, records, counts_synced=self._counts_synced)

    def copied(self, batches: int, nbytes: int) -> None:
        """Take over the new end of the log after batches from another cluster were appended.

        A mirror has no other appends, so the log has not changed since these batches were appended.
        """
        end_offset, before = self.log.end_offset, self._leader.end_offset
        records = end_offset - before
        self._order.copied(self.log.producers.state, end_offset)
        self._meters.appended(batches, records, nbytes)
        self._shared.rounds.appended_bytes += nbytes
        self.leadership.appended(end_offset)
        self.sync.appended(nbytes, records, counts_synced=self._counts_synced)

    def _stamp(self, group: list[PendingAppend], append_time_us: TimestampUs) -> list[StampedBatch]:
        offset = self._leader.end_offset
        epoch = self.leader_epoch
        flags = StampFlag.APPEND_TIME if self._log_append_time else 0
        stamped = []
        for append in group:
            header = append.header
            batch = append.batch
            assert batch is not None, "a queued batch has its bytes"
            append.base_offset = offset
            append.append_time_us = append_time_us
            last_offset = Offset(offset + header.last_offset_delta)
            stamped.append(
                StampedBatch(
                    stamp=make_stamp(header, offset, epoch, append_time_us, flags),
                    content=batch[STAMP_BYTES:],
                    base_offset=offset,
                    last_offset=last_offset,
                    max_time_us=append_time_us if flags else header.max_timestamp_us,
                    nbytes=header.total_bytes,
                )
            )
            offset = append.next_offset = Offset(last_offset + 1)
        return stamped

    def _append_on_disk(self, stamped: list[StampedBatch], alone: bool) -> Offset | None:
        """Append a group, and sync it if `alone` is set. The call blocks and runs in the disk pool."""
        if not self._epoch_begun:
            # The log records the epoch at the first write, not at the start of the leadership: a partition without
            # writes needs no fsync at startup, and its list of epochs does not grow with every restart.
            self.log.begin_epoch(self.leader_epoch)
            self._epoch_begun = True
        self.log.append(stamped, end_offset=stamped[0].base_offset)
        return self._shared.rounds.timed(self.log.sync) if alone else None

    def _let_go(self, group: list[PendingAppend], nbytes: int) -> None:
        for append in group:
            append.batch = None
        self._shared.give_back_bytes(nbytes)

    def _append_failed(self, group: list[PendingAppend], nbytes: int, error: LogError) -> None:
        problem = refusals.from_log(error, self.topic, self.index, writing=True)
        self._let_go(group, nbytes)
        for append in group:
            append.refused(problem)
        self._order.failed(problem)
        if isinstance(error, StorageFailed):
            self._shared.directory_failed(error)

    # -- syncing, called by the rounds

    def synced(self, offset: Offset) -> None:
        """Record that everything below the offset is durable.

        A round can include an append whose completion has not reached the loop yet. Such an append is counted by the
        next round, because its completion marks the partition as dirty again.
        """
        offset = min(offset, self._leader.end_offset)
        self.sync.synced(offset, self._leader.end_offset)
        self.leadership.synced(offset)

    # -- the state machine

    def start_leading(self) -> None:
        """Pass the offsets of the log to the state machine.

        For a partition with a single replica, the offsets determine the high watermark.
        """
        self._order.committed(self._leader.readable_limit)
        if self._order.has_open and self.mirror is None:
            self._shared.looks.took_leadership(self)
        if self._leader.begins_with_batch:
            # The batch that begins the epoch is written first; batches that producers send from now on join the same
            # write.
            self._queue.appendleft(pending_beginning(self._beginning()))
            self._work.set()
        self.leadership.synced(self.log.synced_offset)
        self.leadership.time_passed()

    def _beginning(self) -> bytes:
        record = self._leader.record
        assert record.leader is not None, "the record of a leadership names the leader"
        assert record.quorum is not None, "only a partition with a quorum begins its epochs with a batch"
        voters = tuple(EpochVoter(each.broker, each.broker_epoch) for each in record.quorum.voters)
        leader = record.leader
        beginning = EpochBeginning(leader.broker, leader.broker_epoch, record.quorum.write, voters)
        return pack_epoch_beginning(beginning, self._shared.clock.now_us())

    def _raise_log_start(self, offset: Offset) -> None:
        """Delete records that a voter has already deleted (quorum Q16)."""
        delay_us = self.config.file_delete_delay_ms * 1000
        remove_us = TimestampUs(self._shared.clock.now_us() + delay_us)
        future = self._shared.pool.submit(partial(self.log.advance_log_start, offset, remove_us=remove_us))
        future.add_done_callback(self._log_start_raised)

    def _log_start_raised(self, future: asyncio.Future[list[Segment]]) -> None:
        if future.cancelled():
            return
        error = future.exception()
        if isinstance(error, StorageFailed):
            self._shared.directory_failed(error)
        elif error is None:
            self.leadership.log_start_moved(self.log.log_start_offset)

    def record_changed(self, record: PartitionRecord, revision: Revision) -> None:
        """Apply a new version of the partition record with the same leader epoch."""
        self.leadership.record_changed(record, revision)
        if self._counts_synced:
            self.sync.sync_at_once(self._leader.end_offset)

    def time_passed(self) -> None:
        """Pass the time to the state machine, and notify the followers if retention has moved the log start."""
        log_start = self.log.log_start_offset
        if log_start > self._leader.log_start:
            self.leadership.log_start_moved(log_start)
        self.leadership.time_passed()

    def _advanced(self, high_watermark: Offset) -> None:
        self.log.checkpoint_high_watermark = high_watermark
        nbytes = 0
        waiting = self._uncommitted
        while waiting and waiting[0].next_offset <= high_watermark:
            append = waiting.popleft()
            nbytes += append.nbytes
            append.stored(self.leader_epoch)
        self._order.committed(high_watermark)
        if self._polls:
            self._notify_polls(nbytes)

    def _notify_polls(self, nbytes: int) -> None:
        """Notify polls of a new high watermark, and polls for committed records if the last stable offset moved."""
        before, self._stable_limit = self._stable_limit, self.stable_limit
        for poll in tuple(self._polls):
            if not poll.committed:
                poll.advanced(nbytes)
            elif self._stable_limit > before:
                # The number of bytes below the new last stable offset is unknown, so the poll is answered without
                # comparing it with the poll's minimum.
                poll.wake()

    @property
    def _counts_synced(self) -> bool:
        return self._leader.counts_synced

    # -- reading

    def add_poll(self, poll: LongPoll) -> None:
        """Register a long poll that is notified when the high watermark advances."""
        self._polls[poll] = None
        if poll.committed:
            self._stable_limit = self.stable_limit

    def remove_poll(self, poll: LongPoll) -> None:
        """Unregister a long poll."""
        self._polls.pop(poll, None)

    def check_fetch(
        self, offset: Offset, leader_epoch: LeaderEpoch | None, last_epoch: LeaderEpoch | None
    ) -> None:
        """Raise the problem for a fetch with a different leader epoch, a truncated record, or an invalid offset."""
        topic, index = self.topic, self.index
        if leader_epoch is not None and leader_epoch != self.leader_epoch:
            raise refusals.wrong_leader_epoch(topic, index, leader_epoch, self.leader_epoch)
        if last_epoch is not None and offset >= self.log_start_offset:
            # The lineage is checked first: a client beyond the end of a truncated log receives `log_truncated` instead
            # of `offset_out_of_range`.
            self._check_lineage(offset, last_epoch)
        if offset > self._leader.end_offset:
            # While the lease is in doubt, the client may have fetched from a newer leader, so a retriable problem is
            # raised instead of the final `offset_out_of_range`.
            self.leadership.check_latest()
            raise refusals.offset_out_of_range(
                topic, index, offset, self.log_start_offset, self.log_end_offset
            )
        if offset < self.log_start_offset:
            raise self._expired(offset)

    def _expired(self, offset: Offset) -> ProblemError:
        start = self.log_start_offset
        return refusals.offset_expired(self.topic, self.index, offset, start, self.log.epoch_before(start))

    def check_copy(self, offset: Offset, last_epoch: LeaderEpoch | None) -> None:
        """Raise `log_truncated` unless a copy with this end offset and last leader epoch is a prefix of the log.

        The problem names the last leader epoch that both logs may have, and the end of its records in this log.
        """
        if last_epoch is not None and last_epoch > self.leader_epoch:
            raise refusals.wrong_leader_epoch(self.topic, self.index, last_epoch, self.leader_epoch)
        parted = self.divergence(last_epoch, offset) if offset >= self.log_start_offset else None
        if parted is not None:
            raise refusals.log_truncated(self.topic, self.index, parted.epoch, parted.end_offset)

    def _check_lineage(self, offset: Offset, last_epoch: LeaderEpoch) -> None:
        if last_epoch > self.leader_epoch:
            raise refusals.wrong_leader_epoch(self.topic, self.index, last_epoch, self.leader_epoch)
        end = self.log.end_offset_for_epoch(last_epoch)
        if end is not None and end.end_offset < offset and offset > self.log_start_offset:
            raise refusals.log_truncated(self.topic, self.index, end.epoch, end.end_offset)

    def read_cached(self, offset: Offset, bytes_max: int, limit: Offset | None = None) -> LogRead | None:
        """Return batches from the page cache without blocking; None if the batches are not cached.

        `limit`: offset below which batches are returned; by default `readable_limit`.
        """
        try:
            return self.log.read_cached(
                offset, bytes_max, self._leader.readable_limit if limit is None else limit
            )
        except LogError as error:
            raise self._read_problem(error, offset) from error

    def read_cached_for_follower(self, offset: Offset, bytes_max: int) -> LogRead | None:
        """Return batches up to the log's end from the page cache without blocking; None if no batch is cached."""
        try:
            return self.log.read_cached(offset, bytes_max, self._leader.end_offset)
        except LogError as error:
            raise self._read_problem(error, offset) from error

    def divergence(self, last_epoch: LeaderEpoch | None, fetch_offset: Offset) -> EpochEnd | None:
        """Return the point at which a follower's log diverges; None if the follower can continue (rule 4.8)."""
        return divergence(self.log.leader_epochs, self._leader.end_offset, last_epoch, fetch_offset)

    def end_before(self, deleted_epoch: LeaderEpoch | None, fetch_offset: Offset) -> Offset | None:
        """Return the end of this log if the follower's log is empty and starts beyond this end; None otherwise."""
        return end_before(self.log.leader_epochs, self._leader.end_offset, deleted_epoch, fetch_offset)

    def read(self, offset: Offset, bytes_max: int, limit: Offset, *, committed: bool = False) -> LogRead:
        """Return batches below a limit. The call blocks and runs in the disk pool.

        `committed`: whether the caller passes the result to `without_aborted`.
        """
        try:
            if committed:
                self.log.load_aborted()
            return self.log.read(offset, bytes_max, limit)
        except LogError as error:
            raise self._read_problem(error, offset) from error

    def offset_for_time(self, timestamp_us: TimestampUs) -> tuple[Offset, TimestampUs] | None:
        """Return the offset and the timestamp of the first record at or after a time.

        The call blocks and runs in the disk pool.
        """
        try:
            return self.log.offset_for_time(timestamp_us)
        except LogError as error:
            raise self._read_problem(error, self.log_start_offset) from error

    def newest_record(self) -> tuple[Offset, TimestampUs] | None:
        """Return the offset and time of the record with the latest time. The call blocks and runs in the disk pool."""
        try:
            return self.log.newest_record()
        except LogError as error:
            raise self._read_problem(error, self.log_start_offset) from error

    def without_aborted(self, read: LogRead) -> list[memoryview] | None:
        """Return the batches of a read without those of aborted transactions; None if a read in the pool is needed."""
        return self.log.without_aborted(read)

    def _read_problem(self, error: LogError, offset: Offset) -> ProblemError:
        if isinstance(error, OffsetOutOfRange):
            if offset < self.log_start_offset:
                return self._expired(offset)
            return refusals.offset_out_of_range(
                self.topic, self.index, offset, self.log_start_offset, self.log_end_offset
            )
        return refusals.from_log(error, self.topic, self.index, writing=False)

    # -- changes by other components

    def topic_changed(self, mirror: MirrorOf | None, handed_over: HandedOver | None) -> None:
        """Apply the topic's role in a link. Transactions that are still open in a promoted mirror are ended."""
        was_mirror, self.mirror, self._handed_over = self.mirror is not None, mirror, handed_over
        if was_mirror and mirror is None and self._order.has_open:
            self._shared.looks.took_leadership(self)

    def change_config(self, config: TopicConfig) -> None:
        """Apply a changed topic configuration from the next batch on. The log is updated separately, in a pool."""
        self._use(config)
        self.sync.change_config(config)
        if self._leader.begins_with_batch:
            self.leadership.write_quorum_set(config.quorum_write)

    def _use(self, config: TopicConfig) -> None:
        self.config = config
        """Effective configuration of the topic."""
        self.validation_limits = limits_of(config, self._shared.decompressed_bytes_max)
        """Limits for batches that the topic accepts."""
        self._log_append_time = config.message_timestamp_type is TimestampType.LOG_APPEND_TIME

    def refuse_writes(self, refusal: Refusal) -> None:
        """Fail all waiting and all later batches with a problem; reads continue.

        `refusal` creates the problem from the side effect of the batch, which states whether the batch may be stored.
        """
        self._refusal = refusal
        self._refuse(self._uncommitted, refusal)
        self._refuse(self._queue, refusal)
        self._order.refuse(refusal)
        self._shared.give_back_bytes(sum(append.nbytes for append in self._queue))
        self._queue.clear()
        self._work.set()

    @staticmethod
    def _refuse(appends: Iterable[PendingAppend], refusal: Refusal) -> None:
        for append in appends:
            append.refused(refusal(append.side_effect))

    def storage_failed(self) -> None:
        """Refuse writes after a failure of the data directory; another replica becomes the leader if possible."""
        self.refuse_writes(partial(refusals.storage_failed, self.topic, self.index))
        self.leadership.directory_failed()

    def close(self, refusal: Refusal) -> None:
        """End the leadership: fail all waiting calls, and ignore later events.

        The ended leadership makes no more decisions or writes.
        """
        self.closed = True
        self.refuse_writes(refusal)
        self.leadership.close()
        self.wake_polls()

    def wake_polls(self) -> None:
        """Wake every long poll that waits at this partition."""
        for poll in tuple(self._polls):
            poll.wake()
