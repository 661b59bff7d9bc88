"""Retention: the task that drops expired segments of every partition that this broker leads.

One task runs every `log.retention.check.interval.ms`; `log.retention` chooses the segments. The order of the retention
steps is fixed. Clients see a new log start before it is durable. Once clients see the new log starts, one checkpoint
makes the log starts of all partitions durable, and the segments are removed from their logs. The upkeep deletes the
segments' files `file.delete.delay.ms` later.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from fairlead_api.identifiers import TimestampUs
from fairlead_broker.clock import Clock
from fairlead_broker.links.copying import LogStart
from fairlead_broker.log import (
    Expiry,
    LogClosed,
    LogDirectory,
    LogError,
    StorageFailed,
    expire,
    make_starts_durable,
    retention_facts,
)
from fairlead_broker.registry.metadata import ClusterMetadata
from fairlead_broker.runtime.engine.containment import UnexpectedError, contained
from fairlead_broker.runtime.engine.disk_pool import DiskPool
from fairlead_broker.runtime.leading.leader_replica import LeaderReplica
from fairlead_broker.telemetry import Log


class Retention:
    """Task that applies retention until it is cancelled."""

    def __init__(
        self,
        directory: LogDirectory,
        partitions: Iterable[LeaderReplica],
        pool: DiskPool,
        clock: Clock,
        metadata: ClusterMetadata,
        *,
        interval_seconds: Callable[[], float],
        failed: Callable[[StorageFailed], None],
        count_deleted: Callable[[str, int, int], None],
        log: Log,
    ) -> None:
        """`interval_seconds` is called before every wait, and `failed` when the disk has failed.

        `count_deleted` receives reason, segments and bytes, and is called from the pool's threads.
        """
        self._directory = directory
        self._partitions = partitions
        self._pool = pool
        self._clock = clock
        self._interval_seconds = interval_seconds
        self._metadata = metadata
        self._failed = failed
        self._count_deleted = count_deleted
        self._log = log
        self._changed = asyncio.Event()

    def config_changed(self) -> None:
        """Restart the wait for the next check, because the interval may have changed."""
        self._changed.set()

    async def run(self) -> None:
        """Check the retention of all partitions at every interval, until cancelled."""
        while True:
            self._changed.clear()
            try:
                async with asyncio.timeout(self._interval_seconds()):
                    await self._changed.wait()
            except TimeoutError:
                await self.check()

    async def check(self) -> None:
        """Check the retention of every partition once."""
        try:
            with contained(self._log, "retention"):
                await self._pool.run(self._check, list(filter(self._applies, self._partitions)))
        except StorageFailed as error:
            self._failed(error)
        except LogError as error:
            # A failure of retention loses no data. The next check makes the same decision again.
            self._log.warning("retention not applied", reason=str(error))

    def _applies(self, partition: LeaderReplica) -> bool:
        """Return whether a partition has its own log start, and not the log start of a mirror's source (rule L16)."""
        if partition.mirror is None:
            return True
        link = self._metadata.links.get(partition.mirror.link)
        return link is not None and link.value.policies.log_start == LogStart.OWN

    def _check(self, partitions: list[LeaderReplica]) -> None:
        """Expire segments, make the new log starts durable and drop the segments.

        The call blocks and runs in the disk pool.
        """
        expired = [(partition, expiry) for partition in partitions if (expiry := self._expire(partition))]
        if not expired:
            return
        make_starts_durable(self._directory.write_checkpoint, [partition.log for partition, _ in expired])
        for partition, expiry in expired:
            try:
                with contained(self._log, "retention", partition.key):
                    partition.log.drop_below_start(self._removal_time(partition))
            except UnexpectedError:
                continue  # The segments stay until the log start moves again.
            self._report(partition, expiry)

    def _expire(self, partition: LeaderReplica) -> Expiry | None:
        """Choose the expired segments of a partition and advance the log start that clients see."""
        log, now_us = partition.log, self._clock.now_us()
        try:
            with contained(self._log, "retention", partition.key):
                expiry = expire(
                    retention_facts(log),
                    partition.config,
                    log_start=log.log_start_offset,
                    high_watermark=log.checkpoint_high_watermark,
                    now_us=now_us,
                )
                if expiry.segments:
                    log.move_log_start(expiry.log_start)
        except LogClosed:
            return None
        except LogError as error:
            self._log.warning(
                "retention not evaluated", topic=partition.topic, partition=partition.index, reason=str(error)
            )
            return None
        return expiry if expiry.segments else None

    def _removal_time(self, partition: LeaderReplica) -> TimestampUs:
        return TimestampUs(self._clock.now_us() + partition.config.file_delete_delay_ms * 1000)

    def _report(self, partition: LeaderReplica, expiry: Expiry) -> None:
        for segment, reason in expiry.segments:
            self._count_deleted(reason.name.lower(), 1, segment.size_bytes)
        self._log.info(
            "segments expired",
            topic=partition.topic,
            partition=partition.index,
            segments=len(expiry.segments),
            nbytes=expiry.size_bytes,
            log_start_offset=expiry.log_start,
            reasons=sorted({reason.value for _, reason in expiry.segments}),
        )
