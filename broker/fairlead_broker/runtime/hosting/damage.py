"""Accepting that the records of a damaged range are lost, as the partition's leader."""

from __future__ import annotations

from collections.abc import Callable

from fairlead_api.identifiers import Offset
from fairlead_api.problems import ProblemError
from fairlead_broker.log import LogError, PartitionLog, SegmentScrub, StorageFailed
from fairlead_broker.runtime import refusals
from fairlead_broker.runtime.engine.disk_pool import DiskPool
from fairlead_broker.runtime.leading.leader_replica import LeaderReplica
from fairlead_broker.telemetry import Log


class DamageAcceptance:
    """Lets readers pass a damaged range on demand."""

    def __init__(self, pool: DiskPool, failed: Callable[[LogError], None], log: Log) -> None:
        """`failed` hears of a disk that failed."""
        self._pool = pool
        self._failed = failed
        self._log = log

    async def accept(self, partition: LeaderReplica, first_offset: Offset, next_good_offset: Offset) -> None:
        """Accept the loss of exactly this range, durably; a second time changes nothing.

        What only a reader has noticed so far is looked at first. Raises `conflict` where it is no damaged range,
        `disk_full`, `storage_failed`.
        """
        try:
            accepted = await self._pool.run(_accept, partition.log, first_offset, next_good_offset)
        except LogError as error:
            if isinstance(error, StorageFailed):
                self._failed(error)
            raise refusals.from_log(error, partition.topic, partition.index, writing=True) from error
        if not accepted:
            damaged = [f"{each.first_offset} to {each.next_good_offset}" for each in partition.log.damaged]
            raise ProblemError(
                "conflict",
                f"{partition.topic}-{partition.index}: {first_offset} to {next_good_offset} is no damaged range; "
                f"damaged are {', '.join(damaged) or 'none'}",
            )
        self._log.warning(
            "loss of damaged records accepted",
            topic=partition.topic,
            partition=partition.index,
            first_offset=first_offset,
            next_good_offset=next_good_offset,
        )


def _accept(log: PartitionLog, first_offset: Offset, next_good_offset: Offset) -> bool:
    """Blocks, runs in the disk pool."""
    if log.accept_damage(first_offset, next_good_offset):
        return True
    for segment in log.segments:
        if segment.base_offset < next_good_offset and segment.next_offset > first_offset:
            scrub = SegmentScrub(log, segment)
            while scrub.step():
                pass
            scrub.finish()
    return log.accept_damage(first_offset, next_good_offset)
