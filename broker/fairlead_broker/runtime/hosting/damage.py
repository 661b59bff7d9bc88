"""Handling of damaged records: the leader accepts them as lost, or a replica fetches them again.

If the other replicas have all records of a damaged range, the damaged replica leaves the isr, truncates its log and
fetches the range again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from fairlead_api.identifiers import Offset, Revision, TopicIdPartition
from fairlead_api.problems import ProblemError
from fairlead_broker.coordination.membership import Incarnation
from fairlead_broker.coordination.mirror import Mirror
from fairlead_broker.coordination.protocol import (
    Coordination,
    CoordinationClosed,
    CoordinationError,
)
from fairlead_broker.log import LogError, PartitionLog, SegmentScrub, StorageFailed
from fairlead_broker.registry.isr import taken_out
from fairlead_broker.registry.records import encode
from fairlead_broker.registry.store_writes import Put, created_at, unchanged_since
from fairlead_broker.runtime import refusals
from fairlead_broker.runtime.engine.disk_pool import DiskPool
from fairlead_broker.runtime.hosting.replicas import Replicas
from fairlead_broker.runtime.leading.leader_replica import LeaderReplica
from fairlead_broker.telemetry import Log


class DamageAcceptance:
    """Accepts lost records: reads skip a damaged range after an operator has accepted the loss."""

    def __init__(self, pool: DiskPool, failed: Callable[[LogError], None], log: Log) -> None:
        """`failed` is called when the disk has failed."""
        self._pool = pool
        self._failed = failed
        self._log = log

    async def accept(self, partition: LeaderReplica, first_offset: Offset, next_good_offset: Offset) -> None:
        """Durably accept the loss of exactly this range; a second call changes nothing.

        Damage that so far only a reader has found is verified before the loss is accepted. Raises `disk_full`,
        `storage_failed`, or `conflict` unless the range is damaged.
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
                f"{partition.topic}-{partition.index}: {first_offset} to {next_good_offset} is not a damaged range; "
                f"damaged ranges: {', '.join(damaged) or 'none'}",
            )
        self._log.warning(
            "loss of damaged records accepted",
            topic=partition.topic,
            partition=partition.index,
            first_offset=first_offset,
            next_good_offset=next_good_offset,
        )


def _accept(log: PartitionLog, first_offset: Offset, next_good_offset: Offset) -> bool:
    """Verify the damage and accept it. The call blocks and runs in the disk pool."""
    if log.accept_damage(first_offset, next_good_offset):
        return True
    for segment in log.segments:
        if segment.base_offset < next_good_offset and segment.next_offset > first_offset:
            scrub = SegmentScrub(log, segment)
            while scrub.step():
                pass
            scrub.finish()
    return log.accept_damage(first_offset, next_good_offset)


LOOK_SECONDS: Final = 1.0
"""Number of seconds between two checks for damage. Damage is rare, and a damaged replica is harmless until its repair,
because the damaged range is not served."""


class DamageRepair:
    """Task that repairs damaged replicas until it is cancelled."""

    def __init__(
        self,
        coordination: Coordination,
        mirror: Mirror,
        incarnation: Incarnation,
        directory: str,
        partitions: Replicas,
        log: Log,
    ) -> None:
        """`directory`: id of the data directory."""
        self._coordination = coordination
        self._mirror = mirror
        self._incarnation = incarnation
        self._directory = directory
        self._partitions = partitions
        self._log = log
        self._left: dict[TopicIdPartition, Revision] = {}
        """For each partition whose log must still be truncated: the revision of the partition record in which this
        broker removed its own replica."""

    async def run(self) -> None:
        """Check all replicas for damage at every interval, until cancelled."""
        while True:
            # No event announces damage, so the task checks periodically.
            await asyncio.sleep(LOOK_SECONDS)  # noqa: TID251
            await self.look()

    async def look(self) -> None:
        """Repair damaged replicas whose records exist on other replicas."""
        damaged = self._partitions.damaged()
        self._left = {key: revision for key, revision in self._left.items() if key in damaged}
        for key in damaged:
            try:
                if await self._leave(key) and await self._partitions.drop_damaged(key):
                    # The broker may become a follower again under the same partition record, and its replica may be
                    # damaged again.
                    self._left.pop(key, None)
            except CoordinationClosed:
                raise
            except CoordinationError as error:
                # Whether the write succeeded is unknown. The next check reads the partition record from the mirror
                # again.
                self._log.warning(
                    "damaged copy has not left the in-sync set yet", partition=str(key), reason=str(error)
                )

    async def _leave(self, key: TopicIdPartition) -> bool:
        """Remove this broker from the isr and the elr of a partition record.

        Return False if the removal is impossible or the record has changed.
        """
        metadata = self._mirror.metadata
        found = metadata.partitions(key.topic_id).get(key.partition)
        if found is None:
            return False
        if self._left.get(key) == found.mod_revision:
            # The broker is already removed from the isr, but the truncation failed on a full disk. The replica has had
            # no role since the truncation failed, and the leader does not count its reports.
            return True
        successor = taken_out(found.value, self._incarnation.broker, self._directory)
        if successor is None:
            return False
        name, own = (
            metadata.keys.partition(key.topic_id, key.partition),
            metadata.keys.broker(self._incarnation.broker),
        )
        result = await self._coordination.transact(
            (unchanged_since(name, found.mod_revision), created_at(own, self._incarnation.epoch)),
            (Put(name, encode(successor)),),
        )
        await self._mirror.wait_for(result.revision)
        if result.succeeded:
            self._left[key] = result.revision
            self._log.error("damaged copy dropped; it will be fetched again", partition=str(key))
        return result.succeeded
