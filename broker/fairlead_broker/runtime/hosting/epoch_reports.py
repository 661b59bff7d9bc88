"""Reports of leader epochs that coordination has issued a second time.

A coordination store that was restored from a backup lacks the elections since the backup and can issue their
epochs again. A leader in an epoch that its log already contains would mix two histories in one epoch. A broker that is
named as leader in a reissued epoch does not become leader, and writes a partition record without a leader, in the
highest epoch of its log, marked as restored. The controller requests the log end of every replica and elects the
replica with the longest log, in an epoch above all epochs in the replicas' logs (protocol section 3, rule 8).
"""

from __future__ import annotations

import asyncio
from typing import Final

import msgspec

from fairlead_api.identifiers import LeaderEpoch, TopicIdPartition
from fairlead_broker.coordination.membership import Incarnation
from fairlead_broker.coordination.mirror import Mirror
from fairlead_broker.coordination.protocol import Coordination, CoordinationClosed, CoordinationError
from fairlead_broker.registry.records import InSync, encode
from fairlead_broker.registry.store_writes import Put, created_at, unchanged_since
from fairlead_broker.runtime.hosting.replicas import Replicas
from fairlead_broker.telemetry import Log

LOOK_SECONDS: Final = 1.0
"""Number of seconds between two checks. A restore takes minutes, so an additional second is harmless."""


class EpochReports:
    """Task that reports reissued epochs until it is cancelled."""

    def __init__(
        self,
        coordination: Coordination,
        mirror: Mirror,
        incarnation: Incarnation,
        partitions: Replicas,
        log: Log,
    ) -> None:
        self._coordination = coordination
        self._mirror = mirror
        self._incarnation = incarnation
        self._partitions = partitions
        self._log = log

    async def run(self) -> None:
        """Check all replicas for reissued epochs at every interval, until cancelled."""
        while True:
            # No event announces a reissued epoch, so the task checks periodically.
            await asyncio.sleep(LOOK_SECONDS)  # noqa: TID251
            await self.look()

    async def look(self) -> None:
        """Report every epoch that makes this broker the leader and that its log already contains."""
        for key, highest in self._partitions.overtaken():
            try:
                await self._report(key, highest)
            except CoordinationClosed:
                raise
            except CoordinationError as error:
                # Whether the write succeeded is unknown. The next check reads the partition record from the mirror
                # again.
                self._log.warning("leader epoch not reported yet", partition=str(key), reason=str(error))

    async def _report(self, key: TopicIdPartition, highest: LeaderEpoch) -> None:
        metadata = self._mirror.metadata
        found = metadata.partitions(key.topic_id).get(key.partition)
        own = InSync(broker=self._incarnation.broker, broker_epoch=self._incarnation.epoch)
        if found is None or found.value.leader != own or found.value.leader_epoch > highest:
            return
        name = metadata.keys.partition(key.topic_id, key.partition)
        reported = msgspec.structs.replace(found.value, leader=None, leader_epoch=highest, restored=True)
        result = await self._coordination.transact(
            (
                unchanged_since(name, found.mod_revision),
                created_at(metadata.keys.broker(own.broker), own.broker_epoch),
            ),
            (Put(name, encode(reported)),),
        )
        await self._mirror.wait_for(result.revision)
        if result.succeeded:
            self._log.error(
                "leader epoch was issued before: the coordination store is older than the log",
                partition=str(key),
                issued=found.value.leader_epoch,
                highest=highest,
            )
