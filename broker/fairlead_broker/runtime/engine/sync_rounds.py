"""Group commit of one data directory: fsync rounds over the partitions with unsynced bytes.

Partitions with unsynced bytes are marked dirty. Rounds run back to back over all dirty partitions that are due; batches
appended during a round are synced by the next round. With `durability=synced` a dirty partition is due at once. With
`replicated` a partition is due when its topic's `flush.*`, the background interval or the directory's limit of unsynced
bytes requires it.

The first error stops all rounds. A failed fsync must not be retried: the kernel may have dropped the dirty pages, and a
later successful fsync would not prove that the pages were written.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

from fairlead_api.configuration import TopicConfig
from fairlead_api.identifiers import Offset
from fairlead_broker.clock import Clock
from fairlead_broker.log import LogError, PartitionLog, StorageFailed, sync_partitions
from fairlead_broker.log.segments.storage import Volume
from fairlead_broker.runtime.engine.disk_pool import DiskPool

AT_ONCE = -math.inf
"""Due time of a partition with batches whose acknowledgements wait for the sync."""


class SyncedPartition(Protocol):
    """Interface through which the sync rounds access a partition."""

    @property
    def log(self) -> PartitionLog:
        """Log of the partition."""
        ...

    def synced(self, offset: Offset) -> None:
        """Record that every record of the partition below the offset is durable."""
        ...


class Syncing:
    """Syncs logs outside the event loop.

    A few logs are synced in parallel; many logs are synced by one call that syncs the whole volume.
    """

    __slots__ = ("_executor", "_pool", "_volume")

    def __init__(self, threads: int, volume: Volume) -> None:
        # A thread of the pool waits for the executor's threads, so the waiting thread cannot belong to the executor.
        self._pool = DiskPool("sync rounds", 1)
        self._executor = ThreadPoolExecutor(threads, thread_name_prefix="sync")
        self._volume = volume

    async def sync(self, logs: Sequence[PartitionLog]) -> Mapping[PartitionLog, Offset | StorageFailed]:
        """Sync logs; return the synced offset or the error for each log."""
        return await self._pool.submit(sync_partitions, logs, self._executor, self._volume)

    def close(self) -> None:
        """Wait for the threads of the pool and the executor to end."""
        self._pool.close()
        self._executor.shutdown()


class SyncRounds:
    """Scheduler of the sync rounds. The scheduler also delays appends while too many bytes are unsynced."""

    __slots__ = (
        "_busy",
        "_clock",
        "_dirty",
        "_ended",
        "_failed",
        "_hurried",
        "_in_round",
        "_last_sync",
        "_next_due",
        "_observe_seconds",
        "_room_waiters",
        "_round_ended",
        "_syncing",
        "_unsynced",
        "_unsynced_bytes",
        "_unsynced_bytes_max",
        "_wake",
        "appended_bytes",
    )

    def __init__(
        self,
        syncing: Syncing,
        clock: Clock,
        *,
        unsynced_bytes_max: int,
        failed: Callable[[LogError], None],
        observe_seconds: Callable[[float], None],
    ) -> None:
        """`failed` gets the directory's first error; `observe_seconds` gets the duration of each round."""
        self.appended_bytes = 0
        """Number of bytes that all partitions have appended since the start. A checkpoint is written early after enough
        appended bytes."""
        self._syncing = syncing
        self._clock = clock
        self._unsynced_bytes_max = unsynced_bytes_max
        self._failed = failed
        self._observe_seconds = observe_seconds
        self._last_sync = (0.0, 0.0)
        """Duration of the last sync in seconds, and the time at which the sync ended."""
        self._dirty: dict[SyncedPartition, float] = {}
        self._unsynced: dict[SyncedPartition, int] = {}
        self._unsynced_bytes = 0
        self._ended = False
        self._hurried = False
        self._busy = 0
        self._in_round: Mapping[SyncedPartition, int] = {}
        self._round_ended = asyncio.Event()
        self._next_due = math.inf
        self._wake = asyncio.Event()
        self._room_waiters: deque[asyncio.Future[None]] = deque()

    @property
    def unsynced_bytes(self) -> int:
        """Number of bytes that were appended in this directory and not yet synced by a completed round."""
        return self._unsynced_bytes

    def was_slow(self, seconds: float) -> bool:
        """Return whether the last sync took at least this many seconds and ended within the last second."""
        took, ended = self._last_sync
        return took >= seconds and self._clock.monotonic() - ended < 1

    def mark(self, partition: SyncedPartition, nbytes: int, due: float) -> None:
        """Count appended bytes that must be durable by `due` (monotonic seconds, or `AT_ONCE`)."""
        self._unsynced[partition] = self._unsynced.get(partition, 0) + nbytes
        self._unsynced_bytes += nbytes
        if due < self._dirty.get(partition, math.inf):
            self._dirty[partition] = due
        if self._crowded():
            due = AT_ONCE
        if due < self._next_due:
            self._next_due = due
            self._wake.set()

    def hurry(self) -> None:
        """Make all current and future appended bytes due at once, because the broker is stopping."""
        self._hurried = True
        if self._dirty:
            self._next_due = AT_ONCE
            self._wake.set()

    def claim(self) -> bool:
        """Return whether a partition may sync its log outside the rounds: only while no round is running or due.

        If the result is true, the caller must call `release` afterwards.
        """
        if self._busy or self._next_due <= self._clock.monotonic():
            return False
        self._busy += 1
        return True

    def release(self) -> None:
        """Release the claim that `claim` granted."""
        self._busy -= 1

    def timed(self, sync: Callable[[], Offset]) -> Offset:
        """Run a sync granted by `claim`, and record its duration. The call blocks."""
        begun = self._clock.monotonic()
        offset = sync()
        self._observe(self._clock.monotonic() - begun)
        return offset

    def _observe(self, seconds: float) -> None:
        self._last_sync = seconds, self._clock.monotonic()
        self._observe_seconds(seconds)

    async def forget(self, partition: SyncedPartition) -> None:
        """Remove a partition before its files are deleted; return once no round uses the files."""
        self._dirty.pop(partition, None)
        self._unsynced_bytes -= self._unsynced.pop(partition, 0)
        self._release_waiters()
        while partition in self._in_round:
            await self._round_ended.wait()

    def has_room(self) -> bool:
        """Return whether an append may start.

        After a failure the result is true, because each partition then refuses appends itself.
        """
        return self._ended or self._unsynced_bytes < self._unsynced_bytes_max

    async def room(self) -> None:
        """Wait until the number of unsynced bytes allows another append."""
        while not self.has_room():
            waiter = asyncio.get_running_loop().create_future()
            self._room_waiters.append(waiter)
            await waiter

    async def run(self) -> None:
        """Run sync rounds until cancelled; return after the first error."""
        while True:
            await self._until_due()
            due = self._take_due()
            if due and not await self._round(due):
                return

    async def sync_all(self) -> bool:
        """Run one last round over all dirty partitions after `run` was cancelled; return False if the round fails."""
        due = {*self._dirty, *self._in_round}
        self._dirty.clear()
        return not self._ended and await self._round(due)

    async def _until_due(self) -> None:
        while (wait := self._next_due - self._clock.monotonic()) > 0:
            self._wake.clear()
            try:
                async with asyncio.timeout(None if wait == math.inf else wait):
                    await self._wake.wait()
            except TimeoutError:
                pass

    def _take_due(self) -> list[SyncedPartition]:
        now = self._clock.monotonic()
        crowded = self._crowded()
        due = [partition for partition, at in self._dirty.items() if crowded or at <= now]
        for partition in due:
            del self._dirty[partition]
        self._next_due = min(self._dirty.values(), default=math.inf)
        return due

    async def _round(self, due: Iterable[SyncedPartition]) -> bool:
        # Bytes that are appended during a round belong to the next round, even if the current round also syncs them.
        self._in_round = {partition: self._unsynced.get(partition, 0) for partition in due}
        self._round_ended.clear()
        self._busy += 1
        begun = self._clock.monotonic()
        ends = await self._syncing.sync([partition.log for partition in self._in_round])
        self._observe(self._clock.monotonic() - begun)
        self._busy -= 1
        round_, self._in_round = self._in_round, {}
        self._round_ended.set()
        return self._end(round_, ends)

    def _end(
        self,
        round_: Mapping[SyncedPartition, int],
        ends: Mapping[PartitionLog, Offset | StorageFailed],
    ) -> bool:
        error = next((end for end in ends.values() if isinstance(end, StorageFailed)), None)
        for partition, nbytes in round_.items():
            end = ends[partition.log]
            if not isinstance(end, StorageFailed):
                self._clean(partition, nbytes)
                partition.synced(end)
        self._ended = self._ended or error is not None
        self._release_waiters()
        if error is not None:
            self._failed(error)
        return error is None

    def _clean(self, partition: SyncedPartition, nbytes: int) -> None:
        before = self._unsynced.pop(partition, 0)
        cleaned = min(nbytes, before)
        self._unsynced_bytes -= cleaned
        if before > cleaned:
            self._unsynced[partition] = before - cleaned

    def _crowded(self) -> bool:
        return self._hurried or self._unsynced_bytes >= self._unsynced_bytes_max // 2

    def _release_waiters(self) -> None:
        while self._room_waiters and self.has_room():
            waiter = self._room_waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)


class ReplicaSync:
    """Unsynced records of one replica. The topic's configuration determines when the sync rounds must sync the records.

    Leader and follower replicas have a `ReplicaSync`, which runs on the event loop.
    """

    __slots__ = (
        "_clock",
        "_flush_messages",
        "_flush_seconds",
        "_interval_seconds",
        "_partition",
        "_rounds",
        "_unsynced_records",
    )

    def __init__(
        self,
        partition: SyncedPartition,
        config: TopicConfig,
        rounds: SyncRounds,
        clock: Clock,
        interval_seconds: float,
    ) -> None:
        """`interval_seconds`: maximum number of seconds until appended bytes are due."""
        self._partition = partition
        self._rounds = rounds
        self._clock = clock
        self._interval_seconds = interval_seconds
        self._unsynced_records = 0
        self.change_config(config)

    def change_config(self, config: TopicConfig) -> None:
        """Apply a changed topic configuration from the next append on."""
        self._flush_messages = config.flush_messages
        self._flush_seconds = min(config.flush_ms / 1000, self._interval_seconds)

    def appended(self, nbytes: int, records: int, *, counts_synced: bool) -> None:
        """Mark appended bytes for the sync rounds.

        The bytes are due at once with `durability=synced`, or when `flush.messages` is reached.
        """
        self._unsynced_records += records
        if counts_synced or self._unsynced_records >= self._flush_messages:
            due = AT_ONCE
        else:
            due = self._clock.monotonic() + self._flush_seconds
        self._rounds.mark(self._partition, nbytes, due)

    def synced(self, offset: Offset, end_offset: Offset) -> None:
        """Set the number of unsynced records to the number of records from `offset` to the end of the log."""
        self._unsynced_records = max(0, end_offset - offset)

    def sync_at_once(self, end_offset: Offset) -> None:
        """Make all unsynced records below `end_offset` due at once, without waiting for another append."""
        if end_offset > self._partition.log.synced_offset:
            self._rounds.mark(self._partition, 0, AT_ONCE)
