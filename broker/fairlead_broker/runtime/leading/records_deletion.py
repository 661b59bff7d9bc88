"""Deletion of a partition's records below an offset, carried out by the partition's leader (KIP-107).

The call is answered once the log of every in-sync replica starts at the new log start, because the next leader must not
serve deleted records.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from fairlead_api.identifiers import Offset, TimestampUs
from fairlead_api.problems import SideEffect
from fairlead_broker.clock import Clock
from fairlead_broker.log import LogError, Reason, StorageFailed
from fairlead_broker.log.segments.segments import Segment
from fairlead_broker.runtime import refusals
from fairlead_broker.runtime.engine.disk_pool import DiskPool
from fairlead_broker.runtime.leading.leader_replica import LeaderReplica

WAIT_SECONDS_MAX: Final = 30.0
"""Maximum number of seconds to wait for the in-sync replicas; a follower that does not fetch leaves the isr earlier."""


class RecordsDeletion:
    """Executes deletions of records on request."""

    def __init__(
        self,
        pool: DiskPool,
        clock: Clock,
        failed: Callable[[LogError], None],
        count_deleted: Callable[[str, int, int], None],
    ) -> None:
        """`failed` is called when the disk has failed.

        `count_deleted` receives reason, segments and bytes, as in `Retention`.
        """
        self._pool = pool
        self._clock = clock
        self._failed = failed
        self._count_deleted = count_deleted

    async def delete(self, partition: LeaderReplica, offset: Offset | None) -> Offset:
        """Move the log start up to an offset; return the durable log start.

        The offset None stands for the high watermark. An offset below the log start has no effect. Raises the problems
        of `Broker.delete_records`.
        """
        partition.check_not_mirror()
        high_watermark = partition.high_watermark
        wanted = high_watermark if offset is None else offset
        if wanted > high_watermark:
            raise refusals.offset_out_of_range(
                partition.topic, partition.index, wanted, partition.log_start_offset, high_watermark
            )
        try:
            log_start = await self._pool.run(self._advance, partition, wanted)
        except LogError as error:
            if isinstance(error, StorageFailed):
                self._failed(error)
            raise refusals.from_log(error, partition.topic, partition.index, writing=True) from error
        partition.leadership.log_start_moved(log_start)
        if not await partition.leadership.low_watermark(wanted, WAIT_SECONDS_MAX):
            if partition.closed:
                raise refusals.leader_changed(partition.topic, partition.index, SideEffect.MAYBE)
            raise refusals.trim_timeout(partition.topic, partition.index, log_start)
        return log_start

    def _advance(self, partition: LeaderReplica, offset: Offset) -> Offset:
        """Delete the records below an offset. The call blocks and runs in the disk pool."""
        log = partition.log
        if offset > log.synced_offset:
            # With durability=replicated, records below the offset may be unsynced. After a crash, a recovery point at
            # an unsynced offset would be invalid.
            log.sync()
        delay_us = partition.config.file_delete_delay_ms * 1000
        gone = log.delete_to(offset, remove_us=TimestampUs(self._clock.now_us() + delay_us))
        if gone:
            self._count_deleted(Reason.LOG_START.name.lower(), len(gone), sum(map(_size, gone)))
        return log.log_start_offset


def _size(segment: Segment) -> int:
    try:
        return segment.size
    except OSError:
        return 0  # The segment's file was already removed.
