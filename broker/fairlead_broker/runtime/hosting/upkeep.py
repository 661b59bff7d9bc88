"""What a broker does by the clock: checkpoints, rolling segments that are due, removing the files of dropped ones."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import TypeAlias

from fairlead_broker.clock import Clock
from fairlead_broker.log import LogClosed, LogDirectory, LogError, StorageFailed
from fairlead_broker.runtime.engine.disk_pool import DiskPool
from fairlead_broker.runtime.following.follower_replica import FollowerReplica
from fairlead_broker.runtime.leading.leader_replica import LeaderReplica
from fairlead_broker.telemetry import Log

Replica: TypeAlias = LeaderReplica | FollowerReplica

LOOK_SECONDS = 0.25
"""How often to look whether enough was appended for a checkpoint before its time."""


class Upkeep:
    """Runs every few seconds until cancelled, and sooner where much is appended."""

    __slots__ = (
        "_appended_bytes",
        "_bytes_max",
        "_clock",
        "_directory",
        "_failed",
        "_interval_seconds",
        "_log",
        "_partitions",
        "_pool",
    )

    def __init__(
        self,
        directory: LogDirectory,
        partitions: Callable[[], Iterable[Replica]],
        pool: DiskPool,
        clock: Clock,
        interval_seconds: float,
        *,
        bytes_max: int,
        appended_bytes: Callable[[], int],
        failed: Callable[[StorageFailed], None],
        log: Log,
    ) -> None:
        """`partitions`: led and followed ones, asked anew each time. `failed` hears of a disk that failed.

        `appended_bytes`: so far, in all; `bytes_max` of them do not wait.
        """
        self._bytes_max = bytes_max
        self._appended_bytes = appended_bytes
        self._directory = directory
        self._partitions = partitions
        self._pool = pool
        self._clock = clock
        self._failed = failed
        self._interval_seconds = interval_seconds
        self._log = log

    async def run(self) -> None:
        """Do it again and again."""
        while True:
            await self._until_due()
            await self.checkpoint()
            await self.look_after_segments()

    async def _until_due(self) -> None:
        """Wait for the interval, or until the start after a kill would have too much to read."""
        due = self._clock.monotonic() + self._interval_seconds
        enough = self._appended_bytes() + self._bytes_max
        # The only event to wait for is time: appends are too many to be told of each.
        while (left := due - self._clock.monotonic()) > 0 and self._appended_bytes() < enough:  # noqa: ASYNC110
            await asyncio.sleep(min(left, LOOK_SECONDS))  # noqa: TID251

    async def look_after_segments(self) -> None:
        """Roll what is due in every partition, and remove the files of segments dropped long enough ago."""
        failure = await self._pool.run(self._look_after, list(self._partitions()))
        if failure is not None:
            self._failed(failure)

    def _look_after(self, partitions: list[Replica]) -> StorageFailed | None:
        # Whatever has met it first, a checkpoint or the opening of a log: without an append nobody else hears of it.
        failure = self._directory.failure
        now_us = self._clock.now_us()
        for partition in partitions:
            try:
                partition.roll_if_due()
                partition.log.remove_dropped(now_us)
            except LogClosed:
                continue
            except StorageFailed as error:
                failure = error  # of the directory: the others fail alike
            except LogError as error:
                self._log.warning("segments not looked after", topic=partition.topic, reason=str(error))
        return failure

    async def checkpoint(self) -> None:
        """Write where every partition stands. A full disk only makes the next recovery longer."""
        try:
            await self._pool.run(self._directory.write_checkpoint)
        except LogError as error:
            self._log.warning("checkpoint not written", reason=str(error))
