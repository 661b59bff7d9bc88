"""Logs of partitions: opening, recovery and deletion.

Used by `replicas`. When this broker is removed from a partition record, the log of the partition stays open until the
log is reopened or deleted. All blocking calls run in the pool that opens logs.
"""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path

from fairlead_api.configuration import TopicConfig
from fairlead_api.identifiers import PartitionIndex, TopicId, TopicIdPartition
from fairlead_broker.log import LogDirectory, LogError, PartitionLog
from fairlead_broker.runtime.engine.containment import contained
from fairlead_broker.runtime.engine.disk_pool import DiskPool
from fairlead_broker.runtime.engine.supervisor import SideWork
from fairlead_broker.telemetry import Log


class PartitionLogs:
    """All open logs of one data directory."""

    __slots__ = ("_directory", "_kept", "_log", "_one_removal", "_pool", "removals")

    def __init__(self, directory: LogDirectory, pool: DiskPool, removals: SideWork, log: Log) -> None:
        """`removals` runs the removal of files that are no longer in use."""
        self._directory = directory
        self._pool = pool
        self._log = log
        self._kept: dict[TopicIdPartition, PartitionLog] = {}
        self._one_removal = asyncio.Lock()
        self.removals = removals

    def open(self, key: TopicIdPartition, topic: str, config: TopicConfig) -> PartitionLog:
        """Open or recover a log. The call blocks.

        Bytes that a crash left unsynced are synced before another component uses the log. Raises LogError.
        """
        log = self._kept.pop(key, None)
        if log is not None:
            log.update_config(config)
        else:
            log = self._directory.open_partition(key.topic_id, key.partition, config)
            self._report(log, topic, key.partition)
        if log.synced_offset < log.end_offset:
            # The log stays open even if the sync fails.
            self._kept[key] = log
            log.sync()
            self._kept.pop(key, None)
        return log

    def keep(self, key: TopicIdPartition, log: PartitionLog) -> None:
        """Keep a log open although its partition record no longer lists this broker.

        The log stays open until another call reopens or deletes it.
        """
        self._kept[key] = log

    async def delete_topic(self, topic_id: TopicId) -> None:
        """Delete the folders of a topic whose tombstone is written."""
        indexes = await self._pool.run(self.folders, topic_id)
        keys = [TopicIdPartition(topic_id, index) for index in indexes]
        for key in keys:
            self._begin_removal(key, await self._give_up(key), for_good=True)

    async def delete(self, key: TopicIdPartition) -> None:
        """Delete the folder of a partition that moved to other brokers or whose topic was deleted.

        After the call returns, a restarted broker does not read the folder. `removals` deletes the files one by one in
        the background, because a folder can have many files.
        """
        self._begin_removal(key, await self._give_up(key))

    async def _give_up(self, key: TopicIdPartition) -> Path | None:
        self._kept.pop(key, None)
        try:
            with contained(self._log, "deletion of a partition", key):
                return await self._pool.run(self._directory.give_up_partition, key.topic_id, key.partition)
        except LogError as error:
            # The folder remains. The next start of the broker retries the deletion.
            self._log.error("partition not deleted", partition=str(key), reason=str(error))
            return None

    def _begin_removal(self, key: TopicIdPartition, folder: Path | None, *, for_good: bool = False) -> None:
        if folder is not None:
            self.removals.begin(self._remove(key, folder, for_good), f"removal of {key}")

    async def _remove(self, key: TopicIdPartition, folder: Path, for_good: bool) -> None:
        # Only one removal runs at a time, so that the pool's other threads stay free to open logs.
        async with self._one_removal:
            try:
                with contained(self._log, "removal of files", folder):
                    await self._pool.run(partial(self._directory.remove_given_up, folder, for_good=for_good))
            except LogError as error:
                self._log.error("files not removed", partition=str(key), reason=str(error))

    def folders(self, topic_id: TopicId) -> list[PartitionIndex]:
        """Return the partitions of a topic that have a folder.

        The call blocks.
        """
        return self._directory.partitions_of(topic_id)

    def _report(self, log: PartitionLog, topic: str, partition: PartitionIndex) -> None:
        """Log which records a recovery removed or distrusts, and which files it rebuilt.

        Nothing is logged if there is nothing to report.
        """
        report = log.recovery_report
        for cut in report.cuts:
            self._log.warning(
                "torn end of a log truncated",
                topic=topic,
                partition=partition,
                first_offset=cut.first_offset,
                bytes=cut.nbytes,
                reason=cut.reason,
            )
        for damage in report.damaged:
            self._log.error(
                "records damaged",
                topic=topic,
                partition=partition,
                first_offset=damage.first_offset,
                next_good_offset=damage.next_good_offset,
            )
        if report.scanned_bytes or report.rebuilt_indexes:
            self._log.info(
                "log recovered",
                topic=topic,
                partition=partition,
                scanned_bytes=report.scanned_bytes,
                rebuilt_indexes=len(report.rebuilt_indexes),
                end_offset=log.end_offset,
            )
