"""Disk work of a mirror's leader: appends copied batches, skips offsets, and deletes records that the source deleted.

`linking` calls these functions one at a time for each partition. The stored bytes are those of the source. Each
function raises `LogError`, after which the log is in a state from which the next fetch continues.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from fairlead_api.identifiers import Offset, TimestampUs
from fairlead_broker.log import LogError, StorageFailed
from fairlead_broker.replication.divergence import EpochStart
from fairlead_broker.runtime.leading.leader_replica import LeaderReplica
from fairlead_broker.runtime.leading.shared_parts import SharedParts


class MirrorCopies:
    """Writer of the logs of mirrors that this broker leads."""

    __slots__ = ("_shared",)

    def __init__(self, shared: SharedParts) -> None:
        self._shared = shared

    async def append(self, partition: LeaderReplica, data: memoryview, batches: int) -> None:
        """Append batches that begin at the end of the log, with the offsets and leader epochs of the source.

        Raises `BadCopy` for batches that do not continue the log, or with a leader epoch above the partition's.
        """
        if not self._shared.rounds.has_room():
            await self._shared.rounds.room()
        try:
            await self._run(
                partial(partition.log.append_copies, data, partition.log_end_offset, partition.leader_epoch)
            )
        finally:
            # After a failure, some of the batches may be kept.
            if partition.log.end_offset > partition.log_end_offset:
                partition.copied(batches, len(data))

    async def skip(self, partition: LeaderReplica, offset: Offset, deleted: EpochStart | None) -> None:
        """Continue the log at an offset, because the source has deleted the records below it.

        `deleted`: leader epoch of the last deleted record, if known.
        """
        log = partition.log
        if log.end_offset == log.log_start_offset:
            await self._run(partial(log.restart_at, offset, deleted))
        else:
            await self._run(partial(log.skip_to, offset, () if deleted is None else (deleted,)))
        partition.copied(0, 0)
        partition.time_passed()

    async def note_removed(self, partition: LeaderReplica, offset: Offset) -> None:
        """Note that the log may lack tombstones and markers below an offset."""
        await self._run(partial(partition.log.note_removed, offset))

    async def follow_start(self, partition: LeaderReplica, log_start: Offset, deleted_to: Offset) -> None:
        """Delete the records below an offset that are committed here.

        `deleted_to`: offset below which records of the source were deleted on request, which mirrors of this mirror
        need.
        """
        if deleted_to > partition.log.deleted_to:
            partition.log.note_deleted(min(deleted_to, partition.readable_limit))
        offset = min(log_start, partition.readable_limit)
        if offset > partition.log_start_offset:
            await self._run(partial(self._advance, partition, offset))
            partition.leadership.log_start_moved(partition.log_start_offset)

    def _advance(self, partition: LeaderReplica, offset: Offset) -> None:
        """Move the log start. The call blocks and runs in the disk pool."""
        log = partition.log
        if offset > log.synced_offset:
            # After a crash, a recovery point at an unsynced offset would be invalid.
            log.sync()
        delay_us = partition.config.file_delete_delay_ms * 1000
        log.advance_log_start(offset, remove_us=TimestampUs(self._shared.clock.now_us() + delay_us))

    async def _run(self, work: Callable[[], object]) -> None:
        try:
            await self._shared.pool.submit(work)
        except LogError as error:
            if isinstance(error, StorageFailed):
                self._shared.directory_failed(error)
            raise
